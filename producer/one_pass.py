"""One pass over a dataset's prompts, and what it holds until Redis has taken it."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import redis

from budget import verbs
from producer.known import Strangers, missing
from workers.contracts import job_id

READ_BATCH = verbs.ENQUEUE_BATCH


class Waiting(NamedTuple):
    """A prompt that was read."""

    job: str
    id: str
    row: Any


class Pass:
    """A pass on its way.

    `everything`: nothing was queued or in flight when it began, so a hash that says queued is a lost job's.
    `certain`: every answer of Redis has arrived, so `queued` is all that the pass queued.
    """

    def __init__(
        self, dataset: str, rows: Iterator[tuple[str, Any]], *, everything: bool, strangers: Strangers | None
    ) -> None:
        self.everything = everything
        self.strangers = strangers
        self.certain = True
        self.seen = 0
        self.queued = 0
        self.defects: Counter[str] = Counter()
        self._dataset = dataset
        self._rows = rows
        self._began = time.monotonic()
        # Read but not asked about yet; missing in Redis but not queued yet.
        self._read: list[Waiting] = []
        self._open: list[Waiting] = []

    @property
    def lasted_s(self) -> float:
        return time.monotonic() - self._began

    def read(self) -> bool:
        """Read the next rows; False where there are no more."""
        rows = [Waiting(job_id(self._dataset, own), own, row) for own, row in islice(self._rows, READ_BATCH)]
        if self.strangers is not None:
            for waiting in rows:
                self.strangers.meet(waiting.job)
        self.seen += len(rows)
        self._read = rows
        return bool(rows)

    def look(self, connection: "redis.Redis") -> list[Waiting] | None:
        """What must be queued next, as far as was read: [] where Redis knows all of it; None at the end."""
        if not self._open and not self.look_further(connection):
            return None
        return self._open

    def look_further(self, connection: "redis.Redis") -> bool:
        """Read on, and add what Redis does not know to what `look` gave; False where there are no more rows."""
        if not self._read and not self.read():
            return False
        jobs = [waiting.job for waiting in self._read]
        wanted = missing(connection, self._dataset, jobs, everything=self.everything)
        self._open += [waiting for waiting, want in zip(self._read, wanted, strict=True) if want]
        self._read = []
        return True

    def took(self, count: int, added: int) -> None:
        """Redis has the first `count` of what `look` gave, and did not know `added` of them."""
        del self._open[:count]
        self.queued += added
