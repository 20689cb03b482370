"""The names of an export: they lead to whole files only, and to no file of somebody else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from budget.errors import Exit
from results.errors import DiskFault
from results.exports.options import ExportProblem, Format
from results.exports.staging import ExportTaken
from results.folder import OutputFolder
from tests.unit.exports.shelf import Shelf, plain_rows, record

CHILD = """
import sys
from pathlib import Path
from results.exports import files
from tests.unit.exports.shelf import Shelf
shelf = Shelf(Path(sys.argv[1]))
write, left = files.JsonLines.write, [3]
def slowly(self, row):
    write(self, row)
    left[0] -= 1
    if not left[0]:
        self._out.flush()
        print("in the middle", flush=True)
        sys.stdin.read()
files.JsonLines.write = slowly
shelf.export(sys.argv[2], split=0.5)
"""


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["specforge", "speculators"])
def test_killed_in_the_middle_it_leaves_the_old_export_and_the_next_one_clears_up(shelf: Shelf, kind: Format) -> None:
    exports = shelf.folder / "out" / "exports"
    shelf.put("A1", *(record(f"p{number}") for number in range(20)))
    shelf.export(kind, split=0.5)
    before = {name: (exports / name).read_bytes() for name in names(exports)}
    shelf.put("A1", *(record(f"q{number}") for number in range(20)))
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(shelf.folder), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "in the middle\n"
        with pytest.raises(ExportTaken, match="another export writes"):
            shelf.export(kind, split=0.5)
        child.send_signal(signal.SIGKILL)
        child.wait(30)
    assert {name: (exports / name).read_bytes() for name in before} == before
    assert any(name.startswith(".") for name in names(exports))
    outcome = shelf.export(kind)
    assert sum(file.rows for file in outcome.files) == 40
    assert names(exports) == {outcome.manifest.name, *(file.file for file in outcome.files)}


def test_a_disk_that_fails_leaves_the_old_export(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    exports = shelf.folder / "out" / "exports"
    shelf.put("A1", record("a"))
    shelf.export()
    before = {name: (exports / name).read_bytes() for name in names(exports)}
    shelf.put("A1", record("b"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFault, match="is full"):
        shelf.export()
    assert {name: (exports / name).read_bytes() for name in names(exports)} == before


def test_a_folder_whose_successor_did_not_come_gets_its_name_back(shelf: Shelf) -> None:
    exports = shelf.folder / "out" / "exports"
    shelf.put("A1", record("a"))
    shelf.export("speculators")
    (exports / "speculators").rename(exports / ".speculators.old")
    with pytest.raises(ExportProblem, match="no row is left"):
        shelf.export("speculators", min_supervised=100)
    assert len(plain_rows(exports / "speculators" / "shard-00000.jsonl")) == 1


def test_an_export_with_other_sides_takes_the_old_ones_away(shelf: Shelf) -> None:
    shelf.put("A1", *(record(f"p{number}") for number in range(20)))
    shelf.export(split=0.5)
    shelf.export()
    assert names(shelf.folder / "out" / "exports") == {"specforge.jsonl", "specforge.manifest.json"}


@pytest.mark.parametrize("kind", ["specforge", "speculators"])
def test_what_no_export_has_written_is_never_replaced(shelf: Shelf, kind: Format) -> None:
    shelf.put("A1", record("a"))
    answers = shelf.answers("A1")
    before = answers.read_bytes()
    with pytest.raises(ExportProblem, match="no export has written it") as raised:
        shelf.export(kind, output=answers if kind == "specforge" else answers.parent)
    assert raised.value.exit_code is Exit.USER
    assert answers.read_bytes() == before
    assert names(shelf.folder / "out") == {"A1/raw_responses.jsonl"}


def test_a_manifest_names_nothing_outside_of_its_folder(shelf: Shelf) -> None:
    shelf.put("A1", record("a"))
    outcome = shelf.export()
    victim = shelf.folder / "victim"
    victim.write_text("mine")
    outcome.manifest.write_text(json.dumps({"outputs": [{"file": "../../victim"}, {"file": str(victim)}]}))
    with pytest.raises(ExportProblem, match="no export has written it"):
        shelf.export()
    (outcome.folder / "specforge.jsonl").unlink()
    shelf.export()
    assert victim.read_text() == "mine"
    outcome.manifest.write_text("{")
    with pytest.raises(ExportProblem, match="not an export's manifest"):
        shelf.export()


def test_a_file_of_ones_own_name(shelf: Shelf) -> None:
    shelf.put("A1", record("a"))
    outcome = shelf.export(output=shelf.folder / "new" / "train.jsonl")
    assert names(shelf.folder / "new") == {"train.jsonl", "train.manifest.json"}
    assert outcome.manifest == shelf.folder / "new" / "train.manifest.json"


def test_a_file_in_the_folders_place_is_a_sentence(shelf: Shelf) -> None:
    shelf.put("A1", record("a"))
    with pytest.raises(ExportProblem, match="is not a folder"):
        shelf.export(output=shelf.answers("A1") / "x.jsonl")


def test_an_export_beside_a_run_needs_no_lock_of_it(shelf: Shelf) -> None:
    shelf.put("A1", record("a"))
    folder = OutputFolder(shelf.config.output)
    folder.prepare([])
    folder.lock()
    try:
        assert len(shelf.rows()) == 1
    finally:
        folder.unlock()


def test_exported_again_it_is_the_same_file(shelf: Shelf) -> None:
    shelf.put("A1", *(record(f"p{number}") for number in range(5)))
    first = shelf.export().files
    assert shelf.export().files == first


def test_a_dataset_named_twice_is_exported_once(shelf: Shelf) -> None:
    shelf.put("A1", record("a"))
    assert len(shelf.rows(datasets=("A1", "A1"))) == 1


def test_the_folder_one_is_in_has_a_name(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.put("A1", record("a"))
    (shelf.folder / "data").mkdir()
    monkeypatch.chdir(shelf.folder / "data")
    shelf.export("speculators", output=Path())
    assert names(shelf.folder / "data") == {"shard-00000.jsonl"}
    assert (shelf.folder / "data.manifest.json").exists()
