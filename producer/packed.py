"""Prompt files as plain bytes, whatever they are packed with: gzip and zstd are told by content, not by name.

A packed file that ends too early is damaged and said to be so: a shard that was cut by a full disk must
never pass for a smaller set.
"""

import gzip
import io
import os
import zlib
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from producer.errors import PromptsProblem

CHUNK_BYTES = 1 << 20
# A set in a thousand shards must not need a thousand file descriptors.
OPEN_FILES = 64
# Rows that follow each other are read together: a call of the system for each costs as much as to parse it.
AHEAD_BYTES = 256 << 10
# Little at a time: a frame of one repeated row unpacks to ten thousand times its size.
PACKED_BYTES = 8 << 10

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Turns what can go wrong while a file is read into a sentence that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PromptsProblem(f"{path} is a damaged gzip file ({error}); copy or download it again") from error
    except zstandard.ZstdError as error:
        raise PromptsProblem(f"{path} is a damaged zstd file ({error}); copy or download it again") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise PromptsProblem(f"{path} cannot be read ({reason}); make it readable for this user") from error


def packing(path: Path) -> str:
    """`gzip`, `zstd`, or nothing."""
    with reading(path), path.open("rb") as file:
        head = file.read(4)
    return "gzip" if head.startswith(_GZIP) else "zstd" if head == _ZSTD else ""


def open_rows(path: Path) -> BinaryIO:
    """The file as uncompressed bytes."""
    packed = packing(path)
    if packed == "gzip":
        return io.BufferedReader(cast("io.RawIOBase", gzip.open(path, "rb")), CHUNK_BYTES)
    if packed == "zstd":
        return io.BufferedReader(_Zstd(path), CHUNK_BYTES)
    return path.open("rb", buffering=CHUNK_BYTES)


class _Zstd(io.RawIOBase):
    """The frames of a zstd file one after another.

    zstandard's own reader ends a cut file without a word; here that is an error, as it is with gzip.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._frame: Any = None
        self._packed = b""
        self._plain = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._plain:
            packed = self._packed or self._file.read(PACKED_BYTES)
            self._packed = b""
            if not packed:
                if self._frame is not None:
                    raise zstandard.ZstdError("it ends too early")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._plain = self._frame.decompress(packed)
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._plain))
        buffer[:count], self._plain = self._plain[:count], self._plain[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class Handles:
    """The last few files that were read from; a file replaced by rename stays the old one for the whole pass."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._block, self._path, self._starts = b"", Path(), 0

    def __enter__(self) -> "Handles":
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._open.values():
            os.close(handle)
        self._open.clear()

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """A row's bytes; fewer where the file ends before."""
        at = offset - self._starts
        if path is not self._path or not 0 <= at <= len(self._block) - length:
            follows = path is self._path and 0 <= at <= len(self._block) + AHEAD_BYTES
            self._block = self._from_file(path, offset, max(length, AHEAD_BYTES) if follows else length)
            self._path, self._starts, at = path, offset, 0
        return self._block[at : at + length]

    def _from_file(self, path: Path, offset: int, length: int) -> bytes:
        with reading(path):
            handle = self._open.get(path)
            if handle is None:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._open[path] = handle
                if len(self._open) > OPEN_FILES:
                    os.close(self._open.popitem(last=False)[1])
            self._open.move_to_end(path)
            return os.pread(handle, length, offset)
