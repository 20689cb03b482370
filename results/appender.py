"""A file that only grows, by whole lines, and whose lines count only once they are fsynced.

It remembers the last offset that is safe. When the disk refuses, the file is cut back to there, so
that what a reader finds is whole lines always; nothing is lost by that, since what is not fsynced is
still in Redis. It never writes to a ghost: a file that was deleted, replaced or written by something
else since is noticed before a write, and once more after the fsync.
"""

import os
from contextlib import suppress
from pathlib import Path

from budget import failpoints
from results import disk
from results.errors import FileChanged
from results.index import Tail

# fdatasync writes the size too, and spares the journal the file's times.
_sync = getattr(os, "fdatasync", os.fsync)


class Appender:
    """One result file, open for appending. The file is made by `open`, not before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._identity = (0, 0)
        self._safe = 0
        self._size = 0

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def open(self, tail: Tail | None = None) -> str | None:
        """Open it and mend its end; returns what was cut, as a sentence.

        Raises:
            NotWritable, DiskFault: it cannot be made, read or mended.
        """
        if self._descriptor is not None:
            return None
        disk.check_regular(self.path)
        with disk.translated(self.path):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
            disk.sync_folder(self.path.parent)
            found = os.fstat(self._descriptor)
            self._identity, self._size = (found.st_dev, found.st_ino), found.st_size
            if tail is None:
                tail = Tail(unended=self._size > 0 and os.pread(self._descriptor, 1, self._size - 1) != b"\n")
            return self._mend(tail)

    def append(self, data: bytes) -> None:
        """Write whole lines. They are not safe before `sync`.

        Raises:
            FileChanged: it is not the file that was opened; nothing was written.
            NotWritable, DiskFault: the file has been cut back to what was safe.
        """
        self.open()
        self._check()
        assert self._descriptor is not None
        try:
            if failpoints.ACTIVE:
                half = (data.rfind(b"\n", 0, -1) + len(data)) // 2  # the middle of the last line
                self._write(data[:half])
                failpoints.hit("mid_sink_write")
                data = data[half:]
            self._write(data)
        except OSError as error:
            self._cut_back()
            raise disk.fault(self.path, error) from error

    def sync(self) -> None:
        """Make safe what was appended.

        Raises:
            FileChanged: the file went away meanwhile.
            NotWritable, DiskFault: as `append`. After a failed fsync nobody knows what the disk holds: it
                is cut back, and the next start reads the file anew.
        """
        if self._descriptor is None or self._size == self._safe:
            return
        try:
            _sync(self._descriptor)
        except OSError as error:
            self._cut_back()
            raise disk.fault(self.path, error) from error
        self._check()
        self._safe = self._size

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        rest = memoryview(data)
        while rest:
            written = os.write(self._descriptor, rest)
            self._size += written
            rest = rest[written:]

    def _mend(self, tail: Tail) -> str | None:
        assert self._descriptor is not None
        said: str | None = None
        if tail.cut is not None:
            said = f"cut {tail.why} (line {tail.number}, {self._size - tail.cut:,} bytes) from the end of {self.path}"
            os.ftruncate(self._descriptor, tail.cut)
            self._size = tail.cut
            os.fsync(self._descriptor)
        elif tail.unended:
            self._size += os.write(self._descriptor, b"\n")
            os.fsync(self._descriptor)
        self._safe = self._size
        return said

    def _check(self) -> None:
        """See that the name still leads to the open file, and that nobody else wrote to it."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise FileChanged(
                f"{self.path} was deleted while the collector wrote to it: put it back or leave it away, and run the "
                f"job again; what it held and is gone will be generated anew"
            ) from None
        except OSError as error:
            raise disk.fault(self.path, error) from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise FileChanged(
                f"{self.path} was replaced by another file while the collector wrote to it: leave the right one there "
                f"and run the job again"
            )
        if found.st_size != self._size:
            raise FileChanged(
                f"{self.path} was changed by something else while the collector wrote to it ({self._size:,} bytes "
                f"expected, {found.st_size:,} found): let nothing else write there, and run the job again"
            )

    def _cut_back(self) -> None:
        assert self._descriptor is not None
        # Where even this fails the next start cuts the torn line.
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._safe)
            self._size = self._safe
            os.fsync(self._descriptor)
