"""The collector beside a live ledger: seeding, writing, leaving."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from budget import keys, runbook, snapshot, verbs
from results.summary import rejected_now
from workers.contracts import job_id

NAMES = ["A1", "B2"]


def test_answers_are_written_once_and_leave_the_stream(rig: Any) -> None:
    rig.collect()
    for number in range(50):
        assert rig.commit("A1", f"p/{number}", tokens=number + 1)
        assert rig.commit("B2", f"p/{number}", tokens=3, turns=3)
    rig.written()
    assert rig.totals("A1").tokens == sum(range(1, 51)) == rig.spent("A1")
    assert rig.totals("B2").tokens == 450
    assert len(rig.folder.answers("B2").read_bytes().split(b"\n")) == 151
    rig.check()
    rig.halt()
    assert runbook.published(rig.client)["name"] == "trial"


def test_a_start_seeds_what_the_files_hold(rig: Any) -> None:
    lines = b"".join(rig.record("A1", f"p{number}", 5) for number in range(1200))
    rig.write("A1", lines)
    rig.write("A1", b'{"id":"bad","reason":"too_long"}\n{"id":"p1","reason":"late"}\n', "rejected.jsonl")
    rig.collect()
    state = snapshot.read(rig.client, NAMES).dataset("A1")
    assert (state.spent, state.committed, state.rejected, state.done) == (6000, 1200, 1, 1201)
    rig.check()
    rig.halt()
    assert rig.folder.answers("A1").read_bytes() == lines


def test_answers_committed_before_the_collector_came_are_not_lost(rig: Any) -> None:
    rig.commit("A1", "early", 11)
    rig.write("A1", rig.record("A1", "file", 5))
    rig.collect()
    rig.written()
    assert rig.spent("A1") == 16
    rig.check()


def test_a_job_that_the_file_has_is_not_written_again(rig: Any) -> None:
    lines = rig.record("A1", "twice", 5)
    rig.write("A1", lines)
    rig.commit("A1", "twice", 9)
    rig.collect()
    rig.written()
    assert rig.folder.answers("A1").read_bytes() == lines
    rig.until(lambda: rig.spent("A1") == 5, "the file's number to win")
    rig.check()


def test_a_stream_read_again_after_a_crash_writes_nothing_twice(rig: Any) -> None:
    for number in range(20):
        rig.commit("A1", f"p{number}")
    rig.reject("A1", "r")
    rig.retry("A1", "r")
    rig.reject("A1", "r")
    entries = rig.client.xrange(keys.results("A1"))
    rig.collect()
    rig.written()
    before = rig.folder.answers("A1").read_bytes()
    rig.halt()
    for _, fields in entries:
        rig.client.xadd(keys.results("A1"), fields)
    rig.collect()
    rig.written()
    assert rig.folder.answers("A1").read_bytes() == before
    assert [own for _, own in rejected_now(rig.folder.path, "A1")] == ["r"]
    rig.check()


def test_rejected_and_retried_prompts(rig: Any) -> None:
    rig.collect()
    for own in ("a", "b", "c"):
        rig.reject("A1", own)
    rig.retry("A1", "b")
    rig.written()
    assert [own for _, own in rejected_now(rig.folder.path, "A1")] == ["a", "c"]
    assert [own for _, own in rejected_now(rig.folder.path, "A1", "poison")] == []
    rig.commit("A1", "b", 4)
    rig.written()
    rig.check()
    rig.halt()
    rig.collect()
    rig.check()


def test_a_rejected_job_whose_id_is_not_its_prompts_is_still_found(rig: Any) -> None:
    """A worker that cannot read a job has no prompt's id for it."""
    rig.reject("A1", "what was readable", job=job_id("A1", "another"))
    rig.collect()
    rig.written()
    rig.check()
    rig.halt()
    rig.client.flushall()
    rig.collect()
    assert snapshot.read(rig.client, NAMES).dataset("A1").rejected == 1
    assert rig.client.hexists(keys.done("A1"), job_id("A1", "another"))
    rig.check()


def test_poisonous_prompts_get_their_line(rig: Any) -> None:
    rig.collect()
    rig.enqueue("A1", ["killer"])
    for attempt in range(1, 5):
        claimed = rig.ledger(
            verbs.claim(
                worker=f"w{attempt}", datasets=["A1"], all_datasets=NAMES, k=1, nonce=f"n{attempt}",
                admission="forecast", reservations=[1], lease_ms=1500, holds_suspect=False, max_waiting=100, now="n",
            )
        )  # fmt: skip
        assert len(claimed.leases) == 1
        rig.ledger(verbs.reclaim(datasets=NAMES, lease_ms=1500, dead=[f"w{attempt}"]))
    rig.written()
    assert [own for _, own in rejected_now(rig.folder.path, "A1", "poison")] == ["killer"]
    assert b'"input_ids":[1,2]' in rig.folder.rejected("A1").read_bytes()
    rig.check()


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "commit", "job": job_id("A1", "x"), "tokens": 7, "truncated": 0, "line": b"no zstd"},
        {"kind": "commit", "job": job_id("A1", "x"), "tokens": b"\xff", "line": b""},
        {"kind": "unheard of", "job": job_id("A1", "x")},
        {"kind": "reject", "job": job_id("A1", "x"), "line": b""},
        {"kind": "commit", "job": "A1-nonsense"},
        {"what": "ever"},
    ],
)
def test_a_damaged_entry_is_kept_aside_and_the_collector_goes_on(rig: Any, fields: dict[str, Any]) -> None:
    rig.collect()
    rig.client.xadd(keys.results("A1"), fields)
    rig.commit("A1", "good")
    rig.written()
    assert rig.totals("A1").answers == 1
    assert rig.folder.quarantine("A1").read_bytes().count(b"\n") == 1
    rig.check()
    rig.halt()


