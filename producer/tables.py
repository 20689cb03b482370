"""CSV and TSV files: how one is written, cut into records, and each record a row of texts.

The promise: every record is a row, wherever it may be read from (a record is decoded alone, so a large
table is shuffled as a whole), and no text is changed: quoted newlines, CR, edges and commas stay. Cells
are texts; what they spell (numbers, lists of messages) is judged where it is needed.

Whether the first record is a header: as `header` or `columns` in the dataset's `fields` says; else it is
one if it holds a name that prompts are known by, or one that `fields` maps; else if all its cells look
like names and the second record's do not. Without a header a table has a question and, beside it, an
answer; a wider one needs its `columns` named.
"""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from producer.defects import BOM, Defect
from producer.errors import PromptsProblem
from producer.fields import GUESSED, NAMES
from producer.ids import OWN_IDS
from producer.packed import open_rows, reading
from producer.scan import HEAD_BYTES, MAX_ROW_BYTES, Piece

# What a table's first record is known by as a header, in lower case.
KNOWN = {*NAMES, *GUESSED, *OWN_IDS, "conversations", "system_prompt", "function", "response", "output", "completion"}
UNNAMED = ("question", "answer")

_NAMED = re.compile(r"[A-Za-z_][\w.\-/]{0,63}")
_TABLES = {".csv": b",", ".tsv": b"\t", ".tab": b"\t"}
_QUOTED = {
    mark: re.compile(rb'(?:"(?:[^"]|"")*+("?)[^%b\r\n]*|[^%b\r\n"][^%b\r\n]*|)(?:%b|\r*\n|\r|\Z)' % ((mark,) * 4))
    for mark in (b",", b"\t", b";")
}
_WHOLE_CELL = re.compile(rb'"(?:[^"]|"")*+"(?=\t|\r*\n|\r*\Z)')
_BARE_CELL = re.compile(rb"[^\t\n]*(?:[\t\n]|\Z)")
_END_OF_QUOTE = re.compile(rb'(?:[^"]|"")*+"')


class Table(NamedTuple):
    """How a table is written: between its cells, `mark`; `quoted` if quotes hold cells together."""

    mark: bytes
    quoted: bool
    columns: tuple[str, ...]
    header: bool

    @property
    def name(self) -> str:
        kind = {b",": "CSV", b"\t": "TSV"}.get(self.mark, "CSV with semicolons")
        return kind if self.header else f"{kind} without a header"

    def decode(self, raw: bytes) -> Any:
        """The row of one record, or the `Defect` that it does not fit the table."""
        try:
            cells = _cells(raw, self.mark, self.quoted)
        except UnicodeDecodeError as error:
            return Defect("malformed", f"byte {error.start + 1} of the row is not UTF-8")
        except csv.Error as error:
            return Defect("malformed", f"the row is no record of a table: {error}")
        if len(cells) != len(self.columns):
            cells_met = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
            return Defect("malformed", f"the row has {cells_met}, the table has {len(self.columns)} columns")
        return dict(zip(self.columns, cells, strict=True))


def sniff(path: Path, head: bytes, fields: dict[str, Any]) -> Table | None:
    """The table that the file is, told by its name and its first bytes; None if it is none.

    Raises:
        PromptsProblem: it is a table whose columns nobody can tell.
    """
    by_name = _TABLES.get(next((suffix for suffix in reversed(path.suffixes) if suffix in _TABLES), ""))
    text = head.removeprefix(BOM)
    if b"\0" in text or not text.strip():
        return None
    if text.lstrip()[:1] in (b"{", b"[") and by_name is None:
        return None
    first_line = text.lstrip(b"\r\n").split(b"\n", 1)[0]
    if first_line.lstrip().startswith(b"{") and first_line.rstrip().endswith(b"}"):
        return None  # JSON Lines, whatever the name says
    mark = by_name or b"\t"
    # Semicolons stand where the comma is the decimal sign, and tabs under any name.
    best = max((mark, b",", b"\t", b";"), key=lambda held: len(_QUOTED[held].findall(first_line)))
    if mark != b"\t" or by_name is None:
        mark = best
    quoted = mark != b"\t" or _is_quoted(text)
    records = list(_first_records(text, mark, quoted))
    if not records or (by_name is None and not KNOWN.intersection(cell.strip().lower() for cell in records[0])):
        return None
    return _with_columns(path, mark, quoted, records, fields)


