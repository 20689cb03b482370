"""Parquet files as rows: each row as JSON, a batch of them in memory at a time.

pyarrow is an extra and imported when a Parquet file is met: most runs need neither its 100 MB nor its
second of start-up.
"""

import datetime
import decimal
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from producer.defects import is_list, is_object
from producer.errors import PromptsProblem
from producer.scan import Piece

MAGIC = b"PAR1"
BATCH_ROWS = 256


def parquet_rows(path: Path) -> Iterator[Piece]:
    """The file's rows in order; `position` counts them from 1.

    Raises:
        PromptsProblem: pyarrow is not installed, or the file is damaged.
    """
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise PromptsProblem(
            f"{path} is Parquet, which needs pyarrow: pip install pyarrow, or save it as JSON Lines"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield Piece(as_json(row), number, 0)
    except (arrow.ArrowException, OSError) as error:  # pyright: ignore[reportUnknownVariableType]
        reason = str(cast("Exception", error)).splitlines()[0][:200].rstrip(".")
        raise PromptsProblem(f"{path} is a damaged Parquet file ({reason}); copy or download it again") from error


def as_json(row: Any) -> bytes:
    """A typed row as the line that it would be in JSON Lines; NaN, which pandas writes for nothing, is null."""
    return msgspec.json.encode(_plain(row))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_object(value):
        return {str(name): _plain(held) for name, held in value.items()}
    if is_list(value):
        return [_plain(held) for held in value]
    if isinstance(value, tuple):  # an entry of a map column
        return [_plain(held) for held in cast("tuple[Any, ...]", value)]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    return str(value)
