"""Each Lua file says what it is handed; that is compared with what Python hands it."""

import re
from importlib import resources
from typing import Any

import pytest

from budget import keys, verbs
from budget.ledger import source
from budget.verbs import Call, Lease, Queued, Renewal

FOLDER = resources.files("budget") / "lua"
FILES = {entry.name.removesuffix(".lua"): entry.read_text() for entry in FOLDER.iterdir()}
VERBS = sorted(set(FILES) - {"prelude"})

DATASETS = ["A", "B"]
LEASE = Lease(dataset="A", job="A-1", token="t-1", data=b"", attempt=1, failures=0, deaths=0)
RENEWALS = [Renewal(dataset=name, job=f"{name}-1", token="t-1", reserved=1) for name in DATASETS]
JOBS = [Queued(job=f"A-{number}", data=b"", worst=1, description="") for number in range(3)]

# A call of each verb, and how often the repeated part of its ARGV occurs in it.
CALLS: dict[str, tuple[Call[Any], int]] = {
    "adopt": (
        verbs.adopt(
            dataset="A",
            job="A-1",
            token="t-1",
            worker="w",
            lease_ms=1,
            admission="drain",
            reservation=0,
            all_datasets=DATASETS,
        ),
        0,
    ),
    "claim": (
        verbs.claim(
            worker="w",
            datasets=DATASETS,
            all_datasets=DATASETS,
            k=1,
            nonce="n",
            admission="drain",
            reservations=[0, 0],
            lease_ms=1,
            holds_suspect=False,
            max_waiting=1,
            now="",
        ),
        2,
    ),
    "commit": (verbs.commit(lease=LEASE, worker="w", tokens=1, truncated=False, line=b"", told_by="d"), 0),
    "drop": (verbs.drop(dataset="A", all_datasets=DATASETS), 0),
    "enqueue": (verbs.enqueue(dataset="A", jobs=JOBS, all_datasets=DATASETS, lease_ms=1, now=""), 3),
    "reclaim": (verbs.reclaim(datasets=DATASETS, lease_ms=1, dead=["w1", "w2", "w3"]), 3),
    "reject": (verbs.reject(dataset="A", job="A-1", line=b""), 0),
    "release": (verbs.release(lease=LEASE, charge=""), 0),
    "renew": (verbs.renew(worker="w", renewals=RENEWALS, lease_ms=1), 2),
    "retry": (verbs.retry(dataset="A", lines=[("A-1", b""), ("A-2", b"")]), 2),
    "seed": (verbs.seed(dataset="A", entries=[("A-1", 1, False), ("A-2", 1, False)]), 2),
}


def header(verb: str, name: str) -> str:
    (line,) = re.findall(rf"^-- {name}: (.+)$", FILES[verb], re.MULTILINE)
    return line


def test_every_verb_is_called_here() -> None:
    assert sorted(CALLS) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_the_file_begins_with_its_purpose_keys_arguments_and_answer(verb: str) -> None:
    comment = FILES[verb].split("\n\n")[0].split("\n")
    assert all(line.startswith("-- ") for line in comment)
    assert comment[0].endswith((".", "!")) or len(comment[0]) > 40
    names = [found[1] for line in comment if (found := re.match(r"-- (KEYS|ARGV|RETURNS): \S", line))]
    assert names == ["KEYS", "ARGV", "RETURNS"]


@pytest.mark.parametrize("verb", VERBS)
def test_the_keys_are_those_that_the_file_names(verb: str) -> None:
    call, _ = CALLS[verb]
    expected: list[str] = []
    for part in header(verb, "KEYS").split(", "):
        match part.removeprefix("then "):
            case "a block":
                expected += keys.block("A")
            case "a block for each dataset" | "a block for each served dataset":
                expected += [key for name in DATASETS for key in keys.block(name)]
            case "spent and hash of every dataset":
                expected += [key for name in DATASETS for key in (keys.spent(name), keys.budget(name))]
            case "rq:job:<job> of each":
                expected += [keys.rq_job(job.job) for job in JOBS]
            case fixed:
                assert " " not in fixed
                expected.append(fixed.replace("<job>", "A-1").replace("<worker>", "w").replace("<digest>", "d"))
    assert call.keys == expected


@pytest.mark.parametrize("verb", VERBS)
def test_the_arguments_are_as_many_as_the_file_names(verb: str) -> None:
    call, times = CALLS[verb]
    fixed, _, repeated = re.sub(r" \([^)]*\)", "", header(verb, "ARGV")).partition("then ")
    if fixed.startswith("for each"):
        fixed, repeated = "", fixed
    many = len(repeated.partition(": ")[2].split(", ")) if ": " in repeated else 1 if repeated else 0
    assert len(call.args) == len([part for part in fixed.split(", ") if part]) + times * many


def test_a_block_has_as_many_keys_as_the_prelude_counts() -> None:
    (count,) = re.findall(r"^local BLOCK = (\d+)$", FILES["prelude"], re.MULTILINE)
    assert len(keys.block("A")) == int(count)
    named = re.findall(r"(\w+) = KEYS\[first", FILES["prelude"])
    parts = [key.split(":")[-1] for key in keys.block("A")]
    for name, part in zip(named, parts, strict=True):
        assert name == part or name in ("queue", "started", "failed", "canceled", "hash", "results")


def code(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("--"))


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_key_is_handed_in_but_the_hashes_of_jobs(name: str) -> None:
    literals = set(re.findall(r"'([^'\n]*:[^'\n]*)'", code(FILES[name])))
    assert literals <= {"rq:job:", ":", "run_id:(%x+)"}
    for command, first in re.findall(r"redis\.call\('(\w+)'(?:, *([^,)]+))?", code(FILES[name])):
        if command in ("TIME", "INFO"):
            continue
        assert not first.startswith("'"), f"{command} {first}"


@pytest.mark.parametrize("name", sorted(FILES))
def test_time_is_redis_own_and_nothing_is_left_to_chance(name: str) -> None:
    # A queue may be long; RQ's intermediate list holds one id for each of its own workers.
    text = code(FILES[name]).replace("'LREM', d.intermediate", "")
    for forbidden in ("math.random", "os.time", "os.clock", "LREM", "KEYS *", "'SCAN'", "SMEMBERS", "redis.pcall"):
        assert forbidden not in text


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_loop_is_without_a_bound(name: str) -> None:
    # `while` is allowed where something counted ends it: a binary search, the 1,000 ids of a claim, a suspect's turn.
    loops = re.findall(r"\bwhile (.+) do\b", code(FILES[name]))
    assert set(loops) <= {
        "low < high",
        "f.looked < 1000",
        "head and head.deaths >= 2 and holds_suspect",
        "count < k and progressed",
    }
    assert "repeat" not in re.findall(r"\b\w+\b", code(FILES[name]))


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_sent_is_one_text_with_the_same_edges(verb: str) -> None:
    text = source(verb)
    assert text.startswith("local PROTOCOL = '2'\nlocal EDGES = {32,36,40,45,")
    assert text.endswith(FILES[verb])
