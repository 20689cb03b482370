"""The last rejected prompts, read from the ends of their files."""

import json
from pathlib import Path
from typing import Any

from tokenmill.dashboard.rejects import EACH, TAIL_BYTES, Rejects


def write(folder: Path, dataset: str, lines: list[dict[str, Any]], *, end: str = "\n") -> Path:
    path = folder / dataset / "rejected.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(line) for line in lines) + end)
    return path


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"p{number}", "dataset": "A", "reason": "too_long", "detail": "d", "row": {"n": number}, **more}


def test_the_last_ones_come_first(tmp_path: Path) -> None:
    write(tmp_path, "A", [line(n) for n in range(10)])
    found = Rejects(tmp_path, ["A", "B"]).read()
    assert [entry.id for entry in found] == [f"p{9 - n}" for n in range(EACH)]
    assert found[0].row == '{"n": 9}' and found[0].reason == "too_long"


def test_what_was_retried_since_is_not_shown_nor_an_older_line_of_its_id(tmp_path: Path) -> None:
    write(tmp_path, "A", [line(1), line(2), {"id": "p1", "retried": True}])
    assert [entry.id for entry in Rejects(tmp_path, ["A"]).read()] == ["p2"]


def test_long_files_torn_ends_and_foreign_lines_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path, "A", [line(n, detail="x" * 2000) for n in range(500)], end='\nnot ours\n{"id": "torn')
    assert path.stat().st_size > TAIL_BYTES
    found = Rejects(tmp_path, ["A"]).read()
    assert [entry.id for entry in found] == ["p499", "p498", "p497"]
    assert len(found[0].detail) < 500


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    rejects = Rejects(tmp_path, ["A"])
    assert rejects.read() == []
    path = write(tmp_path, "A", [line(1)])
    assert [entry.id for entry in rejects.read()] == ["p1"]
    write(tmp_path, "A", [line(1), line(2)])
    assert [entry.id for entry in rejects.read()] == ["p2", "p1"]
    path.unlink()
    assert rejects.read() == []
