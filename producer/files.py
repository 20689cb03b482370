"""Prompt files as a stream of rows, shuffled by a seed, in flat memory, each with an id that stays.

The promise: whatever the files hold, a source yields as many rows as `len` says, every id once, and the
same ids in every run, machine and order. Public sets come sorted by topic, and a budget may end a
dataset early: without the shuffle it would be spent on the first topics.
"""

import glob
import os
import random
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from producer.defects import Defect, decode
from producer.errors import PromptsProblem
from producer.ids import Ordinals, damaged_id, prompt_id, with_ordinal
from producer.scan import Piece, is_gzip, layout, pieces, reading

# Compressed files cannot be read at random places: they are shuffled within a window of this many rows.
SHUFFLE_ROWS = 10_000
SHUFFLE_BYTES = 256 << 20
# A set in a thousand shards must not need a thousand file descriptors.
OPEN_FILES = 64
# What a rejected row that is not JSON shows of itself.
SHOWN_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a prompt file: its `value`, or the `defect` that it is not JSON.

    `position` counts lines (or elements of an array) of `file` from 1.
    """

    id: str
    raw: bytes
    value: Any
    defect: Defect | None
    file: str
    position: int
    element: bool = False

    @property
    def where(self) -> str:
        """The row's place for a message."""
        return f"{self.file}, {'element' if self.element else 'line'} {self.position}"

    @property
    def shown(self) -> Any:
        """The row as rejected.jsonl keeps it: the value, or the beginning of what could not be read."""
        if self.defect is None:
            return self.value
        return self.raw[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace")[:SHOWN_CHARACTERS]


class _File(NamedTuple):
    path: Path
    compressed: bool
    element: bool
    signature: tuple[int, int, int]


class PromptSource:
    """All rows of the files that a run file's `prompts` names; each iteration is one pass over them.

    A pass sees what the files held when it began: files that changed, came or went since the last pass
    are indexed anew, and rows that stayed keep their ids. `note` is a sentence for the log where the
    shuffle is not a whole one, else None.
    """

    def __init__(self, prompts: str, seed: int | None) -> None:
        self.prompts = prompts
        self.seed = seed
        self.note: str | None = None
        self._files: list[_File] = []
        # 24 bytes a row: an index of Python objects would take ten times that.
        self._first_row = array("Q")
        self._offsets = array("Q")
        self._lengths = array("I")
        self._positions = array("I")
        self._ordinals = array("I")
        self._bytes = 0

    @classmethod
    def open(cls, prompts: str, seed: int | None = 0) -> "PromptSource":
        """Reads the files once: every row is counted and its id made sure to be its own.

        Args:
            prompts: A file or a glob pattern; several files are one dataset, in the order of their names.
            seed: Shuffles the rows; None keeps the order of the files.

        Raises:
            PromptsProblem: no such file, nothing in it, or not a file of prompts.
        """
        source = cls(prompts, seed)
        source._index(_signed(find(prompts)))
        return source

    def __len__(self) -> int:
        return len(self._ordinals)

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self._files]

    def __iter__(self) -> Iterator[Row]:
        found = _signed(find(self.prompts))
        if found != [(file.path, file.signature) for file in self._files]:
            self._index(found)
        if self._streams:
            return self._stream()
        return self._seek()

    @property
    def _streams(self) -> bool:
        return any(file.compressed for file in self._files)

    def _index(self, found: list[tuple[Path, tuple[int, int, int]]]) -> None:
        files = [_File(path, is_gzip(path), layout(path) != "lines", signature) for path, signature in found]
        first_row, offsets, positions = array("Q"), array("Q"), array("I")
        lengths, ordinals = array("I"), array("I")
        numbers = Ordinals()
        total = 0
        for file in files:
            first_row.append(len(ordinals))
            for piece in pieces(file.path):
                own, damaged = _own_id(piece.raw)
                # A damaged row may stand twice as well; it is told from a good one by its prefix.
                number = numbers.next(own)
                ordinals.append(number << 1 | (0 if damaged else 1))
                offsets.append(piece.offset)
                lengths.append(len(piece.raw))
                positions.append(piece.position)
                total += len(piece.raw)
        if not ordinals:
            raise PromptsProblem(f"{self.prompts} holds no prompts; put one JSON object on each line")
        self._files, self._first_row, self._bytes = files, first_row, total
        self._offsets, self._lengths, self._positions, self._ordinals = offsets, lengths, positions, ordinals
        windowed = self._streams and (len(ordinals) > SHUFFLE_ROWS or total > SHUFFLE_BYTES)
        self.note = None
        if windowed and self.seed is not None:
            self.note = (
                f"{self.prompts} is compressed, so its prompts are shuffled within a window of "
                f"{SHUFFLE_ROWS:,} rows only; unpack it for a whole shuffle"
            )

    def _row(self, index: int, file: _File, raw: bytes, position: int) -> Row:
        value = decode(raw)
        defect = value if isinstance(value, Defect) else None
        own = damaged_id(raw) if defect else prompt_id(value)
        ordinal = self._ordinals[index]
        if (ordinal & 1) != (0 if defect else 1):
            raise PromptsProblem(f"{file.path} was changed while it was being read; leave it alone and start again")
        return Row(
            id=with_ordinal(own, ordinal >> 1),
            raw=raw,
            value=None if defect else value,
            defect=defect,
            file=str(file.path),
            position=position,
            element=file.element,
        )

    def _seek(self) -> Iterator[Row]:
        count = len(self._ordinals)
        order = range(count) if self.seed is None else permutation(count, self.seed)
        with _Handles() as handles:
            for index in order:
                file = self._files[bisect_right(self._first_row, index) - 1]
                raw = handles.read(file.path, self._offsets[index], self._lengths[index])
                yield self._row(index, file, raw, self._positions[index])

    def _stream(self) -> Iterator[Row]:
        """Rows in file order through a window; what waits in it are bytes, not values."""
        window: list[tuple[int, _File, Piece]] = []
        held = 0
        draw = random.Random(self.seed).random
        for index, (file, piece) in enumerate(chain.from_iterable(map(_with_pieces, self._files))):
            if index >= len(self._ordinals):
                return  # The file grew: its new rows come with the next pass.
            if self.seed is None:
                yield self._row(index, file, piece.raw, piece.position)
                continue
            window.append((index, file, piece))
            held += len(piece.raw)
            while len(window) > SHUFFLE_ROWS or (held > SHUFFLE_BYTES and len(window) > 1):
                chosen = int(draw() * len(window))
                window[chosen], window[-1] = window[-1], window[chosen]
                out, file_out, piece_out = window.pop()
                held -= len(piece_out.raw)
                yield self._row(out, file_out, piece_out.raw, piece_out.position)
        for chosen in permutation(len(window), self.seed or 0):
            out, file_out, piece_out = window[chosen]
            yield self._row(out, file_out, piece_out.raw, piece_out.position)


