"""The output folder: where each file is, whose folder it is, and that one process writes into it.

The folder knows its run, and for each dataset what its answers are made under, so that it refuses to
mix two kinds of answers in one file even where Redis has forgotten everything. That state lives in
`.tokenmill/`, away from the data: trainers read every JSON file of a folder they are given.
"""

import fcntl
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import redis

from budget import runbook
from results import disk
from results.errors import BadFolder, DiskFault, FolderTaken, NotWritable, ResultsError


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset's cap as Redis had it last, and what the run file said then; None: no cap."""

    cap: int | None
    file: int | None


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """How many prompts a dataset's file has, and whether the producer found nothing left to queue."""

    inputs: int
    exhausted: bool


class FolderState(msgspec.Struct, frozen=True, kw_only=True):
    """What `folder.json` holds. `facts` is what the run's parts noted in Redis, such as the tokenizer's facts.

    `caps` are there because one that was set by hand stands nowhere else: a Redis that was lost would
    fall back to the run file's. `prompts` is for who looks at the files alone.
    """

    id: str
    run: str
    fingerprints: dict[str, dict[str, str]] = {}
    facts: dict[str, str] = {}
    caps: dict[str, Cap] = {}
    prompts: dict[str, Prompts] = {}
    schema: int = 1

    def cap(self, dataset: str, in_file: int | None) -> int | None:
        """The cap that holds: the one that Redis had, unless the run file says something new since."""
        known = self.caps.get(dataset)
        return in_file if known is None or known.file != in_file else known.cap


class OutputFolder:
    """The folder's paths and state. Making one touches nothing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.own = self.path / ".tokenmill"
        self._lock: int | None = None

    def answers(self, dataset: str) -> Path:
        return self.path / dataset / "raw_responses.jsonl"

    def rejected(self, dataset: str) -> Path:
        return self.path / dataset / "rejected.jsonl"

    def dropped(self, dataset: str) -> Path:
        return self.path / dataset / "dropped.jsonl"

    def quarantine(self, dataset: str) -> Path:
        return self.path / dataset / "quarantine.jsonl"

    def pieces(self, digest: str) -> Path:
        return self.own / f"pieces-{digest}"

    def prepare(self, datasets: Iterable[str]) -> None:
        """Make the folders that are missing.

        Raises:
            BadFolder: something else has such a name.
            NotWritable, DiskFault: they cannot be made.
        """
        for folder in (self.path, self.own, *(self.path / name for name in datasets)):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise BadFolder(
                    f"cannot make the folder {folder}: a file is in its place; give another `output` in the run file"
                ) from error
            except OSError as error:
                raise _unusable(folder, error) from error
            if not os.access(folder, os.W_OK | os.X_OK):
                raise _unusable(folder, PermissionError(13, "Permission denied"))
        with disk.translated(self.path):
            disk.sync_folder(self.path)

    def lock(self) -> None:
        """Be the one process that writes here, until `unlock` or this process' end.

        Raises:
            FolderTaken: another process is.
        """
        path = self.own / "lock"
        disk.check_regular(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            taken = self._taken(descriptor)
            os.close(descriptor)
            raise taken from None
        except OSError as error:
            os.close(descriptor)
            raise _unusable(path, error) from error
        self._lock = descriptor

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _taken(self, descriptor: int) -> FolderTaken:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "?"
        return FolderTaken(
            f"process {owner} already collects into {self.path}: stop it first, or give this run another `output`"
        )

    def refuse_if_taken(self) -> None:
        """Only look whether a process collects into the folder now.

        Raises:
            FolderTaken: one does.
        """
        try:
            descriptor = os.open(self.own / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise self._taken(descriptor) from None
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether a process collects into the folder now."""
        try:
            self.refuse_if_taken()
        except FolderTaken:
            return True
        return False

    def state(self) -> FolderState | None:
        """What the folder knows of itself; None where nothing was ever collected into it.

        Raises:
            BadFolder: its state is damaged, or of a newer version.
        """
        path = self.own / "folder.json"
        disk.check_regular(path)
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise disk.fault(path, error) from error
        try:
            state = msgspec.json.decode(text, type=FolderState)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFolder(
                f"{path} is damaged ({error}): delete it, free the database with `tokenmill reset`, and run again with "
                f"the run file that made the answers; they stay"
            ) from error
        if state.schema != FolderState.__struct_defaults__[-1]:
            raise BadFolder(
                f"{path} was written by another version of Tokenmill (schema {state.schema}): use that version"
            )
        return state

    def refuse_another(self, connection: "redis.Redis") -> None:
        """Refuse a Redis that another folder's run has.

        Raises:
            AnotherRun: it is another's.
            BadFolder: the folder's state is damaged, or of a newer version.
            RedisAway, RedisRefuses: it cannot be asked.
        """
        state = self.state()
        runbook.refuse_another(runbook.published(connection), None if state is None else state.id)

    def cap(self, dataset: str, in_file: int | None) -> int | None:
        """A dataset's cap as far as the folder knows it; the run file's where it knows none.

        Raises:
            BadFolder: its state is damaged, or of a newer version.
        """
        state = self.state()
        return in_file if state is None else state.cap(dataset, in_file)

    def prompts(self, dataset: str) -> Prompts | None:
        """What the folder knows of a dataset's prompts; None where they were never counted.

        Raises:
            BadFolder: its state is damaged, or of a newer version.
        """
        state = self.state()
        return None if state is None else state.prompts.get(dataset)

    def check(self, run: str, fingerprints: Mapping[str, Mapping[str, str]]) -> FolderState:
        """The folder's state, checked to be this run's; a new folder becomes it.

        Raises:
            BadFolder: it is another run's.
            Changed: a dataset's answers were made under something else.
        """
        state = self.state()
        if state is None:
            state = FolderState(id=secrets.token_hex(8), run=run)
            self.save(state)
            return state
        if state.run != run:
            raise BadFolder(
                f"{self.path} holds the answers of run {state.run!r}, not of {run!r}: give this run another `output`, "
                f"or its name back"
            )
        for dataset, fingerprint in fingerprints.items():
            if found := runbook.differences(state.fingerprints.get(dataset, {}), fingerprint):
                raise runbook.changed(dataset, found)
        return state

    def save(self, state: FolderState) -> None:
        disk.replace(self.own / "folder.json", [msgspec.json.format(msgspec.json.encode(state)), b"\n"])


def _unusable(path: Path, error: OSError) -> ResultsError:
    problem = disk.fault(path, error)
    if isinstance(problem, NotWritable):
        return problem
    with suppress(OSError):
        if path.exists() and not path.is_dir() and path.name != "lock":
            return BadFolder(f"{path} is not a folder: give another `output` in the run file")
    return DiskFault(str(problem))
