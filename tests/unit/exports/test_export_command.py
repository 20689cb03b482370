"""`tokenmill export` and `tokenmill report` as they are typed, and the report at a run's end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from budget.errors import UserProblem
from results import reporting
from results.errors import DiskFault
from tests.unit.exports.shelf import Shelf, record
from tokenmill import farewell
from tokenmill.cli import cli

RUN_FILE = """
[run]
name = "r"
output = "out"
max_tokens_per_dataset = 1000
[model]
tokenizer = "tokenizer"
[[dataset]]
name = "A1"
prompts = "p"
[[dataset]]
name = "B2"
prompts = "p"
"""


@pytest.fixture(autouse=True)
def no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENMILL_REDIS_URL", raising=False)


@pytest.fixture
def run_toml(shelf: Shelf) -> Path:
    path = shelf.folder / "run.toml"
    path.write_text(RUN_FILE)
    return path


def typed(*arguments: str | Path) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_it_says_what_it_wrote_and_what_it_left_out(shelf: Shelf, run_toml: Path) -> None:
    shelf.put("A1", record("a", output_ids=[1] * 3000), record("b", finish_reason="length"))
    said = typed("export", run_toml, "--format", "specforge", "--finish", "stop")
    assert "A1: 1 rows from 1 of 2 lines; left out: 1 truncated" in said
    assert "out/exports/specforge.jsonl: 1 rows, 3,004 tokens, 3,000 of them supervised" in said
    assert "the longest row has 3,004 tokens, and SpecForge cuts rows at 2,048: set its data.max_length" in said
    assert "out/exports/specforge.manifest.json" in said


def test_as_json_it_prints_the_manifest(shelf: Shelf, run_toml: Path) -> None:
    shelf.put("A1", record("a"))
    shelf.put("B2", record("a", dataset="B2"))
    said = typed("export", run_toml, "--format", "parquet", "--dataset", "B2", "--json", "--output", shelf.folder)
    manifest = json.loads(said)
    assert [part["name"] for part in manifest["datasets"]] == ["B2"]
    assert manifest["outputs"][0]["file"] == "rows.parquet"


def test_a_dataset_that_the_run_has_not_is_named(run_toml: Path) -> None:
    with pytest.raises(UserProblem, match="no dataset C3"):
        typed("export", run_toml, "--format", "specforge", "--dataset", "C3")


def test_report_says_where_it_is(shelf: Shelf, run_toml: Path) -> None:
    shelf.put("A1", record("a"))
    where = shelf.folder / "out" / "report.html"
    assert typed("report", run_toml) == f"report: {where}\n"
    assert where.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("problem", [DiskFault("the disk is full"), ValueError("a fault of ours"), None])
def test_a_report_that_cannot_be_written_does_not_fail_the_run(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    said: list[str] = []
    final: Any = SimpleNamespace(datasets=[SimpleNamespace(name="A1", cap=7)], sglang="real")

    def write(*_: Any, caps: dict[str, int | None], **__: Any) -> Path:
        assert caps == {"A1": 7}
        if problem is not None:
            raise problem
        return Path("report.html")

    monkeypatch.setattr(reporting, "write", write)
    file: Any = SimpleNamespace(config=shelf.config, output=Path())
    farewell.write_report(file, final, said.append, worked=True)
    assert len(said) == 1
    assert str(problem) in said[0] if problem else "report.html" in said[0]
