"""Cuts a prompt file into rows without holding it: JSON Lines, a JSON array, or objects one after another.

What a file is, its content says, never its name: public prompt sets have `.json` files that are JSON
Lines and `.jsonl` files that are not. A row is cut by structure alone; whether it is good JSON is judged
later, one by one, so that a broken row costs itself and not the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from producer.defects import BOM, Defect, decode
from producer.errors import PromptsProblem
from producer.packed import CHUNK_BYTES, open_rows, reading

Layout = Literal["lines", "array", "objects"]

HEAD_BYTES = 1 << 20
# No prompt is that long. An unclosed quote in an array would otherwise read the rest of the file into memory.
MAX_ROW_BYTES = 256 << 20

_BLANK = b" \t\r\n"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "compressed with xz",
    b"BZh": "compressed with bzip2",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
# A whole string, or (with an empty group) one that goes on in the next chunk; else one structural character.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[{}\[\],]', re.DOTALL)


class Piece(NamedTuple):
    """One row's bytes. `position` counts lines or elements from 1; `offset` is in the uncompressed file."""

    raw: bytes
    position: int
    offset: int


def head_of(path: Path) -> bytes:
    """The file's first bytes, uncompressed.

    Raises:
        PromptsProblem: it is unreadable, or of a kind that nothing here reads.
    """
    with reading(path), open_rows(path) as file:
        head = file.read(HEAD_BYTES)
    for magic, kind in _FOREIGN.items():
        if head.startswith(magic):
            raise PromptsProblem(
                f"{path} is {kind}; save it as JSON Lines, CSV or TSV in UTF-8 (plain, gzip or zstd), or as Parquet"
            )
    return head


def layout(path: Path, head: bytes | None = None) -> Layout:
    """How a JSON file's rows lie in it; `head` are its first bytes where they are known.

    Raises:
        PromptsProblem: it is unreadable, or of a kind that holds no JSON.
    """
    head = head_of(path) if head is None else head
    head = head.removeprefix(BOM).lstrip(_BLANK)
    if head.startswith(b"["):
        return "array"
    if head.startswith(b"{"):
        first, _, rest = head.partition(b"\n")
        rest = rest.lstrip(_BLANK)
        # The first line of an indented object is not whole, and its next line is not an object.
        indented = rest.startswith((b'"', b"}")) and isinstance(decode(first.strip(_BLANK)), Defect)
        return "objects" if indented else "lines"
    lines = [line.lstrip(_BLANK) for line in head.split(b"\n")]
    if b"\0" in head or (head and not any(line.startswith(b"{") for line in lines)):
        raise PromptsProblem(
            f"{path} is not JSON; save its prompts as JSON Lines, one object a line, or name it .csv or .tsv if it "
            f"is a table"
        )
    return "lines"


def pieces(path: Path, cut: Layout | None = None) -> Iterator[Piece]:
    """The file's rows in file order; blank lines are no rows."""
    cut = cut or layout(path)
    with reading(path), open_rows(path) as file:
        yield from _lines(file, path) if cut == "lines" else _values(file, path, in_array=cut == "array")


def _lines(file: BinaryIO, path: Path) -> Iterator[Piece]:
    offset = number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            raise PromptsProblem(f"{path}, line {number} is longer than {MAX_ROW_BYTES >> 20} MiB; split or remove it")
        raw = line.strip(_BLANK)
        if raw and raw != BOM:
            yield Piece(raw, number, offset + _indent(line))
        offset += len(line)


def _values(file: BinaryIO, path: Path, *, in_array: bool) -> Iterator[Piece]:
    """Elements of an array, or objects that follow one another, found by brackets outside strings."""
    base = 1 if in_array else 0
    buffer = b""
    origin = number = depth = start = at = 0
    ended = False
    while True:
        # As much again as is held, so that a long row is not searched again and again from its start.
        chunk = file.read(max(CHUNK_BYTES, len(buffer)))
        buffer = buffer[start:] + chunk
        origin, at, start = origin + start, at - start, 0
        while not ended and (token := _TOKEN.search(buffer, at)):
            mark = token.group()
            if mark[0] == 0x22:
                if not token.group(1):
                    at = token.start()
                    break
                at = token.end()
                continue
            at = token.end()
            cut = -1
            if mark in b"{[":
                depth += 1
                if in_array and depth == 1:
                    start = at
            elif mark == b",":
                cut = token.start() if depth == base else -1
            elif depth == base == 1 and mark == b"]":
                cut, ended = token.start(), True
            elif depth > base:
                depth -= 1
                cut = at if depth == base == 0 else -1
            if cut >= 0:
                element = buffer[start:cut]
                raw = element.strip(_BLANK)
                if raw:
                    number += 1
                    yield Piece(raw, number, origin + start + _indent(element))
                start = at
        else:
            at = len(buffer)
        if not chunk:
            break
        if len(buffer) - start > MAX_ROW_BYTES:
            raise PromptsProblem(
                f"{path}, element {number + 1} has no end within {MAX_ROW_BYTES >> 20} MiB; close its quote or bracket"
            )
    element = buffer[start:]
    raw = element.strip(_BLANK)
    if raw:
        # The unclosed end of a cut file, or text after the array: one row, which will be found malformed.
        yield Piece(raw, number + 1, origin + start + _indent(element))


def _indent(text: bytes) -> int:
    """How many blanks stand before the first other byte; to search for the row itself takes as long as to parse it."""
    return len(text) - len(text.lstrip(_BLANK))