def test_a_damaged_answer_is_generated_again_and_rejected_the_second_time(rig: Any) -> None:
    rig.collect()
    for _ in range(2):
        line = rig.record("A1", "other", 7)
        call = verbs.commit(lease=rig.lease("A1", "x"), worker="w", tokens=7, truncated=False, line=line)
        rig.ledger(call)
        rig.written()
        rig.until(lambda: rig.spent("A1") == 0, "the ledger to forget it")
    rig.until(lambda: rig.folder.rejected("A1").exists(), "its rejection")
    rig.until(lambda: rig.client.hget(keys.done("A1"), job_id("A1", "x")) == b"0", "its entry")
    rig.check()


def test_it_leaves_when_everything_is_finished_and_notes_what_was_dropped(rig: Any) -> None:
    rig.collect(config=rig.with_config(datasets=[*rig.config.datasets]), stay=False)
    for name in NAMES:
        runbook.set_cap(rig.client, name, 10)
        rig.enqueue(name, [f"q{number}" for number in range(5)])
        rig.commit(name, "q0", 10)
        rig.ledger(verbs.drop(dataset=name, all_datasets=NAMES))
        rig.client.delete(keys.rq_queue(name))
    runbook.note_facts(rig.client, {"tokenizer": "{}"})
    assert rig.ended() is True
    dropped = rig.folder.dropped("A1").read_text().splitlines()
    assert dropped == sorted(f'{{"job":"{job_id("A1", f"q{number}")}"}}' for number in range(1, 5))
    assert not list(rig.folder.path.rglob("*.new"))
    assert not rig.client.exists(keys.COLLECTOR_LOCK)
    rig.check()


def test_facts_of_the_run_come_into_the_folder_and_back_into_an_emptied_redis(rig: Any) -> None:
    rig.collect()
    runbook.note_facts(rig.client, {"tokenizer_facts": "probe"})
    rig.until(lambda: "tokenizer_facts" in rig.folder.state().facts, "the facts in the folder")
    rig.client.flushall()
    rig.until(lambda: runbook.published(rig.client).get("tokenizer_facts") == "probe", "the facts in Redis")


def test_a_dead_workers_jobs_come_back(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tokenmill.collector"):
        rig.collect()
        rig.enqueue("A1", ["a", "b"])
        rig.ledger(
            verbs.claim(
                worker="gone", datasets=["A1"], all_datasets=NAMES, k=2, nonce="n", admission="forecast",
                reservations=[1], lease_ms=300, holds_suspect=False, max_waiting=100, now="n",
            )
        )  # fmt: skip
        rig.until(lambda: rig.client.llen(keys.rq_queue("A1")) == 2, "the jobs to be back")
        rig.until(lambda: "worker gone" in caplog.text, "it to be said")


def test_foreign_lines_count_and_are_never_touched(rig: Any) -> None:
    foreign = (
        b'{"prompt":"x","completion_tokens":40}\n{"id":7,"completion_tokens":2,"turn":"one"}\n{"id":8}\nnonsense\n'
    )
    rig.write("A1", foreign + rig.record("A1", "ours", 5).rstrip(b"\n"))
    rig.collect()
    assert rig.spent("A1") == 47
    assert rig.client.hget(keys.done("A1"), job_id("A1", "7")) == b"2"
    assert rig.folder.answers("A1").read_bytes() == foreign + rig.record("A1", "ours", 5)


def test_an_output_folder_reached_another_way_is_the_same(rig: Any, tmp_path: Path) -> None:
    rig.collect()
    rig.halt()
    link = tmp_path / "link"
    link.symlink_to(rig.folder.path)
    rig.collect(config=rig.with_config(output=str(link)))
    rig.halt()


def test_a_cap_set_by_hand_outlives_redis_until_the_run_file_says_something_new(
    rig: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def caps() -> list[bytes | None]:
        return rig.client.hmget(keys.budget("A1"), "cap", "cap_file")

    in_file = rig.config.dataset("A1").max_tokens
    rig.collect()
    runbook.set_cap(rig.client, "A1", 123)
    rig.until(lambda: rig.folder.cap("A1", in_file) == 123, "the folder to know it")
    rig.server.kill()
    rig.server.restart(empty=True)
    rig.until(rig.is_seeded, "the emptied Redis to be seeded")
    assert caps() == [b"123", str(in_file).encode()]
    rig.halt()
    rig.client.flushall()
    rig.collect()
    assert caps() == [b"123", str(in_file).encode()]
    rig.halt()
    rig.client.flushall()
    changed: list[Any] = [
        msgspec.structs.replace(dataset, max_tokens=77) if dataset.name == "A1" else dataset
        for dataset in rig.config.datasets
    ]
    assert rig.folder.cap("A1", 77) == 77
    rig.collect(config=rig.with_config(datasets=changed))
    assert caps() == [b"77", b"77"]
    assert (
        "A1: the budget is 77 tokens, as the run file says, in the place of 123, which was set by hand" in caplog.text
    )
