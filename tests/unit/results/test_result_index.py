"""What counts in a result file, and what a torn end costs."""

import json
from pathlib import Path
from typing import Any

import pytest

from results import jsonl
from results.appender import Appender
from results.index import Index, digest, digest_of_job, job_of
from workers.contracts import job_id


def line(own: Any, tokens: int, turn: int = 1, turns: int = 1, reason: str = "stop", text: str = "t") -> bytes:
    record = {
        "id": own, "dataset": "A1", "turn": turn, "turns": turns, "completion_tokens": tokens,
        "finish_reason": reason, "output_ids": list(range(tokens)), "text": text,
    }  # fmt: skip
    return json.dumps(record).encode() + b"\n"


def read(path: Path) -> Index:
    index = Index("A1")
    index.read_answers(path)
    return index


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "raw_responses.jsonl"
    path.write_bytes(data)
    return path


def test_jobs_and_digests_are_the_same_thing() -> None:
    job = job_id("A-1", "HumanEval/0")
    key = digest("A-1", "HumanEval/0")
    assert digest_of_job("A-1", job) == key
    assert job_of("A-1", key) == job
    assert digest_of_job("A1", job) is None
    assert digest_of_job("A-1", "A-1-" + "z" * 24) is None


def test_a_missing_file_holds_nothing(tmp_path: Path) -> None:
    index = read(tmp_path / "none")
    assert (index.tokens, index.lines, index.tail.cut) == (0, 0, None)


def test_turns_of_a_job_are_summed_and_cut_answers_counted(tmp_path: Path) -> None:
    index = read(write(tmp_path, line("a", 3, 1, 2) + line("a", 4, 2, 2, "length") + line("b", 5)))
    assert index.tokens_of(digest("A1", "a")) == 7
    assert (index.tokens, index.truncated, len(index.answers)) == (12, 1, 2)


@pytest.mark.parametrize("base", [0, 1])
def test_turns_may_be_counted_from_0_or_from_1(tmp_path: Path, base: int) -> None:
    index = read(write(tmp_path, line("a", 3, base, 2) + line("a", 4, base + 1, 2)))
    assert (index.tokens, index.tail.cut, index.partial) == (7, None, {})


def test_a_file_cut_at_every_byte_of_its_last_two_records_is_mended(tmp_path: Path) -> None:
    """The first record stays, whole ones stay, and the next append does not stick to a torn line."""
    first, second, third = line("a", 3), line("b", 4), line("c", 2, 1, 2) + line("c", 3, 2, 2)
    whole = first + second + third
    for size in range(len(first), len(whole) + 1):
        path = write(tmp_path, whole[:size])
        index = read(path)
        appender = Appender(path)
        appender.open(index.tail)
        appender.append(line("new", 9))
        appender.sync()
        appender.close()
        data = path.read_bytes()
        again = read(path)
        assert again.tail.cut is None and again.broken.count == 0, size
        assert data.startswith(first), size
        assert again.tokens == index.tokens + 9, size
        kept = [own for own in "abc" if digest("A1", own) in again.answers]
        reached = len(first) + len(second)
        expected = "a" + ("b" if size >= reached - 1 else "") + ("c" if size >= len(whole) - 1 else "")
        assert "".join(kept) == expected, size
        assert not again.partial, size


def test_a_torn_line_with_blank_lines_after_it_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path, line("a", 3) + line("b", 4)[:20] + b"\n\n")
    index = read(path)
    assert index.tail.cut == len(line("a", 3))
    said = Appender(path).open(index.tail)
    assert said is not None and "torn line" in said and "line 2" in said
    assert path.read_bytes() == line("a", 3)


def test_zeros_that_a_power_cut_left_are_cut(tmp_path: Path) -> None:
    path = write(tmp_path, line("a", 3) + b"\0" * 4096)
    assert read(path).tail.cut == len(line("a", 3))


