"""What an export leaves out, and that it says so for every line."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from budget.errors import Exit
from results import turns
from results.exports import Outcome
from results.exports.options import ExportProblem
from tests.unit.exports.shelf import ROOT, TOKENIZER, Shelf, conversation, plain_rows, record
from workers.contracts import RejectLine
from workers.encodings import encode_line


def accounted(outcome: Outcome) -> None:
    """Every line is in a row or left out for a reason."""
    for part in outcome.datasets:
        assert part.lines == part.lines_used + sum(part.left_out.values())
    assert sum(part.rows for part in outcome.datasets) == sum(file.rows for file in outcome.files)


def test_every_line_that_is_left_out_is_counted_under_its_reason(shelf: Shelf) -> None:
    good = record("good")
    two, alone = conversation("two", ["x", "y"]), conversation("alone", ["x", "y"])
    shelf.put(
        "A1",
        good,
        b"\n",
        good,
        b'{"completion_tokens": 40, "response": "an earlier pipeline\'s"}\n',
        b'{"id": "x"}\n',
        b"what is this\n",
        *two,
        alone[0],
        record("between"),
        record("b2", dataset="B2"),
        record("aborted", finish_reason="abort"),
        record("short", completion_tokens=9),
        record("bad", input_ids=[-1]),
        encode_line(record("typed")).replace(b'"text":"hi"', b'"text":7'),
        alone[1],
        b'\xef\xbb\xbf{"completion_tokens": 1}\n',
        record("cut off", finish_reason="length"),
        encode_line(record("torn"))[:100],
    )
    outcome = shelf.export(finish="stop")
    part = outcome.datasets[0]
    assert part.left_out == {
        "earlier_pipeline": 2,
        "turns_missing": 2,
        "malformed": 2,
        "duplicate": 1,
        "no_tokens": 1,
        "unreadable": 1,
        "wrong_dataset": 1,
        "not_finished": 1,
        "ids_differ": 1,
        "truncated": 1,
        "torn_end": 1,
    }
    assert (part.lines, part.lines_used, part.rows) == (18, 4, 4)
    accounted(outcome)


def test_a_file_cut_at_every_byte_of_its_last_record_exports_the_others(shelf: Shelf) -> None:
    whole = encode_line(record("a")) + encode_line(record("b"))
    first = len(encode_line(record("a")))
    for size in range(first, len(whole) + 1):
        shelf.answers("A1").write_bytes(whole[:size])
        outcome = shelf.export()
        accounted(outcome)
        # A last line that lacks nothing but its newline is whole.
        assert outcome.datasets[0].rows == 1 + (size >= len(whole) - 1), size
        assert set(outcome.datasets[0].left_out) <= {"torn_end"}


def test_what_is_appended_meanwhile_is_not_half_read(shelf: Shelf) -> None:
    from results.turns import Turn, TurnFile

    shelf.put("A1", *(record(f"p{number}") for number in range(3)), encode_line(record("late"))[:50])
    source = TurnFile(shelf.answers("A1"), "A1", Turn)
    jobs = source.jobs()
    next(jobs)
    shelf.put("A1", encode_line(record("late"))[50:])
    assert len(list(jobs)) == 2
    assert source.left_out == {"torn_end": 1}


def test_turns_that_were_not_asked_with_the_answer_before_them_are_marked(shelf: Shelf) -> None:
    right = conversation("right", ["x", "y", "z"])
    wrong = conversation("wrong", ["x", "y", "z"])
    stripped = [{**message, "content": "other"} for message in wrong[2].messages]
    wrong[2] = record("wrong", turn=3, turns=3, messages=stripped)
    shelf.put("A1", *right, *wrong)
    outcome = shelf.export()
    rows = plain_rows(outcome.folder / outcome.files[0].file)
    assert [row["history_matches"] for row in rows] == [True] * 5 + [False]
    assert outcome.datasets[0].marked == {"history_differs": 1}
    assert shelf.export("conversations").datasets[0].marked == {"history_differs": 1}


def test_rows_with_the_same_ids_are_left_out_once_they_were_seen(shelf: Shelf) -> None:
    shelf.put("A1", record("a"), record("b"), record("c", output_ids=[7]))
    shelf.put(
        "B2", record("a", dataset="B2"), record("d", dataset="B2", input_ids=[11, 12, 13, 14, 900], output_ids=[901, 2])
    )
    outcome = shelf.export(dedupe=True)
    assert [part.left_out for part in outcome.datasets] == [{"identical": 1}, {"identical": 2}]
    accounted(outcome)
    assert len(shelf.rows()) == 5


def test_rows_with_too_few_generated_tokens_are_left_out(shelf: Shelf) -> None:
    shelf.put("A1", record("a", output_ids=[1]), record("b", output_ids=[1, 2]), record("c", output_ids=[1, 2, 3]))
    assert [row["primary_id"] for row in shelf.rows(min_supervised=2)] == ["A1/b", "A1/c"]
    with pytest.raises(ExportProblem, match="3 too_few_supervised"):
        shelf.export(min_supervised=2, max_length=5)


def test_a_split_is_by_the_prompt_and_stays_when_answers_are_added(shelf: Shelf) -> None:
    shelf.put("A1", *(turn for number in range(40) for turn in conversation(f"p{number}", ["x", "y"])))
    sides = _sides(shelf)
    assert all(len(side) == 1 for side in sides.values())
    shelf.put("A1", *(record(f"q{number}") for number in range(40)))
    after = _sides(shelf)
    assert {own: after[own] for own in sides} == sides
    assert 8 < sum(side == {"eval"} for side in after.values()) < 40


def _sides(shelf: Shelf) -> dict[str, set[str]]:
    outcome = shelf.export(split=0.75)
    accounted(outcome)
    assert [file.file for file in outcome.files] == ["specforge.train.jsonl", "specforge.eval.jsonl"]
    sides: dict[str, set[str]] = {}
    for file in outcome.files:
        for row in plain_rows(outcome.folder / file.file):
            sides.setdefault(row["primary_id"], set()).add(file.side)
    return sides


def test_conversations_are_a_row_a_prompt_and_hold_nothing_else(shelf: Shelf) -> None:
    calls = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    shelf.put(
        "A1",
        *conversation("talk", ["x", "y"]),
        record("ids", messages=[]),
        record("tools", messages=[{"role": "user", "content": "?"}, *calls, {"role": "tool", "content": "4"}]),
        record("named", messages=[{"role": "user", "content": "?", "name": "n"}], tools='[{"type":"function"}]'),
    )
    outcome = shelf.export("conversations")
    assert plain_rows(outcome.folder / "conversations.jsonl") == [
        {
            "id": "A1/talk",
            "conversations": [
                {"role": "user", "content": "question 1"},
                {"role": "assistant", "content": "x"},
                {"role": "user", "content": "question 2"},
                {"role": "assistant", "content": "y"},
            ],
            "tools": "[]",
        },
        {
            "id": "A1/named",
            "conversations": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "hi"}],
            "tools": '[{"type":"function"}]',
        },
    ]
    assert outcome.datasets[0].left_out == {"no_messages": 1, "tool_calls": 1}
    accounted(outcome)


def test_the_manifest_says_from_what_and_into_what(shelf: Shelf) -> None:
    shelf.put("A1", record("a"), record("b", weight_version="2"))
    shelf.rejected("A1").write_bytes(
        b"".join(
            encode_line(RejectLine(id=own, dataset="A1", reason="too_long", detail="d", attempts=0, row=None))
            for own in ("a", "x", "y", "y", "z")
        )
        + b'{"id": "z", "retried": true}\n'
    )
    own = shelf.folder / "out" / ".tokenmill"
    own.mkdir()
    facts = {
        "tokenizer": json.dumps({"tokenizer_hash": "t", "template_hash": "h"}),
        "model": json.dumps({"model": "m"}),
    }
    (own / "folder.json").write_text(json.dumps({"id": "i", "run": "r", "facts": facts}))
    outcome = shelf.export(datasets=("A1",), max_length=100)
    held = json.loads(outcome.manifest.read_bytes())
    (part,) = held["datasets"]
    answers = shelf.answers("A1").read_bytes()
    assert part["input"]["sha256"] == hashlib.sha256(answers).hexdigest()
    assert part["input"]["bytes"] == len(answers)
    assert part["rejected_prompts"] == {"too_long": 2}
    assert [made["weight_version"] for made in part["models"]] == ["default", "2"]
    (output,) = held["outputs"]
    written = (outcome.folder / output["file"]).read_bytes()
    assert (output["sha256"], output["bytes"]) == (hashlib.sha256(written).hexdigest(), len(written))
    assert held["tokenizer"] == {"name": TOKENIZER, "tokenizer_hash": "t", "template_hash": "h"}
    assert (held["run"], held["output_id"], held["options"]["max_length"]) == ("r", "i", 100)
    assert held["versions"].keys() == {"python", "tokenmill"}
    assert [dataset["name"] for dataset in held["run_file"]["datasets"]] == ["A1"]


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("conversations", {"max_length": 5}, "--max-length is about token ids"),
        ("conversations", {"text": True}, "--text is about token ids"),
        ("specforge", {"split": 1.5}, "--split 1.5 is no share"),
        ("specforge", {"output": Path("x.json.gz")}, "does not end in .jsonl"),
        ("speculators", {"output": Path("x.jsonl")}, "name a folder"),
        ("specforge", {}, "no answers in"),
    ],
)
def test_what_cannot_be_exported_is_a_sentence(shelf: Shelf, kind: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ExportProblem, match=words) as raised:
        shelf.export(kind, **options)
    assert raised.value.exit_code is Exit.USER
    assert not [path for path in (shelf.folder / "out").rglob("*") if path.is_file()]


def test_the_documentation_has_the_columns_the_examples_and_the_reasons(shelf: Shelf) -> None:
    page = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
    tokens, chat = [json.loads(block) for block in re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)]
    shelf.put("A1", record("HumanEval/0", model="Kimi-K2", worker="gpu0-1", text="4"))
    assert shelf.rows() == [tokens]
    assert shelf.rows("conversations") == [chat]
    assert not [name for name in tokens if f"`{name}`" not in page]
    reasons = [value for name, value in vars(turns).items() if name.isupper() and isinstance(value, str)]
    assert len(reasons) == 10
    assert not [reason for reason in reasons if f"`{reason}`" not in page]
