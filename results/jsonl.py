"""Lines of result files: reading only the few fields that count, fast, one line at a time.

A file may hold lines of an earlier pipeline, which the user put there, so nothing about a line is
taken for granted: what cannot be read is told apart (`broken`, `tokenless`), never an exception.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeGuard

import msgspec

from results import disk

# A longer "line" is a file that is not JSONL; it comes in pieces, so that it cannot fill the memory.
LONGEST = 256 * 1024 * 1024
# Beyond this a number is no count of tokens, and Lua's doubles would no longer hold sums exactly.
MOST_TOKENS = 2**40

# How many lines are read between two calls of `tick`: some milliseconds.
_STRIDE = 256

Tick = Callable[[], None]
Bad = Literal["blank", "broken", "tokenless"]


class Line(msgspec.Struct):
    """What is read of an answer's line. `turns` is 0 in lines of another pipeline."""

    completion_tokens: int
    id: str | int | None = None
    dataset: str | None = None
    turn: int = -1
    turns: int = 0
    finish_reason: Any = None
    output_ids: msgspec.Raw = msgspec.Raw()

    @property
    def is_own(self) -> bool:
        return self.turns >= 1 and self.turn >= 0 and isinstance(self.id, str)

    @property
    def is_cut(self) -> bool:
        """The answer ended at its limit of tokens."""
        reason = self.finish_reason
        if is_object(reason):
            reason = reason.get("type")
        return reason == "length"


class RejectedLine(msgspec.Struct):
    """What is read of a line of rejected.jsonl. `job` stands where the id is not the one the job was made from."""

    id: str
    retried: bool = False
    job: str = ""
    reason: str = ""


_decode = msgspec.json.Decoder(Line).decode
_decode_rejected = msgspec.json.Decoder(RejectedLine).decode


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(offset, line with its newline) of each line; the last one may have none.

    Split at the newline byte alone: a text may hold U+2028 and other ends of lines.
    """
    offset = 0
    for raw in iter(partial(file.readline, LONGEST), b""):
        yield offset, raw
        offset += len(raw)


def numbered(path: Path, tick: Tick | None = None) -> Iterator[tuple[int, int, bytes]]:
    """(line number, offset, line) of each line of a file, which need not be there; `tick` is called now and then."""
    disk.check_regular(path)
    with disk.translated(path):
        try:
            file = path.open("rb", buffering=1 << 20)
        except FileNotFoundError:
            return
        with file:
            for number, (offset, raw) in enumerate(lines(file), start=1):
                if tick is not None and number % _STRIDE == 0:
                    tick()
                yield number, offset, raw


def rejected_lines(path: Path) -> Iterator[RejectedLine]:
    """The lines of rejected.jsonl that can be read."""
    for _, _, raw in numbered(path):
        line = parse_rejected(raw)
        if not isinstance(line, str):
            yield line


def parse(raw: bytes) -> Line | Bad:
    """An answer's line, or why it is none."""
    try:
        line = _decode(raw)
    except (msgspec.DecodeError, RecursionError):
        line = _parse_slowly(raw)
        if isinstance(line, str):
            return line
    return line if 0 < line.completion_tokens <= MOST_TOKENS else "tokenless"


def is_torn(raw: bytes) -> bool:
    """Whether a last line that cannot be read may be half of one of ours: one that a crash or a power cut tore.

    What starts like nothing we write is somebody's file of another kind, and is left alone.
    """
    return raw.lstrip()[:1] in (b"{", b"\0")


def parse_rejected(raw: bytes) -> RejectedLine | Bad:
    """A line of rejected.jsonl, or why it is none."""
    try:
        return _decode_rejected(raw)
    except (msgspec.DecodeError, RecursionError):
        plain = loads(raw)
        if isinstance(plain, str):
            return "broken" if raw.strip() else "blank"
        own, job = plain.get("id"), plain.get("job", "")
        if isinstance(own, str) and isinstance(job, str):
            return RejectedLine(
                id=own, retried=plain.get("retried") is True, job=job, reason=str(plain.get("reason", ""))
            )
        return "tokenless"


def loads(raw: bytes) -> "dict[str, Any] | str":
    """Python's own parser, for what msgspec refuses: lone surrogates, a BOM. A text says what is wrong."""
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return str(error)
    return value if is_object(value) else "it is not an object"


def is_object(value: object) -> "TypeGuard[dict[str, Any]]":
    return isinstance(value, dict)


def own_id(line: Line, raw: bytes) -> str:
    """The line's id: its own, else a hash of its content."""
    if line.id is not None and line.id != "":
        return str(line.id)
    return f"line-{hashlib.blake2b(raw.strip(), digest_size=12).hexdigest()}"


def _parse_slowly(raw: bytes) -> Line | Bad:
    plain = loads(raw)
    if isinstance(plain, str):
        return "broken" if raw.strip() else "blank"
    tokens = plain.get("completion_tokens")
    if not _is_int(tokens):
        return "tokenless"
    own, turn, turns, dataset = plain.get("id"), plain.get("turn"), plain.get("turns"), plain.get("dataset")
    ids = plain.get("output_ids")
    return Line(
        completion_tokens=tokens,
        id=own if isinstance(own, str) or _is_int(own) else None,
        dataset=dataset if isinstance(dataset, str) else None,
        turn=turn if _is_int(turn) else -1,
        turns=turns if _is_int(turns) else 0,
        finish_reason=plain.get("finish_reason"),
        output_ids=msgspec.Raw() if ids is None else msgspec.Raw(json.dumps(ids).encode()),
    )


def _is_int(value: object) -> "TypeGuard[int]":
    return isinstance(value, int) and not isinstance(value, bool)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
