"""The output folder and its files: whose they are, and what the disk's refusals become."""

import errno
import os
from pathlib import Path

import pytest

from budget.errors import Exit
from budget.runbook import Changed
from results import appender as appending
from results import disk
from results.appender import Appender
from results.errors import BadFolder, DiskFault, FileChanged, FolderTaken, NotWritable, ResultsError
from results.folder import OutputFolder
from results.index import Tail


def test_each_problem_has_its_exit_code() -> None:
    codes = [kind.exit_code for kind in (BadFolder, FolderTaken, NotWritable, DiskFault, FileChanged)]
    assert codes == [Exit.USER, Exit.REFUSED, Exit.OUTSIDE, Exit.OUTSIDE, Exit.OUTSIDE]


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, DiskFault, "is full"),
        (errno.EDQUOT, DiskFault, "is full"),
        (errno.EFBIG, DiskFault, "ulimit -f"),
        (errno.EIO, DiskFault, "check the disk"),
        (errno.EROFS, NotWritable, "read-only"),
        (errno.EACCES, NotWritable, "may not"),
    ],
)
def test_what_the_disk_says_is_one_sentence(number: int, kind: type, words: str, tmp_path: Path) -> None:
    problem = disk.fault(tmp_path / "f", OSError(number, os.strerror(number)))
    assert type(problem) is kind
    assert words in str(problem) and str(tmp_path / "f") in str(problem)


def test_a_second_collector_is_refused_and_told_whom_it_meets(tmp_path: Path) -> None:
    first, second = OutputFolder(tmp_path / "out"), OutputFolder(tmp_path / "out")
    first.prepare(["A1"])
    assert not second.is_locked()
    first.lock()
    assert second.is_locked()
    with pytest.raises(FolderTaken, match=f"process {os.getpid()} already collects"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_folder_remembers_its_run_and_what_its_answers_were_made_under(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "out")
    folder.prepare(["A1"])
    state = folder.check("one", {"A1": {"sampling": "{}"}})
    folder.save(type(state)(id=state.id, run="one", fingerprints={"A1": {"sampling": "{}"}}))
    assert folder.check("one", {"A1": {"sampling": "{}", "new": "x"}, "B2": {}}).id == state.id
    with pytest.raises(Changed, match="sampling"):
        folder.check("one", {"A1": {"sampling": "{1}"}})
    with pytest.raises(BadFolder, match="run 'one', not of 'two'"):
        folder.check("two", {})


def test_a_damaged_state_is_a_sentence(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    folder.prepare([])
    (folder.own / "folder.json").write_text('{"id": 3')
    with pytest.raises(BadFolder, match="damaged"):
        folder.state()
    (folder.own / "folder.json").write_text('{"id": "x", "run": "r", "schema": 2}')
    with pytest.raises(BadFolder, match="another version"):
        folder.state()


def test_a_file_in_the_folders_place_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(BadFolder, match="a file is in its place"):
        OutputFolder(tmp_path / "out").prepare(["A1"])


def test_replacing_a_file_leaves_the_old_one_where_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    disk.replace(path, [b"old\n"])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFault):
        disk.replace(path, [b"new\n"])
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def opened(path: Path) -> Appender:
    appender = Appender(path)
    appender.open(Tail())
    appender.append(b"one\n")
    appender.sync()
    return appender


def test_a_failed_fsync_cuts_the_file_back_to_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = opened(tmp_path / "f")

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(appending, "_sync", broken)
    appender.append(b"two\n")
    with pytest.raises(DiskFault, match="Input/output error"):
        appender.sync()
    assert (tmp_path / "f").read_bytes() == b"one\n"


def test_a_short_write_before_the_disk_is_full_is_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = opened(tmp_path / "f")
    write = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:8])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(DiskFault, match="is full"):
        appender.append(b"two and more\n")
    assert (tmp_path / "f").read_bytes() == b"one\n"


@pytest.mark.parametrize("change", ["delete", "replace", "write", "truncate"])
def test_it_never_writes_to_a_file_that_is_another(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f"
    appender = opened(path)
    if change in ("delete", "replace"):
        path.unlink()
    if change == "replace":
        path.write_bytes(b"one\n")
    if change == "write":
        path.write_bytes(b"one\nmore\n")
    if change == "truncate":
        path.write_bytes(b"")
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(FileChanged, match="run the") as raised:
        appender.append(b"two\n")
    assert isinstance(raised.value, ResultsError)
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_file_deleted_between_write_and_fsync_is_noticed(tmp_path: Path) -> None:
    appender = opened(tmp_path / "f")
    appender.append(b"two\n")
    (tmp_path / "f").unlink()
    with pytest.raises(FileChanged, match="was deleted"):
        appender.sync()
