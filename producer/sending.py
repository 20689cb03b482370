"""Batches on their way to Redis: while it takes in one, the next is built.

A prompt of ready ids costs Redis nearly half of what it costs the producer, and each would wait for the other.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType

from budget import failpoints
from budget.connections import RedisAway, RedisRefuses
from budget.verbs import Enqueued, EnqueueStatus, Queued


class Sending:
    """Sends one batch after the other. What is sent has arrived, or is known not to have, when the block ends.

    `under_way` rows of the pass have been sent and not been answered for.

    Args:
        enqueue: queues some jobs; run in a thread of its own.
        took: told how many rows of the pass, in their order, Redis has, and how many of them it did not know.
    """

    def __init__(self, enqueue: Callable[[list[Queued]], Enqueued], took: Callable[[int, int], None]) -> None:
        self.under_way = 0
        self._enqueue = enqueue
        self._took = took
        self._hand = ThreadPoolExecutor(1, "enqueue")
        self._sent: Future[Enqueued] | None = None
        self._status: EnqueueStatus = "ok"

    def __enter__(self) -> "Sending":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(RedisAway, RedisRefuses):  # only after another error: else `end` has asked
            self.end()
        self._hand.shutdown()

    def send(self, jobs: list[Queued], rows: int) -> EnqueueStatus:
        """Send a batch made of so many rows, once the one before has arrived. Answers what became of that.

        Raises:
            RedisAway, RedisRefuses: as `enqueue` for the one before; this one is not sent.
        """
        if self.end() == "ok":
            self.under_way = rows
            self._sent = self._hand.submit(self._enqueue, jobs) if jobs else None
            if not jobs:
                self._arrived(0)
        return self._status

    def end(self) -> EnqueueStatus:
        """Wait for the last one. Answers "ok" where all have arrived, else why Redis took no more."""
        sent, self._sent = self._sent, None
        if sent is not None:
            answer = sent.result()
            self._status = answer.status
            if answer.status == "ok":
                self._arrived(answer.added)
        return self._status

    def _arrived(self, added: int) -> None:
        rows, self.under_way = self.under_way, 0
        self._took(rows, added)
        if failpoints.ACTIVE:
            failpoints.hit("between_batches")
