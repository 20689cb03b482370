"""Reading the results streams in batches of a bounded size, and taking away what is safe in the files.

No consumer group: there is one collector, and an entry's only state is whether it is still there. Each
read starts at the beginning, so a Redis that was emptied, restored or restarted needs no special care.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import redis

from budget import keys
from budget.connections import translated
from results.entries import Fields

# One read's share of memory, before its entries are unpacked.
BATCH_BYTES = 8 * 1024 * 1024
_MOST = 1000
_XDEL_AT_ONCE = 1000


class Batch(msgspec.Struct, frozen=True):
    """Entries by dataset, oldest first. `full`: a stream may hold more than was asked for."""

    entries: dict[str, list[tuple[str, Fields]]]
    full: bool

    @property
    def size(self) -> int:
        return sum(map(len, self.entries.values()))


class Stream:
    """The results streams of a run's datasets."""

    def __init__(self, connection: "redis.Redis", datasets: Sequence[str]) -> None:
        self._client: Any = connection
        self._names = {keys.results(name): name for name in datasets}
        self._count = 32

    def read(self, block_ms: int | None) -> Batch:
        """The oldest entries of every stream; waits up to `block_ms` for one if there are none (None: does not)."""
        with translated():
            answer: list[tuple[bytes, list[tuple[bytes, Fields]]]] = self._client.xread(
                dict.fromkeys(self._names, "0-0"), count=self._count, block=block_ms
            )
        entries: dict[str, list[tuple[str, Fields]]] = {}
        full, total, size = False, 0, 0
        for key, found in answer:
            entries[self._names[key.decode()]] = [(entry.decode(), fields) for entry, fields in found]
            full = full or len(found) >= self._count
            total += len(found)
            size += sum(len(value) for _, fields in found for value in fields.values())
        if total:
            self._count = max(1, min(_MOST, BATCH_BYTES // max(1, size // total) // len(entries)))
        return Batch(entries, full)

    def remove(self, batch: Batch) -> None:
        """Take a batch out of its streams. Only after the files' fsync."""
        with translated(), self._client.pipeline(transaction=False) as pipe:
            for name, entries in batch.entries.items():
                ids = [entry for entry, _ in entries]
                for at in range(0, len(ids), _XDEL_AT_ONCE):
                    pipe.xdel(keys.results(name), *ids[at : at + _XDEL_AT_ONCE])
            pipe.execute()

    def lengths(self) -> dict[str, int]:
        """How many entries wait in each dataset's stream."""
        with translated(), self._client.pipeline(transaction=False) as pipe:
            for key in self._names:
                pipe.xlen(key)
            return dict(zip(self._names.values(), pipe.execute(), strict=True))