def _with_pieces(file: _File) -> Iterator[tuple[_File, Piece]]:
    for piece in pieces(file.path):
        yield file, piece


def _own_id(raw: bytes) -> tuple[str, bool]:
    value = decode(raw)
    if isinstance(value, Defect):
        return damaged_id(raw), True
    return prompt_id(value), False


def permutation(count: int, seed: int) -> "array[int]":
    """The numbers below `count` in an order that depends on nothing but the seed.

    `random.random` of a seed is promised to stay the same in every version of Python; `shuffle` is not.
    """
    order = array("I", range(count))
    draw = random.Random(seed).random
    for last in range(count - 1, 0, -1):
        chosen = int(draw() * (last + 1))
        order[last], order[chosen] = order[chosen], order[last]
    return order


def find(prompts: str) -> list[Path]:
    """The files that a path or pattern names, sorted by name.

    Raises:
        PromptsProblem: it names none, a folder, or a place that is not on this machine.
    """
    if prompts.startswith("hf://"):
        raise PromptsProblem(f"{prompts} is on the Hugging Face hub; download it and name the files instead")
    literal = Path(prompts)
    if literal.is_dir():
        raise PromptsProblem(f"{prompts} is a folder; name its files, for example {literal / '*.jsonl'}")
    if literal.exists():
        return [literal]
    if not glob.has_magic(prompts):
        raise PromptsProblem(f"there is no prompt file {prompts}; correct the dataset's `prompts`")
    # Not Path.glob: like a shell, glob.glob leaves hidden files (editors' and downloads' leavings) out.
    matches = (Path(match) for match in glob.glob(prompts, recursive=True))  # noqa: PTH207
    files = sorted(path for path in matches if path.is_file())
    if not files:
        raise PromptsProblem(f"no file matches {prompts}; correct the dataset's `prompts`")
    return files


def _signed(paths: list[Path]) -> list[tuple[Path, tuple[int, int, int]]]:
    signed: list[tuple[Path, tuple[int, int, int]]] = []
    for path in paths:
        with reading(path):
            stat = path.stat()
        signed.append((path, (stat.st_ino, stat.st_size, stat.st_mtime_ns)))
    return signed


class _Handles:
    """The last few files that were read from; a file replaced by rename stays the old one for the whole pass."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def __enter__(self) -> "_Handles":
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._open.values():
            os.close(handle)
        self._open.clear()

    def read(self, path: Path, offset: int, length: int) -> bytes:
        with reading(path):
            handle = self._open.get(path)
            if handle is None:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._open[path] = handle
                if len(self._open) > OPEN_FILES:
                    os.close(self._open.popitem(last=False)[1])
            self._open.move_to_end(path)
            return os.pread(handle, length, offset)
