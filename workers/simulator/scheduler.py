"""The engine on an event loop: a virtual clock, one timer, and a future per request.

Guards that a request ends once: by its last token, by an abort, or by the death of the server.
"""

import asyncio
import time

from workers.simulator.answers import Plan
from workers.simulator.bodies import Prompt
from workers.simulator.config import SimulatorConfig
from workers.simulator.engine import Engine, Job
from workers.simulator.faults import Fault


class Ticket:
    """A prompt in flight."""

    __slots__ = ("dataset", "done", "fault", "job", "plan", "prompt", "received_at", "settled", "was_waiting")

    def __init__(self, prompt: Prompt, plan: Plan, dataset: str, fault: Fault | None) -> None:
        self.prompt = prompt
        self.plan = plan
        self.dataset = dataset
        self.fault = fault
        short = plan.length // 2 if fault is not None and fault.mode == "abort" else None
        self.job = Job(plan.length, len(prompt.input_ids), stop_at=short)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received_at = time.time()
        self.was_waiting = False
        self.settled = False

    @property
    def aborted(self) -> bool:
        return self.job.state == "aborted" or (self.fault is not None and self.fault.mode == "abort")


class Scheduler:
    """Requests in, futures out. Every method is to be called on the loop."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._loop = asyncio.get_running_loop()
        self._scale = config.time_scale
        self._started = self._loop.time()
        self._tickets: dict[Job, Ticket] = {}
        self._rids: dict[str, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pauses: set[str] = set()
        self.engine = Engine(
            slots=config.max_running_requests,
            queue_limit=config.max_queued_requests,
            base_s=config.step_s_base,
            per_request_s=config.step_s_per_request,
        )

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return (self._loop.time() - self._started) * self._scale

    @property
    def scale(self) -> float:
        return self._scale

    @property
    def in_flight(self) -> int:
        return len(self._tickets)

    def is_in_flight(self, rid: str) -> bool:
        return rid in self._rids

    def submit(self, ticket: Ticket) -> None:
        self._tickets[ticket.job] = ticket
        self._rids[ticket.prompt.rid] = ticket
        self.engine.submit(ticket.job, self.now)
        self._settle()

    def abort(self, ticket: Ticket) -> None:
        """Ends it with what it has; a ticket that has ended is left alone."""
        waiting = ticket.job.state == "waiting"
        if self.engine.abort(ticket.job, self.now):
            ticket.was_waiting = waiting
            self._end(ticket)
        self._settle()

    def abort_rids(self, rid: str) -> int:
        """What /abort_request does: an unknown rid is ignored, a known one is matched as a prefix."""
        if rid not in self._rids:
            return 0
        return self._abort_each([ticket for own, ticket in self._rids.items() if own.startswith(rid)])

    def abort_all(self) -> int:
        return self._abort_each(list(self._tickets.values()))

    def _abort_each(self, hit: list[Ticket]) -> int:
        # Those that wait go first, or the slots of the others would be given to them.
        for ticket in sorted(hit, key=lambda ticket: ticket.job.state == "running"):
            self.abort(ticket)
        return len(hit)

    def pause(self, reason: str) -> None:
        """Stops the engine until every reason given has been taken back."""
        self._pauses.add(reason)
        self.engine.pause(self.now)
        self._settle()

    def resume(self, reason: str) -> None:
        self._pauses.discard(reason)
        if not self._pauses and self.engine.paused:
            self.engine.resume(self.now)
        self._settle()

    @property
    def is_paused_by_request(self) -> bool:
        return "request" in self._pauses

    def slow_down(self, extra_s: float) -> None:
        self.engine.slow_down(extra_s, self.now)
        self._settle()

    def tokens(self, ticket: Ticket) -> int:
        """How many tokens it has made by now."""
        self._settle()
        return self.engine.tokens(ticket.job)

    def tokens_in_flight(self) -> int:
        self._settle()
        return sum(self.engine.tokens(job) for job in self._tickets)

    def used_positions(self) -> int:
        """KV cache positions in use: prompts and answers of what is running."""
        self._settle()
        return sum(j.prompt_tokens + self.engine.tokens(j) for j in self._tickets if j.state == "running")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, ticket: Ticket) -> None:
        self._tickets.pop(ticket.job, None)
        if self._rids.get(ticket.prompt.rid) is ticket:
            del self._rids[ticket.prompt.rid]
        if not ticket.done.done():
            ticket.done.set_result(None)

    def _settle(self) -> None:
        """Ends what is due and sets the timer for what comes next."""
        for job in self.engine.advance(self.now):
            ticket = self._tickets.get(job)
            if ticket is not None:
                self._end(ticket)
        event = self.engine.next_event()
        if event is None:
            self.close()
            return
        at = self._started + event / self._scale
        # A timer that is early costs one look; moving it with each arrival would cost more.
        if self._timer is not None and self._timer.when() <= at:
            return
        self.close()
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._settle()
