"""One part of a dataset's prompts: a file of any format, or a set of the hub, as pieces that become rows.

What a file is, its content says; a name counts only for tables, whose content says little.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from producer import columns, hub, scan, tables
from producer.defects import decode
from producer.packed import packing, reading
from producer.scan import Piece

Signature = tuple[int, int, int]


class Shard(NamedTuple):
    """`seekable`: a piece can be read again alone, at its offset. `unit` is what its positions count."""

    name: str
    path: Path
    format: str
    seekable: bool
    unit: str
    signature: Signature
    pieces: Callable[[], Iterator[Piece]]
    decode: Callable[[bytes], Any]

    def place(self, position: int) -> str:
        return f"{self.name}, {self.unit} {position}"


def signature_of(path: Path) -> Signature:
    """What changes when the file does."""
    with reading(path):
        stat = path.stat()
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied")
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def of_file(path: Path, fields: dict[str, Any]) -> Shard:
    """The file as a shard.

    Raises:
        PromptsProblem: it is unreadable, or of a kind that holds no prompts.
    """
    signature = signature_of(path)
    packed = packing(path)
    head = scan.head_of(path)
    with_packing = f" ({packed})" if packed else ""
    if head.startswith(columns.MAGIC) and not packed:
        return Shard(str(path), path, "Parquet", False, "row", signature, lambda: columns.parquet_rows(path), decode)
    table = tables.sniff(path, head, fields)
    if table is not None:
        return Shard(
            str(path),
            path,
            table.name + with_packing,
            not packed,
            "line",
            signature,
            lambda: tables.records(path, table),
            table.decode,
        )
    cut = scan.layout(path, head)
    kinds = {"lines": "JSON Lines", "array": "JSON array", "objects": "JSON objects"}
    return Shard(
        str(path),
        path,
        kinds[cut] + with_packing,
        not packed,
        "line" if cut == "lines" else "element",
        signature,
        lambda: scan.pieces(path, cut),
        decode,
    )


def of_hub(prompts: str) -> Shard:
    """A set of the hub as a shard; it is downloaded here, once.

    Raises:
        PromptsProblem: the library is missing, or there is no such set.
    """
    held = hub.load(hub.HubName.parse(prompts))
    return Shard(prompts, Path(), "Hugging Face dataset", False, "row", (0, 0, 0), lambda: hub.rows(held), decode)
