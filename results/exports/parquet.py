"""Rows of tokens as one Parquet file; pyarrow is imported only when one is written.

The columns are those of the JSON lines. Ids are int32 and masks int8, as Hugging Face's own tokenized
sets have them.
"""

import importlib
from array import array
from pathlib import Path
from typing import Any

from results.exports.files import Hashed, OutFile, Totals
from results.exports.options import ExportProblem, Side
from results.exports.rows import Row, TokenRow

# A row group holds at least so many tokens: some megabytes of memory.
_GROUP_TOKENS = 2_000_000
_TYPES = {str: "string", bool: "bool_", int: "int64", float: "float64"}


def require() -> Any:
    """pyarrow.

    Raises:
        ExportProblem: it is not installed.
    """
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ExportProblem("Parquet needs pyarrow: pip install pyarrow") from error


class ParquetRows:
    """One Parquet file, in groups of rows. Used as `files.JsonLines` is."""

    def __init__(self, path: Path, name: str, side: Side) -> None:
        self._arrow = require()
        self._out = Hashed(path)
        self._name = name
        self._side: Side = side
        self._totals = Totals()
        self._rows: list[TokenRow] = []
        self._waiting = 0
        self._writer: Any = None

    def write(self, row: Row) -> None:
        assert isinstance(row, TokenRow)
        self._totals.add(row)
        self._rows.append(row)
        self._waiting += row.tokens
        if self._waiting >= _GROUP_TOKENS:
            self._flush()

    def close(self) -> list[OutFile]:
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        self._out.close()
        return [self._out.result(self._name, self._side, self._totals)]

    def discard(self) -> None:
        self._out.discard()

    def _flush(self) -> None:
        arrow, rows = self._arrow, self._rows
        self._rows, self._waiting = [], 0
        columns: dict[str, Any] = {}
        for name, first in rows[0].columns.items():
            kind = getattr(arrow, _TYPES[type(first)])()
            columns[name] = arrow.array([row.columns[name] for row in rows], kind)
        offsets, ids, mask = array("i", [0]), array("i"), bytearray()
        for row in rows:
            ids.extend(row.ids.numbers())
            mask += bytes(row.unsupervised) + b"\1" * row.supervised
            offsets.append(len(ids))
        for name, kind, values in (("input_ids", arrow.int32(), ids), ("loss_mask", arrow.int8(), mask)):
            flat = arrow.Array.from_buffers(kind, len(values), [None, arrow.py_buffer(values)])
            starts = arrow.Array.from_buffers(arrow.int32(), len(offsets), [None, arrow.py_buffer(offsets)])
            columns[name] = arrow.ListArray.from_arrays(starts, flat)
        table = arrow.table(columns)
        if self._writer is None:
            self._writer = arrow.parquet.ParquetWriter(self._out, table.schema, compression="zstd")
        self._writer.write_table(table)