@pytest.mark.parametrize("tail", [b"]\n", b"# end", b"[1, 2]\n", b'{"note": "by hand"}'])
def test_an_end_that_is_not_ours_is_never_cut(tmp_path: Path, tail: bytes) -> None:
    path = write(tmp_path, line("a", 3) + tail)
    index = read(path)
    assert index.tail.cut is None
    assert index.broken.count + index.tokenless.count == 1
    Appender(path).open(index.tail)
    assert path.read_bytes() == line("a", 3) + tail.rstrip(b"\n") + b"\n"


def test_lines_in_the_middle_that_cannot_be_read_are_reported_not_counted(tmp_path: Path) -> None:
    index = read(write(tmp_path, line("a", 3) + b'{"id":"torn\n' + b'{"id":"x"}\n' + b"\n" + line("b", 1)))
    assert (index.broken.count, index.broken.first[0][0]) == (1, 2)
    assert (index.tokenless.count, index.tokenless.first[0][0]) == (1, 3)
    assert index.tokens == 4


def test_foreign_lines_count_by_their_tokens(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"id": 7, "completion_tokens": 5, "finish_reason": {"type": "length"}}\r\n'
    data += b'{"id": 7, "completion_tokens": 6}\r\n{"completion_tokens": 1, "x": "\\ud800"}\n'
    data += b'{"completion_tokens": 1.5}\n{"completion_tokens": true}\n{"completion_tokens": 0}\n'
    data += b'{"completion_tokens": 3, "loss": NaN}\n{"id": null, "completion_tokens": 2}'
    index = read(write(tmp_path, data))
    assert index.tokens_of(digest("A1", "7")) == 11
    assert (index.tokens, index.foreign, index.truncated) == (14, 4, 1)
    assert (index.tokenless.count, index.broken.count) == (3, 1)


def test_duplicates_are_counted_once(tmp_path: Path) -> None:
    index = read(write(tmp_path, line("a", 3) + line("b", 1, 1, 2) + line("b", 1, 2, 2) + line("a", 9) + line("c", 1)))
    assert (index.tokens, index.duplicates.count, index.duplicates.first[0]) == (6, 1, (4, "a"))


def test_turns_that_stand_apart_are_found_together(tmp_path: Path) -> None:
    shuffled = line("a", 2, 2, 2) + line("b", 1) + line("a", 1, 1, 2) + line("c", 5)
    index = read(write(tmp_path, shuffled))
    assert (index.tokens, index.partial, index.duplicates.count) == (9, {}, 0)


def test_missing_turns_in_the_middle_are_kept_and_named(tmp_path: Path) -> None:
    index = read(write(tmp_path, line("a", 2, 1, 3) + line("b", 1)))
    assert index.tokens == 3 and index.tail.cut is None
    assert [partial.id for partial in index.partial.values()] == ["a"]


def test_the_last_line_of_a_rejected_id_counts(tmp_path: Path) -> None:
    write(tmp_path, line("answered", 3))
    rejected = tmp_path / "rejected.jsonl"
    rejected.write_bytes(
        b'{"id":"a"}\n{"id":"b"}\n{"id":"b","retried":true}\n{"id":"answered"}\n{"id":"c"}\n'
        b'{"id":"c","retried":true}\n{"id":"c","reason":"again"}\nbroken\n{"id":"\\ud800"}\n{"id":"to'
    )
    index = read(tmp_path / "raw_responses.jsonl")
    index.read_rejected(rejected)
    assert index.rejected == {digest("A1", own) for own in ("a", "c", "\ud800")}
    assert index.unreadable_rejects.count == 1
    assert index.rejected_tail.cut == rejected.stat().st_size - len(b'{"id":"to')


def test_texts_with_other_ends_of_lines_stay_one_line(tmp_path: Path) -> None:
    text = "\u2028 \u0085 \u000b"
    data = json.dumps({"completion_tokens": 2, "id": "u", "text": text}, ensure_ascii=False).encode() + b"\n"
    assert read(write(tmp_path, data)).tokens == 2


def test_a_huge_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LONGEST", 64)
    path = write(tmp_path, b'{"completion_tokens": 2, "id": "u"}\n' + b"[" * 1000)
    with path.open("rb") as file:
        assert max(len(raw) for _, raw in jsonl.lines(file)) == 64
