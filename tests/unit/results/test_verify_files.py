"""Verification from the files alone: every kind of difference has its sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.folder import OutputFolder
from results.report import Report
from results.summary import file_totals
from results.verify import sentences, verify
from workers.contracts import DatasetConfig, RunConfig, job_id


def line(own: str, tokens: int = 3, **changes: Any) -> bytes:
    record: dict[str, Any] = {
        "id": own, "dataset": "A1", "turn": 1, "turns": 1, "completion_tokens": tokens, "finish_reason": "stop",
        "output_ids": list(range(tokens)), **changes,
    }  # fmt: skip
    return json.dumps(record).encode() + b"\n"


def check(tmp_path: Path, answers: bytes, **files: bytes) -> Report:
    (tmp_path / "A1").mkdir(exist_ok=True)
    (tmp_path / "A1" / "raw_responses.jsonl").write_bytes(answers)
    for name, data in files.items():
        (tmp_path / "A1" / f"{name}.jsonl").write_bytes(data)
    dataset = DatasetConfig(name="A1", prompts="p", max_tokens=100)
    return verify(RunConfig(name="r", output=str(tmp_path), tokenizer="t", datasets=[dataset]))


def test_good_files_have_no_findings(tmp_path: Path) -> None:
    dropped = json.dumps({"job": job_id("A1", "d")}).encode() + b"\n"
    report = check(tmp_path, line("a") + line("b", finish_reason="length"), rejected=b'{"id":"r"}\n', dropped=dropped)
    assert report.findings == [] and report.is_good
    counts = report.datasets[0]
    assert (counts.answers, counts.tokens, counts.truncated, counts.rejected, counts.dropped) == (2, 6, 1, 1, 1)
    assert sentences(report)[-1] == "all counts agree"
    assert file_totals(str(tmp_path), ["A1"])["A1"].tokens == 6


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (line("a") + line("a"), "'a' stands twice, again at line 2"),
        (line("a", turns=2) + line("b"), "'a' at line 1 has 1 of 2 turns"),
        (b"{broken\n" + line("a"), "line 1 is not JSON"),
        (b'{"id":"a"}\n' + line("b"), "line 1 has no completion_tokens"),
        (line("a", output_ids=[1]), "'a' at line 1 has 1 output_ids and completion_tokens 3"),
        (line("a", output_ids="no"), "no list of output_ids"),
        (line("a", finish_reason="abort"), "ended by 'abort'"),
        (line("a", dataset="B2"), "an answer of 'B2'"),
        (line("a") + line("b")[:9], "ends with a torn line"),
        (line("a")[:-1], "a line without its newline"),
        (line("a") + line("b", turns=2), "only 1 of 2 turns"),
    ],
)
def test_each_difference_is_named_with_its_mend(tmp_path: Path, answers: bytes, words: str) -> None:
    report = check(tmp_path, answers)
    assert len(report.findings) == 1, report.findings
    assert words in report.findings[0] and report.findings[0].startswith("A1: ")
    assert (
        "run the job again" in report.findings[0] or ": delete" in report.findings[0] or ": move" in report.findings[0]
    )
    assert sentences(report)[-1] == "1 difference"


@pytest.mark.parametrize(
    "ids", ["[1,22,333]", "[0,1, 2]", "[ 1,2,3 ]", "[-1,2,3]", "[2147483648,12345678901234567890,1]"]
)
def test_ids_are_counted_however_they_are_written(tmp_path: Path, ids: str) -> None:
    assert check(tmp_path, line("a").replace(b"[0, 1, 2]", ids.encode())).findings == []


@pytest.mark.parametrize(
    ("ids", "held"),
    [
        ("[]", "0 output_ids"), ("[1]", "1 output_ids"), ("[1,2,3,4]", "4 output_ids"), ("[[1,2,3]]", "no list"),
        ("[1,[2],3]", "no list"), ('[1,"2",3]', "no list"), ("[1,2.5,3]", "no list"), ("[1,2e0,3]", "no list"),
        ("[1,null,3]", "no list"), ("[true,2,3]", "no list"), ("333", "no list"),
        ('"1,2"', "no list"), ("{}", "no list"),
    ],
)  # fmt: skip
def test_ids_that_are_not_as_many_are_a_difference(tmp_path: Path, ids: str, held: str) -> None:
    (found,) = check(tmp_path, line("a").replace(b"[0, 1, 2]", ids.encode())).findings
    assert f"has {held}" in found


def test_a_thousand_differences_are_a_few_sentences(tmp_path: Path) -> None:
    report = check(tmp_path, b"".join(line(str(number), output_ids=[]) for number in range(1000)))
    assert len(report.findings) == 6
    assert report.findings[-1] == "A1: 995 more like it (output_ids)"


def test_dropped_prompts_that_are_answered_are_a_difference(tmp_path: Path) -> None:
    report = check(tmp_path, line("a"), dropped=json.dumps({"job": job_id("A1", "a")}).encode() + b"\nx\n")
    assert [words in finding for words, finding in zip(["name no job", "answered"], report.findings, strict=True)]


def test_beside_a_collector_a_moving_end_is_no_difference(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    folder.prepare(["A1"])
    folder.lock()
    report = check(tmp_path, line("a") + line("b")[:9])
    folder.unlock()
    assert report.findings == []
    assert any("still running" in note for note in report.notes)


def test_foreign_lines_are_noted(tmp_path: Path) -> None:
    report = check(tmp_path, b'{"completion_tokens": 5}\n')
    assert report.findings == [] and "earlier pipeline" in report.notes[0]
