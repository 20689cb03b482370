"""Takes jobs for a worker, and drops what a dataset no longer needs."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rq.utils import now, utcformat

from budget import failpoints, verbs
from budget.connections import RedisAway, RedisRefuses, ends_a_worker
from budget.ledger import AsyncLedger
from budget.verbs import Claimed
from workers.contracts import RunConfig
from workers.reservations import Reservations

log = logging.getLogger("tokenmill.worker")


class Settled(Protocol):
    """Runs a verb, however long Redis is away."""

    async def __call__(self, call: verbs.Call[Any], /) -> Any: ...


class Claims:
    """The claims of one worker. `suspended`: a person has stopped all claims (`rq suspend`). `waiting`: results that
    waited for the collector at the last one.

    Args:
        complain: called with what is in the way.
    """

    def __init__(
        self,
        *,
        worker: str,
        config: RunConfig,
        ledger: AsyncLedger,
        datasets: Sequence[str],
        reservations: Reservations,
        complain: Callable[[str], None],
    ) -> None:
        self.suspended = False
        self.waiting = 0
        self._worker = worker
        self._config = config
        self._ledger = ledger
        self._datasets = list(datasets)
        self._all = [dataset.name for dataset in config.datasets]
        self._reservations = reservations
        self._complain = complain
        self._turn = 0
        self._unanswered: verbs.Call[Claimed] | None = None
        self._remembered_until = 0.0

    async def take(self, k: int, *, holds_suspect: bool) -> Claimed | None:
        """Up to `k` jobs, a suspect only where none is held; None where none can be had for now, which has been said.

        A claim that was not answered may have been carried out: it is repeated, nonce and all, while Redis
        remembers it.

        Raises:
            RedisRefuses: waiting does not mend it.
        """
        if self._unanswered is None or time.monotonic() > self._remembered_until:
            self._unanswered = self._call(k, holds_suspect=holds_suspect)
            self._remembered_until = time.monotonic() + self._config.timing.lease_ms / 2000
        if failpoints.ACTIVE:
            failpoints.hit("before_claim")
        try:
            claimed = await self._ledger(self._unanswered)
        except (RedisAway, RedisRefuses) as problem:
            if ends_a_worker(problem):
                raise
            self._complain(f"{problem}; waiting")
            return None
        if failpoints.ACTIVE and claimed.leases:
            failpoints.hit("after_claim")
        self._unanswered = None
        self.suspended = claimed.status == "suspended"
        self.waiting = claimed.waiting
        if claimed.status == "notready":
            self._complain("waiting for the collector to tell Redis what the files hold")
        if claimed.status != "ok":
            return None
        backlog = any(gate.state == "backlog" for gate in claimed.gates.values())
        if backlog:
            self._complain("too many results wait for the collector: claiming nothing until it has written them")
        return claimed

    def _call(self, k: int, *, holds_suspect: bool) -> "verbs.Call[Claimed]":
        self._turn += 1
        order = self._reservations.order(self._datasets, self._turn)
        return verbs.claim(
            worker=self._worker,
            datasets=order,
            all_datasets=self._all,
            k=k,
            nonce=secrets.token_hex(8),
            admission=self._config.admission,
            reservations=[self._reservations.first(name) for name in order],
            lease_ms=self._config.timing.lease_ms,
            holds_suspect=holds_suspect,
            max_waiting=self._config.max_waiting_results,
            now=utcformat(now()),
        )

    async def drop_rest(self, claimed: Claimed, settled: Settled) -> bool:
        """Drops what is left in the queues of complete datasets; whether all that this worker serves are complete."""
        complete = [name for name, gate in claimed.gates.items() if gate.state == "complete"]
        for name in complete:
            remaining = claimed.gates[name].queued
            while remaining > 0:
                dropped, remaining = await settled(verbs.drop(dataset=name, all_datasets=self._all))
                if dropped < 0:
                    break
                log.info("dataset %s has its tokens: dropped %d prompts from its queue", name, dropped)
        return len(complete) == len(self._datasets)
