"""The files of an export as they are written: rows into JSON lines, shards of a folder, with length and hash."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from results.exports.options import Side
from results.exports.rows import Row

# A shard is closed at the first row beyond this, so that no loader needs to read one huge file.
SHARD_BYTES = 512 << 20


class OutFile(msgspec.Struct, frozen=True, kw_only=True):
    """One written file; `file` is its name in the export's folder."""

    file: str
    side: Side
    rows: int
    tokens: int
    supervised: int
    bytes: int
    sha256: str


class Writer(Protocol):
    """One file of rows, under a hidden name until it is published."""

    def write(self, row: Row) -> None: ...

    def close(self) -> list[OutFile]:
        """Make it safe."""
        ...

    def discard(self) -> None:
        """Let go of it, whatever state it is in; harmless after `close`."""
        ...


class Hashed:
    """A new file that knows its length and its hash; what Arrow writes into as well."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)
        self._sum = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._sum.update(data)
        size = memoryview(data).nbytes
        self.size += size
        return size

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Make it safe."""
        if not self.closed:
            self.closed = True
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())

    def discard(self) -> None:
        self.closed = True
        with suppress(OSError):
            self._file.close()

    def result(self, name: str, side: Side, totals: "Totals") -> OutFile:
        return OutFile(
            file=name,
            side=side,
            rows=totals.rows,
            tokens=totals.tokens,
            supervised=totals.supervised,
            bytes=self.size,
            sha256=self._sum.hexdigest(),
        )


class Totals(msgspec.Struct):
    rows: int = 0
    tokens: int = 0
    supervised: int = 0

    def add(self, row: Row) -> None:
        self.rows += 1
        self.tokens += row.tokens
        self.supervised += row.supervised


class JsonLines:
    """A file of JSON lines. It is made at once, so that one without rows need not be made."""

    def __init__(self, path: Path, name: str, side: Side) -> None:
        self._out = Hashed(path)
        self._name = name
        self._side: Side = side
        self._totals = Totals()

    @property
    def size(self) -> int:
        return self._out.size

    def write(self, row: Row) -> None:
        self._out.write(row.encode())
        self._totals.add(row)

    def close(self) -> list[OutFile]:
        self._out.close()
        return [self._out.result(self._name, self._side, self._totals)]

    def discard(self) -> None:
        self._out.discard()


class Shards:
    """A folder with nothing in it but JSON lines, at most a few hundred megabytes a file."""

    def __init__(self, folder: Path, name: str, side: Side) -> None:
        self._folder = folder
        self._name = name
        self._side: Side = side
        self._open: JsonLines | None = None
        self._done: list[OutFile] = []

    def write(self, row: Row) -> None:
        if self._open is not None and self._open.size >= SHARD_BYTES:
            self._done += self._open.close()
            self._open = None
        if self._open is None:
            shard = f"shard-{len(self._done):05}.jsonl"
            self._open = JsonLines(self._folder / shard, f"{self._name}/{shard}", self._side)
        self._open.write(row)

    def close(self) -> list[OutFile]:
        if self._open is not None:
            self._done += self._open.close()
            self._open = None
        return self._done

    def discard(self) -> None:
        if self._open is not None:
            self._open.discard()
