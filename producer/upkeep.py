"""What must go on while a batch is being rendered: the locks are kept, dead workers are swept.

A thread of its own, because rendering a long prompt may outlast a lease, and a lock that ran out would
let a second producer in.
"""

import logging
import threading
import time
from collections.abc import Sequence

import redis

from budget.connections import RedisAway, RedisRefuses
from budget.errors import Problem
from budget.ledger import Ledger
from budget.locks import Lock
from budget.sweep import sentence, sweep
from producer.patience import passing
from workers.contracts import Timing

log = logging.getLogger("tokenmill.producer")


class Upkeep:
    """Renews `locks` each third of a lease and sweeps the run's `datasets` each `sweep_ms`, until ended."""

    def __init__(self, connection: "redis.Redis", locks: Sequence[Lock], datasets: Sequence[str], timing: Timing):
        self._ledger = Ledger(connection)
        self._locks = locks
        self._datasets = datasets
        self._timing = timing
        self._end = threading.Event()
        self._failure: BaseException | None = None
        # A daemon: a Redis that hangs must not keep a stopped producer alive.
        self._thread = threading.Thread(target=self._run, name="producer-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join(timeout=2)

    def check(self) -> None:
        """Raise what ended the upkeep.

        Raises:
            LockLost: another producer has a lock of ours by now.
            RedisRefuses: Redis refuses for a reason that waiting does not mend.
        """
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:
            # The thread's outermost boundary: the main thread raises it from `check`.
            self._failure = error

    def _keep(self) -> None:
        lease_s, sweep_s = self._timing.lease_ms / 1000, self._timing.sweep_ms / 1000
        next_sweep = time.monotonic() + sweep_s
        while not self._end.wait(min(lease_s / 3, sweep_s)):
            try:
                for lock in self._locks:
                    lock.renew()
                if time.monotonic() >= next_sweep:
                    next_sweep = time.monotonic() + sweep_s
                    self._sweep()
            except (RedisAway, RedisRefuses) as error:
                # The main thread meets the same and says so; what lasts is raised.
                passing(error)

    def _sweep(self) -> None:
        for death in sweep(self._ledger, self._datasets, self._timing.lease_ms):
            log.warning("%s", sentence(death))


def release(locks: Sequence[Lock]) -> None:
    """Give the locks up as far as Redis lets us; what stays runs out with its lease."""
    for lock in locks:
        try:
            lock.release()
        except Problem as error:
            log.warning("a lock could not be released and ends with its lease: %s", error)
