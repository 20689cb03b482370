"""How an export gets its names, so that they only ever lead to whole files.

Everything is written and fsynced under hidden names, and renamed when all of it is there; the manifest
comes last and says what belongs together. A name that no earlier export has written is never replaced:
`--output` may by mistake name the answers themselves.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from budget.errors import Refused
from results import disk, jsonl
from results.errors import ResultsError
from results.exports.files import OutFile
from results.exports.options import ExportProblem, Place, Side


class ExportTaken(ResultsError, Refused):
    """Another export writes the same files now."""


class Staging:
    """The hidden names of one export, and their way to the real ones. A context manager.

    Raises (entering):
        ExportProblem: something that is not an earlier export has one of the names.
        ExportTaken: another export is writing them.
    """

    def __init__(self, place: Place, sides: Iterable[Side]) -> None:
        self.place = place
        self._sides = tuple(sides)
        self._lock: int | None = None
        self._own: list[str] = []

    def __enter__(self) -> "Staging":
        place = self.place
        with disk.translated(place.folder):
            try:
                place.folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise ExportProblem(f"{place.folder} is not a folder: give another --output") from error
            self._take_lock()
            try:
                self._own = self._earlier()
                self._recover()
                self._refuse_strangers()
                self._clear()
            except BaseException:
                self._release()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()
        self._release()

    def path(self, side: Side) -> Path:
        """Where a side is written before it is published."""
        if not self.place.is_folder:
            return self._hidden(self.place.name(side))
        staged = self._hidden(self.place.stem)
        return staged if side == "all" else staged / side

    def publish(self, files: list[OutFile], manifest: dict[str, Any]) -> None:
        """Give everything its name; the manifest last, by which one knows that it is all there."""
        place = self.place
        if place.is_folder:
            staged, target, old = self._hidden(place.stem), place.folder / place.stem, self._old()
            for folder in (staged, *(path for path in staged.iterdir() if path.is_dir())):
                disk.sync_folder(folder)
            if target.exists():
                target.rename(old)
            try:
                staged.rename(target)
            except OSError:
                self._recover()
                raise
        else:
            for file in files:
                self._hidden(file.file).replace(place.folder / file.file)
        disk.sync_folder(place.folder)
        self._write_manifest(manifest)
        for name in set(self._own) - {file.file for file in files}:
            # A folder was replaced as a whole.
            if not place.is_folder:
                (place.folder / name).unlink(missing_ok=True)

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        assert self._lock is not None
        rest = memoryview(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        while rest:
            rest = rest[os.write(self._lock, rest) :]
        os.fsync(self._lock)
        self._hidden(self.place.manifest.name).replace(self.place.manifest)
        disk.sync_folder(self.place.folder)

    def _take_lock(self) -> None:
        """The manifest's hidden file is the lock, so that no other file is left behind."""
        path = self._hidden(self.place.manifest.name)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise ExportTaken(
                    f"another export writes {self.place.folder / self.place.stem} now: wait for it, or give another "
                    f"--output"
                ) from None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    os.ftruncate(descriptor, 0)
                    self._lock = descriptor
                    return
            # Its owner has published it in between: that was its file, not ours.
            os.close(descriptor)

    def _release(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                path = self._hidden(self.place.manifest.name)
                if os.path.samestat(os.fstat(self._lock), path.stat()):
                    path.unlink()
            os.close(self._lock)
            self._lock = None

    def _earlier(self) -> list[str]:
        """The files of the export that is there, as its manifest has them."""
        try:
            plain = jsonl.loads(self.place.manifest.read_bytes())
        except FileNotFoundError:
            return []
        outputs = cast("Any", "" if isinstance(plain, str) else plain.get("outputs"))
        if not isinstance(outputs, list) or not all(
            jsonl.is_object(entry) and isinstance(entry.get("file"), str) for entry in cast("list[Any]", outputs)
        ):
            raise ExportProblem(f"{self.place.manifest} is not an export's manifest: give another --output")
        names = [str(entry["file"]) for entry in cast("list[dict[str, Any]]", outputs)]
        # A manifest is a file that anybody may have changed: it names nothing outside of its folder.
        return [name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute()]

    def _refuse_strangers(self) -> None:
        place = self.place
        if place.is_folder:
            target = place.folder / place.stem
            found = [path for path in target.rglob("*") if not path.is_dir()] if target.is_dir() else []
            if target.exists() and not target.is_dir():
                found = [target]
        else:
            found = [place.folder / place.name(side) for side in self._sides]
        for path in found:
            if path.exists() and str(path.relative_to(place.folder)) not in self._own:
                raise ExportProblem(
                    f"{path} is there and no export has written it: give another --output, or move it away"
                )

    def _recover(self) -> None:
        """Give the earlier folder its name back where its successor did not come."""
        target = self.place.folder / self.place.stem
        if self.place.is_folder and self._old().exists() and not target.exists():
            self._old().rename(target)

    def _clear(self) -> None:
        """Remove what a killed export left, or this one where it failed."""
        if self.place.is_folder:
            shutil.rmtree(self._hidden(self.place.stem), ignore_errors=True)
            shutil.rmtree(self._old(), ignore_errors=True)
        else:
            for side in get_args(Side):
                self._hidden(self.place.name(side)).unlink(missing_ok=True)

    def _hidden(self, name: str) -> Path:
        return self.place.folder / f".{name}.new"

    def _old(self) -> Path:
        return self.place.folder / f".{self.place.stem}.old"
