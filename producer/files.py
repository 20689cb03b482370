"""Prompt files as a stream of rows, shuffled by a seed, in flat memory, each with an id that stays.

The promise: whatever the files hold, a source yields as many rows as `len` says, every id once, and the
same ids in every run, machine and order. Public sets come sorted by topic, and a budget may end a
dataset early: without the shuffle it would be spent on the first topics.
"""

import glob
import random
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from producer import hub
from producer.defects import Defect
from producer.errors import PromptsProblem
from producer.ids import Ordinals, damaged_id, prompt_id, with_ordinal
from producer.packed import Handles
from producer.scan import Piece
from producer.shards import Shard, Signature, of_file, of_hub, signature_of

# Packed and columnar files cannot be read at random places: they are shuffled within a window of this many rows.
SHUFFLE_ROWS = 10_000
SHUFFLE_BYTES = 256 << 20
# What a rejected row that is not JSON shows of itself.
SHOWN_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a prompt file: its `value`, or the `defect` that it has none.

    `position` counts lines (or elements of an array, or rows of a columnar file) of `file` from 1.
    """

    id: str
    raw: bytes
    value: Any
    defect: Defect | None
    file: str
    position: int
    unit: str = "line"

    @property
    def where(self) -> str:
        """The row's place for a message."""
        return f"{self.file}, {self.unit} {self.position}"

    @property
    def shown(self) -> Any:
        """The row as rejected.jsonl keeps it: the value, or the beginning of what could not be read."""
        if self.defect is None:
            return self.value
        return self.raw[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace")[:SHOWN_CHARACTERS]


class PromptSource:
    """All rows of the files that a run file's `prompts` names; each iteration is one pass over them.

    A pass sees what the files held when it began: files that changed, came or went since the last pass
    are indexed anew, and rows that stayed keep their ids. `note` is a sentence for the log where the
    shuffle is not a whole one, else None.
    """

    def __init__(self, prompts: str, seed: int | None, fields: dict[str, Any]) -> None:
        self.prompts = prompts
        self.seed = seed
        self.note: str | None = None
        self._fields = fields
        self._id_path = str(fields.get("id", ""))
        self._shards: list[Shard] = []
        # 24 bytes a row: an index of Python objects would take ten times that.
        self._first_row = array("Q")
        self._offsets = array("Q")
        self._lengths = array("I")
        self._positions = array("I")
        self._ordinals = array("I")
        self._bytes = 0

    @classmethod
    def open(cls, prompts: str, seed: int | None = 0, fields: dict[str, Any] | None = None) -> "PromptSource":
        """Reads the files once: every row is counted and its id made sure to be its own.

        Args:
            prompts: A file, a glob pattern (several files are one dataset, in the order of their names), or
                a data set of the hub.
            seed: Shuffles the rows; None keeps the order of the files.
            fields: The dataset's `fields`: where the ids and a table's columns stand, if not where they
                are looked for.

        Raises:
            PromptsProblem: no such file, nothing in it, or not a file of prompts.
        """
        source = cls(prompts, seed, fields or {})
        source._index(_signed(prompts))
        return source

    def __len__(self) -> int:
        return len(self._ordinals)

    @property
    def shards(self) -> list[Shard]:
        """The files, in the order in which their rows count."""
        return self._shards

    @property
    def paths(self) -> list[Path]:
        return [shard.path for shard in self._shards]

    @property
    def counts(self) -> list[int]:
        """How many rows each of the `shards` has."""
        ends = [*self._first_row[1:], len(self._ordinals)]
        return [end - first for first, end in zip(self._first_row, ends, strict=True)]

    @property
    def repeated(self) -> int:
        """How many rows have an id that a row before them has."""
        return sum(1 for ordinal in self._ordinals if ordinal > 3)

    def __iter__(self) -> Iterator[Row]:
        found = _signed(self.prompts)
        if found != [(shard.path, shard.signature) for shard in self._shards]:
            self._index(found)
        if self._streams:
            return self._stream()
        return self._seek()

    @property
    def _streams(self) -> bool:
        return not all(shard.seekable for shard in self._shards)

    def _index(self, found: "list[tuple[Path, Signature]]") -> None:
        if self.prompts.startswith(hub.SCHEME):
            shards = [of_hub(self.prompts)]
        else:
            shards = [of_file(path, self._fields) for path, _ in found]
        first_row, offsets, positions = array("Q"), array("Q"), array("I")
        lengths, ordinals = array("I"), array("I")
        numbers = Ordinals()
        total = 0
        for shard in shards:
            first_row.append(len(ordinals))
            for piece in shard.pieces():
                own, damaged = self._own_id(shard, piece.raw)
                # A damaged row may stand twice as well; it is told from a good one by its prefix.
                number = numbers.next(own)
                ordinals.append(number << 1 | (0 if damaged else 1))
                offsets.append(piece.offset)
                lengths.append(len(piece.raw))
                positions.append(piece.position)
                total += len(piece.raw)
        if not ordinals:
            raise PromptsProblem(f"{self.prompts} holds no prompts; put one JSON object on each line")
        self._shards, self._first_row, self._bytes = shards, first_row, total
        self._offsets, self._lengths, self._positions, self._ordinals = offsets, lengths, positions, ordinals
        windowed = self._streams and (len(ordinals) > SHUFFLE_ROWS or total > SHUFFLE_BYTES)
        self.note = None
        if windowed and self.seed is not None:
            self.note = (
                f"{self.prompts} is compressed or columnar, so its prompts are shuffled within a window of "
                f"{SHUFFLE_ROWS:,} rows only; save it as plain JSON Lines or CSV for a whole shuffle"
            )

    def _own_id(self, shard: Shard, raw: bytes) -> tuple[str, bool]:
        value = shard.decode(raw)
        if isinstance(value, Defect):
            return damaged_id(raw), True
        return prompt_id(value, self._id_path), False

    def _row(self, index: int, shard: Shard, raw: bytes, position: int) -> Row:
        value = shard.decode(raw)
        defect = value if isinstance(value, Defect) else None
        own = damaged_id(raw) if defect else prompt_id(value, self._id_path)
        ordinal = self._ordinals[index]
        if (ordinal & 1) != (0 if defect else 1):
            raise PromptsProblem(f"{shard.name} was changed while it was being read; leave it alone and start again")
        return Row(
            id=with_ordinal(own, ordinal >> 1),
            raw=raw,
            value=None if defect else value,
            defect=defect,
            file=shard.name,
            position=position,
            unit=shard.unit,
        )

    def _seek(self) -> Iterator[Row]:
        count = len(self._ordinals)
        order = range(count) if self.seed is None else permutation(count, self.seed)
        with Handles() as handles:
            for index in order:
                shard = self._shards[bisect_right(self._first_row, index) - 1]
                raw = handles.read(shard.path, self._offsets[index], self._lengths[index])
                yield self._row(index, shard, raw, self._positions[index])

    def _stream(self) -> Iterator[Row]:
        """Rows in file order through a window; what waits in it are bytes, not values."""
        window: list[tuple[int, Shard, Piece]] = []
        held = 0
        draw = random.Random(self.seed).random
        for index, (shard, piece) in enumerate(chain.from_iterable(map(_with_pieces, self._shards))):
            if index >= len(self._ordinals):
                return  # The file grew: its new rows come with the next pass.
            if self.seed is None:
                yield self._row(index, shard, piece.raw, piece.position)
                continue
            window.append((index, shard, piece))
            held += len(piece.raw)
            while len(window) > SHUFFLE_ROWS or (held > SHUFFLE_BYTES and len(window) > 1):
                chosen = int(draw() * len(window))
                window[chosen], window[-1] = window[-1], window[chosen]
                out, shard_out, piece_out = window.pop()
                held -= len(piece_out.raw)
                yield self._row(out, shard_out, piece_out.raw, piece_out.position)
        for chosen in permutation(len(window), self.seed or 0):
            out, shard_out, piece_out = window[chosen]
            yield self._row(out, shard_out, piece_out.raw, piece_out.position)


def _with_pieces(shard: Shard) -> Iterator[tuple[Shard, Piece]]:
    for piece in shard.pieces():
        yield shard, piece


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
    """The files that a path or pattern names, sorted by name; none for a set of the hub, which is no file.

    Raises:
        PromptsProblem: it names none, a folder, or a place that cannot be read.
    """
    if prompts.startswith(hub.SCHEME):
        hub.check(prompts)
        return []
    if "://" in prompts:
        raise PromptsProblem(f"{prompts} is not on this machine; download it, or name it as hf://owner/name")
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


def _signed(prompts: str) -> "list[tuple[Path, Signature]]":
    if prompts.startswith(hub.SCHEME):
        return [(Path(), (0, 0, 0))]
    return [(path, signature_of(path)) for path in find(prompts)]