def _with_columns(path: Path, mark: bytes, quoted: bool, records: list[list[str]], fields: dict[str, Any]) -> Table:
    first = records[0]
    named: list[str] | None = fields.get("columns")
    if named is not None:
        if len(named) != len(first):
            raise PromptsProblem(
                f"{path} has {len(first)} columns, `columns` in its fields names {len(named)}; name each"
            )
        # The names may also stand there: then that record is the header.
        return Table(mark, quoted, tuple(named), bool(fields.get("header", first == named)))
    header: bool | None = fields.get("header")
    if header is None:
        header = _is_header(first, records[1] if len(records) > 1 else [], fields)
    if not header:
        if len(first) > len(UNNAMED):
            shown = ", ".join(cell if len(cell) <= 30 else f"{cell[:30]}…" for cell in first[:12])
            raise PromptsProblem(
                f"{path} has {len(first)} columns of unknown names: its first row is {shown!r}. If that is a header, "
                f'say which column is the prompt, fields = {{ prompt = "{first[0][:30]}" }}; if not, name the columns, '
                f'fields = {{ header = false, columns = ["question", "answer", …] }}'
            )
        return Table(mark, quoted, UNNAMED[: len(first)], header=False)
    columns = [cell.strip() for cell in first]
    for name in columns:
        if columns.count(name) > 1:
            raise PromptsProblem(f"{path} has two columns named {name or '(nothing)'}; give each a name of its own")
    for name, column in fields.items():
        if name in NAMES and column not in columns and column.partition(".")[0] not in columns:
            raise PromptsProblem(f"{path} has no column {column}; it has {', '.join(columns)[:200]}")
    return Table(mark, quoted, tuple(columns), header=True)


def _is_header(first: list[str], second: list[str], fields: dict[str, Any]) -> bool:
    mapped = {str(path).partition(".")[0] for name, path in fields.items() if name in NAMES}
    if any(cell.strip().lower() in KNOWN or cell.strip() in mapped for cell in first):
        return True
    return all(map(_NAMED.fullmatch, first)) and not all(map(_NAMED.fullmatch, second))


def records(path: Path, table: Table) -> Iterator[Piece]:
    """The table's records; `position` is the line that a record begins on."""
    with reading(path), open_rows(path) as file:
        pieces = _cut(file, path, table.mark, table.quoted)
        if table.header:
            next(pieces, None)
        yield from pieces


def _cut(file: BinaryIO, path: Path, mark: bytes, quoted: bool) -> Iterator[Piece]:
    offset = number = 0
    held: list[bytes] = []
    size = 0
    began, start = 1, 0
    inside = False
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if not number - 1 and line.startswith(BOM):
            line, offset = line[len(BOM) :], len(BOM)
        if not held:
            began, start, size = number, offset, 0
        held.append(line)
        offset += len(line)
        size += len(line)
        if size > MAX_ROW_BYTES:
            raise PromptsProblem(
                f"{path}, line {began} begins a row with no end within {MAX_ROW_BYTES >> 20} MiB; close its quote"
            )
        if quoted and (inside or b'"' in line):
            inside = _ends_inside(line, mark, inside)
            if inside:
                continue
        raw = b"".join(held).rstrip(b"\r\n")
        held = []
        if raw:
            yield Piece(raw, began, start)
    if held:
        # The unclosed end of a cut file: a row, which will be found malformed.
        yield Piece(b"".join(held).rstrip(b"\r\n"), began, start)


def _ends_inside(line: bytes, mark: bytes, inside: bool) -> bool:
    """Whether the quote that holds a cell is still open where the line ends."""
    at = 0
    cell = _QUOTED[mark]
    if inside:
        close = _END_OF_QUOTE.match(line)
        if close is None:
            return True
        # What follows the quote up to the next mark belongs to the cell.
        at = cell.match(line, close.end()).end()  # pyright: ignore[reportOptionalMemberAccess]
    while at < len(line):
        found = cell.match(line, at)
        if found is None or found.end() == at:
            return False
        if line[at : at + 1] == b'"' and not found.group(1):
            return True
        at = found.end()
    return False


def _cells(raw: bytes, mark: bytes, quoted: bool) -> list[str]:
    text = raw.decode("utf-8")
    if not quoted:
        return text.split(mark.decode())
    csv.field_size_limit(MAX_ROW_BYTES)
    # strict: a quote that closes in mid-cell or never at all is damage, and its text must not be guessed.
    (cells,) = list(csv.reader([text], delimiter=mark.decode(), strict=True)) or [[]]
    return cells


def _first_records(text: bytes, mark: bytes, quoted: bool) -> Iterator[list[str]]:
    for count, piece in enumerate(_cut(io.BytesIO(text), Path(), mark, quoted)):
        if count == 2:
            return
        try:
            yield _cells(piece.raw, mark, quoted)
        except (UnicodeDecodeError, csv.Error):
            return


def _is_quoted(text: bytes) -> bool:
    """Whether quotes hold a TSV's cells together: then every cell that begins with one also ends with one."""
    if not re.search(rb'(?:\A|[\t\n])"', text):
        return False
    at = 0
    while at < len(text):
        if text[at : at + 1] == b'"':
            whole = _WHOLE_CELL.match(text, at)
            if whole is None:
                # The last cell of a long file's beginning may be cut.
                return len(text) >= HEAD_BYTES - len(BOM) and b'"\t' not in text[at + 1 :]
            at = whole.end()
        at = _BARE_CELL.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
    return True
