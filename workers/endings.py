"""How flights end: settled by their outcome, or given up; what was generated reaches the ledger whatever happens.

A settlement is never cancelled, and waits for a Redis that is away as long as it takes. A Redis that refuses for a
reason that waiting does not mend ends the worker: its leases run out, where it cannot even give them back.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from budget import failpoints, verbs
from budget.connections import RedisAway, RedisRefuses, ends_a_worker
from budget.errors import Problem
from budget.ledger import AsyncLedger
from budget.verbs import Lease
from workers import outcomes
from workers.attempt import Completion
from workers.contracts import RunConfig
from workers.errors import RunFault
from workers.flight import Flight
from workers.pieces import Pieces
from workers.servers import Servers
from workers.settlement import Settlement, settle
from workers.stubborn import Stubborn
from workers.suspects import Suspects

log = logging.getLogger("tokenmill.worker")


class Endings:
    """The endings of one worker's flights. `wasted` has the tokens made in vain, by dataset; `has_lost_pieces`: Redis
    has nothing that tells the texts of answers any more.

    Args:
        complain: called with what is in the way.
        end_run: called with a fault of the run itself, or of Redis.
        pieces: asked for what tells the texts of answers that need not travel.
    """

    def __init__(
        self,
        *,
        worker: str,
        config: RunConfig,
        ledger: AsyncLedger,
        servers: Servers,
        suspects: Suspects,
        complain: Callable[[str], None],
        end_run: Callable[[Problem], None],
        pieces: Callable[[], Pieces | None],
    ) -> None:
        self.wasted: dict[str, int] = {}
        self.has_lost_pieces = False
        self.leaving = asyncio.Event()
        self._worker = worker
        self._config = config
        self._ledger = ledger
        self._servers = servers
        self._suspects = suspects
        self._complain = complain
        self._end_run = end_run
        self._pieces = pieces
        self._stubborn = Stubborn()
        self._running: set[asyncio.Task[None]] = set()

    async def to_the_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Await an ending that goes on even if the flight is cancelled meanwhile."""
        task = asyncio.create_task(ending)
        self._running.add(task)
        task.add_done_callback(self._over)
        await asyncio.shield(task)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Nobody may be waiting any more for what went wrong with it."""
        self._running.discard(task)
        if not task.cancelled() and isinstance(problem := task.exception(), RedisRefuses):
            self._end_run(problem)

    async def all_over(self, patience_s: float | None) -> None:
        """Wait for all endings under way; no longer than `patience_s`, and then their leases run out by themselves."""
        while self._running:
            _, late = await asyncio.wait(self._running, timeout=patience_s)
            if late and patience_s is not None:
                return

    async def settle(self, flight: Flight, outcome: "Completion | outcomes.Outcome") -> None:
        """End a flight by its outcome, and tell the server's breaker where it was the server's fault."""
        server = flight.attempt.server
        if isinstance(outcome, outcomes.ServerFault):
            if outcome.reason == "busy":
                self._servers.refused(server, outcome.detail)
            else:
                self._servers.fault(server, outcome.detail, died=outcome.broke)
            if outcome.broke:
                outcome = await self._broken(flight, outcome)
        if not isinstance(outcome, Completion):
            outcome = self._stubborn.judged(flight, outcome)
        if isinstance(outcome, outcomes.RunFault):
            self._end_run(RunFault(f"server {server.url} refuses every request: {outcome.detail}"))
        try:
            await self._conclude(flight, outcome, self._pieces())
        except verbs.Untold:
            self.has_lost_pieces = True
            await self._conclude(flight, outcome, None)

    async def _conclude(self, flight: Flight, outcome: "Completion | outcomes.Outcome", pieces: Pieces | None) -> None:
        settlement = settle(
            outcome,
            lease=flight.lease,
            payload=flight.payload,
            worker=self._worker,
            config=self._config,
            pieces=pieces,
        )
        flight.released = settlement.kind == "release"
        await self.conclude(flight.lease, settlement, generated=flight.attempt.done_tokens)

    async def _broken(self, flight: Flight, outcome: outcomes.ServerFault) -> outcomes.ServerFault:
        """A connection that was cut in flight. It may have been this prompt's doing, or a suspect's beside it.

        No other server gets the prompt before this one has been tried: one that ends servers must not end the
        next while nobody has looked at the first.
        """
        server = flight.attempt.server
        beside = await self._suspects.is_there_one_beside(flight.lease.job, server)
        waits = [asyncio.ensure_future(self._servers.tried(server)), asyncio.ensure_future(self.leaving.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return msgspec.structs.replace(outcome, beside=beside)

    async def conclude(self, lease: Lease, settlement: Settlement, generated: int = 0) -> None:
        """Tell the ledger; `generated` tokens were in vain if another attempt's answer came first."""
        if failpoints.ACTIVE and settlement.kind == "commit":
            failpoints.hit("before_commit", lease.job)
        try:
            answer = await self.settled(settlement.call)
        except RedisRefuses:
            with suppress(RedisAway, RedisRefuses):
                await self._ledger(verbs.release(lease=lease, charge=""))
            raise
        if failpoints.ACTIVE and settlement.kind == "commit":
            failpoints.hit("after_commit", lease.job)
        self.waste(lease.dataset, settlement.wasted)
        if settlement.kind == "commit" and not answer[0]:
            self.waste(lease.dataset, generated)
        elif settlement.kind != "commit":
            kind = "reject" if answer == "poison" else settlement.kind
            log.info("%s %s of %s: %s", kind, lease.job, lease.dataset, settlement.detail)

    async def release(self, lease: Lease) -> None:
        """Give a job back, charged with nothing."""
        await self.settled(verbs.release(lease=lease, charge=""))

    async def give_up(self, flight: Flight) -> None:
        """A cancelled flight: done elsewhere, stopped by a person, its server stalled, or the worker leaves at once."""
        attempt = flight.attempt
        if flight.given_up == "stalled":
            # Nothing is known to be made since; it hears no abort either, and the job must not wait.
            last = max(attempt.server.heard_at, attempt.server.made_at)
            self.waste(flight.lease.dataset, attempt.probable_tokens_at(last))
            flight.released = True
            await self.release(flight.lease)
            await attempt.give_up()
            return
        self.waste(flight.lease.dataset, flight.age)
        await attempt.give_up()
        if flight.given_up == "stopped":
            rejected = outcomes.Reject("stopped", "stopped by a person")
            settlement = settle(
                rejected, lease=flight.lease, payload=flight.payload, worker=self._worker, config=self._config
            )
            await self.settled(settlement.call)
        elif not flight.given_up:
            flight.released = True
            await self.release(flight.lease)

    async def settled(self, call: verbs.Call[Any]) -> Any:
        """Run a verb, however long Redis is away.

        Raises:
            RedisRefuses: waiting does not mend it.
        """
        while True:
            try:
                return await self._ledger(call)
            except (RedisAway, RedisRefuses) as problem:
                if ends_a_worker(problem):
                    raise
                self._complain(f"{problem}; keeping what is generated until it answers")
                await asyncio.sleep(self._config.timing.retry_ms / 1000 * random.uniform(0.5, 1.0))

    def waste(self, dataset: str, tokens: int) -> None:
        if tokens:
            self.wasted[dataset] = self.wasted.get(dataset, 0) + tokens
