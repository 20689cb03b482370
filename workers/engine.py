"""The worker's event loop: slots filled from `claim`, leases renewed, answers settled.

Every slot is one request in flight; they are all filled from one atomic claim, which is repeated the
moment a slot falls free. What was generated reaches the ledger before anything else happens to it:
a settlement is never cancelled, and waits for a Redis that is away as long as it takes.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from budget import failpoints, verbs
from budget.connections import RedisAway, RedisRefuses
from budget.errors import OwnFault, Problem
from budget.ledger import AsyncLedger
from budget.verbs import Claimed, Lease
from workers import outcomes
from workers.attempt import Attempt, Completion
from workers.background import end
from workers.claims import Claims
from workers.complaints import Complaints
from workers.contracts import HostileJob, decode_job_data
from workers.errors import RunFault
from workers.flight import Flight
from workers.joining import Joined
from workers.leases import Leases
from workers.rendering import Turns
from workers.servers import Server, Servers
from workers.settlement import Settlement, hostile, settle
from workers.stubborn import Stubborn

log = logging.getLogger("tokenmill.worker")

CLAIM_BATCH = 64
IDLE_FIRST_S = 0.05
IDLE_LONGEST_S = 1.0
COLD_PATIENCE_S = 5.0


class Engine:
    """Runs jobs until told to stop, or until all datasets are finished.

    Args:
        finished: whether all the datasets this worker serves are finished (asked in a thread).
    """

    def __init__(
        self,
        *,
        worker: str,
        joined: Joined,
        ledger: AsyncLedger,
        servers: Servers,
        datasets: list[str],
        concurrency: int,
        stay: bool,
        finished: Callable[[], bool],
    ) -> None:
        self.worker = worker
        self.joined = joined
        self.config = joined.config
        self.datasets = datasets
        self.flights: dict[str, Flight] = {}
        self.wasted: dict[str, int] = {}
        self.fatal: Problem | None = None
        self.changed = asyncio.Event()
        self.servers = servers
        self._ledger = ledger
        self._concurrency = concurrency
        self._stay = stay
        self._finished = finished
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._settlings: set[asyncio.Task[None]] = set()
        self._abandoned = False
        self._complain = Complaints()
        self._quiet = Complaints()
        self._stubborn = Stubborn()
        self._turns = Turns(joined.config)
        self._leases = Leases(
            worker=worker,
            joined=joined,
            ledger=ledger,
            servers=servers,
            datasets=datasets,
            flights=self.flights,
            lost=self._lost,
            complain=self._complain,
        )
        self._claims = Claims(
            worker=worker,
            config=joined.config,
            ledger=ledger,
            datasets=datasets,
            reservations=self._leases.reservations,
            complain=self._complain,
        )

    @property
    def suspended(self) -> bool:
        """A person has stopped all claims (`rq suspend`)."""
        return self._claims.suspended

    @property
    def slots(self) -> int:
        """Requests it may have in flight."""
        return self._concurrency

    def say_what_is_quiet(self) -> None:
        """A request may take long, but nobody should have to guess why nothing comes back."""
        quiet_s = self.config.timing.quiet_ms / 1000
        if quiet := self.servers.quiet(quiet_s):
            self._quiet("; ".join(self._about_quiet(server) for server in quiet))

    def _about_quiet(self, server: Server) -> str:
        lasted = time.monotonic() - server.heard
        reports = (
            f"it reports {server.running} running and {server.waiting} waiting"
            if server.measured
            else "it does not say what it is doing"
        )
        return (
            f"server {server.url} has answered none of the {server.in_flight} requests in flight for "
            f"{lasted:.0f} s ({reports}): if it hangs, restart it, and they are sent again"
        )

    # -- stopping

    def stop(self) -> None:
        """Warm: claim nothing more, let what is in flight finish."""
        self._stopping = True
        self.changed.set()

    def abandon(self) -> None:
        """Cold: give every job back at once."""
        self._abandoned = True
        self.stop()
        for task in self._tasks:
            task.cancel()

    def stop_job(self, job: str) -> None:
        """Stop one job on a person's request: rejected, so that `tokenmill retry` can bring it back."""
        flight = self.flights.get(job)
        if flight is not None:
            flight.given_up = "stopped"
            self._cancel(job)

    def _lost(self, flight: Flight) -> None:
        """Another attempt's answer came first."""
        flight.given_up = "done"
        self._cancel(flight.lease.job)

    def _cancel(self, job: str) -> None:
        for task in self._tasks:
            if task.get_name() == job:
                task.cancel()

    # -- the loop

    async def run(self) -> None:
        """Claim and run jobs. Returns when stopped or finished, with every job settled or given back.

        Raises:
            Problem: what makes going on senseless (a wrong key, model or parameter).
        """
        await self._leases.learn()
        renewing = asyncio.create_task(self._leases.keep_for_ever())
        claiming = asyncio.create_task(self._claim_until_stopped())
        for part in (renewing, claiming):
            part.add_done_callback(self.ended)
        try:
            await asyncio.wait([claiming])
            while self._tasks:
                await asyncio.wait(self._tasks)
            while self._settlings:
                # Leaving at once, with Redis away: the leases run out by themselves.
                patience = COLD_PATIENCE_S if self._abandoned else None
                _, late = await asyncio.wait(self._settlings, timeout=patience)
                if late and self._abandoned:
                    break
        finally:
            await end(renewing, claiming)
        if self.fatal is not None:
            raise self.fatal

    async def _claim_until_stopped(self) -> None:
        pause = IDLE_FIRST_S
        while not self._stopping:
            self.changed.clear()
            free = min(self._concurrency - len(self._tasks), CLAIM_BATCH)
            if free <= 0 or not self.servers.up:
                if not self.servers.up:
                    self._complain(f"no server is up ({self.servers.why_down}): claiming nothing")
                await self._wait(IDLE_LONGEST_S)
                continue
            claimed = await self._claims.take(free, self.flights.values())
            if claimed is None:
                await self._wait(IDLE_LONGEST_S)
                continue
            for lease in claimed.leases:
                self._launch(lease)
            if len(claimed.leases) == free:
                pause = IDLE_FIRST_S
                continue
            if await self._is_over(claimed):
                return
            pause = IDLE_FIRST_S if claimed.leases else min(pause * 1.5, IDLE_LONGEST_S)
            await self._wait(pause * random.uniform(0.7, 1.0))

    async def _wait(self, seconds: float) -> None:
        """Until a slot falls free, a server comes up or a stop is wished, and at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return

    async def _is_over(self, claimed: Claimed) -> bool:
        """Drops what is left of complete datasets; True once everything is finished and nobody said to stay."""
        complete = await self._claims.drop_rest(claimed, self.settled)
        if self._stay or self.flights or not complete:
            return False
        try:
            return await asyncio.to_thread(self._finished)
        except (RedisAway, RedisRefuses):
            return False

    # -- one job

    def _launch(self, lease: Lease) -> None:
        server = self.servers.choose()
        task = asyncio.create_task(self._fly(lease, server), name=lease.job)
        self._tasks.add(task)
        task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.flights.pop(task.get_name(), None)
        self.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Problem):
            log.error("job %s failed in the worker itself; it comes back when its lease runs out", task.get_name())
        self.ended(task)

    def ended(self, task: asyncio.Task[None]) -> None:
        """A part of this worker ended. The run's fault, or ours: what is in flight finishes, then it is said.

        The lease of a job that failed runs out, and the job comes back.
        """
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, Problem):
            log.debug("the fault in full", exc_info=error)
            error = OwnFault(error)
        self.fatal = self.fatal or error
        self.stop()

    async def _fly(self, lease: Lease, server: Server | None) -> None:
        try:
            payload = decode_job_data(lease.data)
            if payload.dataset != lease.dataset:
                raise HostileJob(f"it is queued for {lease.dataset} but says {payload.dataset}")
            sampling = self.joined.sampling(payload.dataset)
        except HostileJob as hostility:
            await self._conclude(lease, hostile(lease, str(hostility)))
            return
        if server is None:  # the last one went down between claim and here
            await self.settled(verbs.release(lease=lease, charge=""))
            return
        attempt = Attempt(
            client=self.servers.client,
            server=server,
            lease=lease,
            payload=payload,
            sampling=sampling,
            vocab_size=self.joined.facts.vocab_size,
            worker=self.worker,
            turns=self._turns,
            thinking=self.joined.facts.thinking,
        )
        flight = self.flights[lease.job] = Flight(lease, payload, attempt, sampling)
        server.begun()
        try:
            outcome = await attempt.run()
        except asyncio.CancelledError:
            await self._to_the_end(self._given_up(flight))
            return
        finally:
            server.ended()
        flight.settling = True
        await self._to_the_end(self._settle(flight, outcome))

    async def _to_the_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Await a settlement that goes on even if the flight is cancelled meanwhile."""
        task = asyncio.create_task(ending)
        self._settlings.add(task)
        task.add_done_callback(self._settlings.discard)
        await asyncio.shield(task)

    async def _settle(self, flight: Flight, outcome: "Completion | outcomes.Outcome") -> None:
        if isinstance(outcome, outcomes.ServerFault):
            self.servers.fault(flight.attempt.server, outcome.detail)
        if not isinstance(outcome, Completion):
            outcome = self._stubborn.judged(flight, outcome)
        if isinstance(outcome, outcomes.RunFault):
            self.fatal = RunFault(f"server {flight.attempt.server.url} refuses every request: {outcome.detail}")
            self.stop()
        settlement = settle(outcome, lease=flight.lease, payload=flight.payload, worker=self.worker, config=self.config)
        await self._conclude(flight.lease, settlement, generated=flight.attempt.done_tokens)

    async def _conclude(self, lease: Lease, settlement: Settlement, generated: int = 0) -> None:
        if failpoints.ACTIVE and settlement.kind == "commit":
            failpoints.hit("before_commit", lease.job)
        answer = await self.settled(settlement.call)
        if failpoints.ACTIVE and settlement.kind == "commit":
            failpoints.hit("after_commit", lease.job)
        self._waste(lease.dataset, settlement.wasted)
        if settlement.kind == "commit" and not answer[0]:
            self._waste(lease.dataset, generated)  # another attempt's answer came first
        elif settlement.kind != "commit":
            log.info("%s %s of %s: %s", settlement.kind, lease.job, lease.dataset, settlement.detail)

    async def _given_up(self, flight: Flight) -> None:
        """A cancelled flight: done elsewhere, stopped by a person, or the worker leaves at once."""
        self._waste(flight.lease.dataset, flight.age)
        await flight.attempt.give_up()
        if flight.given_up == "stopped":
            rejected = outcomes.Reject("stopped", "stopped by a person")
            settlement = settle(
                rejected, lease=flight.lease, payload=flight.payload, worker=self.worker, config=self.config
            )
            await self.settled(settlement.call)
        elif not flight.given_up:
            await self.settled(verbs.release(lease=flight.lease, charge=""))

    async def settled(self, call: verbs.Call[Any]) -> Any:
        """Run a verb, however long Redis is away."""
        while True:
            try:
                return await self._ledger(call)
            except (RedisAway, RedisRefuses) as problem:
                self._complain(f"{problem}; keeping what is generated until it answers")
                await asyncio.sleep(self.config.timing.retry_ms / 1000 * random.uniform(0.5, 1.0))

    def _waste(self, dataset: str, tokens: int) -> None:
        if tokens:
            self.wasted[dataset] = self.wasted.get(dataset, 0) + tokens
