"""The worker's event loop: slots filled from `claim`, leases renewed, answers settled.

Every slot is one request in flight; they are all filled from one atomic claim, which is repeated the
moment a slot falls free, for as many as the servers have room for. How a flight ends is in `workers.endings`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from budget.connections import RedisAway, RedisRefuses
from budget.errors import OwnFault, Problem
from budget.fleet import Board
from budget.ledger import AsyncLedger
from budget.verbs import Claimed, Lease
from workers.attempt import Attempt
from workers.background import end
from workers.claims import Claims
from workers.complaints import Complaints
from workers.contracts import Payload
from workers.encodings import HostileJob, decode_job_data
from workers.endings import Endings
from workers.flight import Flight
from workers.joining import Joined
from workers.leases import Leases
from workers.pieces import Pieces
from workers.rendering import Turns
from workers.server import Server
from workers.servers import Servers
from workers.settlement import hostile
from workers.stalls import Stalls
from workers.suspects import Suspects

log = logging.getLogger("tokenmill.worker")

CLAIM_BATCH = 64
IDLE_FIRST_S = 0.05
IDLE_LONGEST_S = 1.0
COLD_PATIENCE_S = 5.0
# Results pile up where this part of the most that may wait does.
PILED_UP = 100


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
        board: Board | None = None,
    ) -> None:
        self.worker = worker
        self.joined = joined
        self.config = joined.config
        self.datasets = datasets
        self.flights: dict[str, Flight] = {}
        self.fatal: Problem | None = None
        self.changed = asyncio.Event()
        self.servers = servers
        self._ledger = ledger
        self._concurrency = concurrency
        self._stay = stay
        self._finished = finished
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._seats: dict[str, Server] = {}
        self._abandoned = False
        self._complain = Complaints()
        self.suspects = Suspects(servers, board)
        self.endings = Endings(
            worker=worker,
            config=joined.config,
            ledger=ledger,
            servers=servers,
            suspects=self.suspects,
            complain=self._complain,
            end_run=self._end_run,
            pieces=self._pieces,
        )
        self._stalls = Stalls(servers, joined.config.timing.stall_ms / 1000, self._give_up_all)
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

    @property
    def wasted(self) -> dict[str, int]:
        """Tokens made in vain, by dataset."""
        return self.endings.wasted

    def _pieces(self) -> Pieces | None:
        """What tells the texts of answers, where results pile up in Redis; else to look costs more than the texts."""
        return self.joined.pieces if self._claims.waiting > self.config.max_waiting_results // PILED_UP else None

    # -- stopping

    def stop(self) -> None:
        """Warm: claim nothing more, let what is in flight finish."""
        self._stopping = True
        self.changed.set()

    def abandon(self) -> None:
        """Cold: give every job back at once."""
        self._abandoned = True
        self.endings.leaving.set()
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

    def _give_up_all(self, server: Server) -> None:
        """The server answers nothing: its jobs go back, charged with nothing."""
        for flight in list(self.flights.values()):
            if flight.attempt.server is server and not flight.settling:
                flight.given_up = "stalled"
                self._cancel(flight.lease.job)

    def _end_run(self, problem: Problem) -> None:
        """The run itself is at fault: what is in flight finishes, then it is said.

        Where it is Redis, nothing could be told to it: all that is in flight is given back, as far as Redis lets it.
        """
        self.fatal = self.fatal or problem
        if isinstance(problem, RedisRefuses) and not self._abandoned:
            self.abandon()
        self.stop()

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
        watching = asyncio.create_task(self._stalls.watch_for_ever())
        claiming = asyncio.create_task(self._claim_until_stopped())
        for part in (renewing, watching, claiming):
            part.add_done_callback(self.ended)
        try:
            await asyncio.wait([claiming])
            while self._tasks:
                await asyncio.wait(self._tasks)
            # Leaving at once, with Redis away: the leases run out by themselves.
            await self.endings.all_over(COLD_PATIENCE_S if self._abandoned else None)
        finally:
            await end(renewing, watching, claiming)
        if self.fatal is not None:
            raise self.fatal

    async def _claim_until_stopped(self) -> None:
        pause = IDLE_FIRST_S
        while not self._stopping:
            self.changed.clear()
            if not self.servers.up:
                if await self._may_leave():
                    return
                await self._wait(IDLE_LONGEST_S)
                continue
            free = min(self._concurrency - len(self._tasks), CLAIM_BATCH, self.servers.room)
            if free <= 0:
                await self._wait(IDLE_LONGEST_S)
                continue
            claimed = await self._claims.take(free, holds_suspect=self.suspects.are_unwelcome)
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

    async def _may_leave(self) -> bool:
        """No server can be used: whether there is nothing to wait for, all servers removed or all datasets finished."""
        if not self.servers.all:
            log.info("all servers of this worker were removed from the run (`tokenmill servers`): leaving")
            return True
        self._complain(f"{self.servers.why_none}: claiming nothing")
        return not self.flights and not self._stay and await self._is_finished()

    async def _is_over(self, claimed: Claimed) -> bool:
        """Drops what is left of complete datasets; True once everything is finished and nobody said to stay."""
        complete = await self._claims.drop_rest(claimed, self.endings.settled)
        return not (self._stay or self.flights or not complete) and await self._is_finished()

    async def _is_finished(self) -> bool:
        try:
            return await asyncio.to_thread(self._finished)
        except (RedisAway, RedisRefuses):
            return False

    # -- one job

    def _launch(self, lease: Lease) -> None:
        if lease.suspect:
            self.suspects.claimed(lease.job)
        elif (server := self.servers.choose()) is not None:
            self._take_seat(lease, server)
        task = asyncio.create_task(self._fly(lease), name=lease.job)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._landed(task, lease))

    def _take_seat(self, lease: Lease, server: Server) -> None:
        self._seats[lease.token] = server
        server.depart()

    def _leave_seat(self, lease: Lease) -> None:
        """Its request is over: another one may be sent there."""
        if (server := self._seats.pop(lease.token, None)) is not None:
            server.land()

    def _landed(self, task: asyncio.Task[None], lease: Lease) -> None:
        self._leave_seat(lease)
        self._tasks.discard(task)
        self.flights.pop(task.get_name(), None)
        self.suspects.settled(lease.job)
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
        self._end_run(error)

    async def _fly(self, lease: Lease) -> None:
        try:
            payload = decode_job_data(lease.data)
            if payload.dataset != lease.dataset:
                raise HostileJob(f"it is queued for {lease.dataset} but says {payload.dataset}")
            sampling = self.joined.sampling(payload.dataset)
        except HostileJob as hostility:
            await self.endings.conclude(lease, hostile(lease, str(hostility)))
            return
        if not lease.suspect:
            await self._request(lease, payload, sampling)
            return
        try:
            if (server := await self.suspects.seat(lease.job)) is not None:
                self._take_seat(lease, server)
            await self._request(lease, payload, sampling)
        finally:
            await self.endings.to_the_end(self.suspects.unseat(lease.job))

    async def _request(self, lease: Lease, payload: Payload, sampling: dict[str, Any]) -> None:
        server = self._seats.get(lease.token)
        if server is None:  # the last one went down between claim and here, or none may have a suspect now
            await self.endings.release(lease)
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
        try:
            outcome = await attempt.run()
        except asyncio.CancelledError:
            await self.endings.to_the_end(self.endings.give_up(flight))
            return
        finally:
            self._leave_seat(lease)
        flight.settling = True
        await self.endings.to_the_end(self.endings.settle(flight, outcome))
