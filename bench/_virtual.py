"""Servers, workers and time for bench/budgets.py: a model in virtual time around the real ledger.

A request's speed is its server's (a step takes base + n x per-request seconds for n running) divided by a
slowness of its own, drawn around 1; so a job's age is only estimated, as in a real run. Every worker has
its own server, its own measured speed, its own curves and its own rhythm of revisions.
"""

import heapq
import math
import random
from dataclasses import dataclass, field

from workers.servers import Server

BASE_S = 0.009762
PER_REQUEST_S = 0.000238
SLOWNESS_SIGMA = 0.30


@dataclass(slots=True)
class Job:
    """A request in flight."""

    dataset: str
    job: str
    token: str
    length: int
    started: float = 0.0
    reserved: int = 0


class VirtualServer:
    """Processor sharing: all requests advance together, each at its own slowness; `scale` times faster than a GPU."""

    def __init__(self, slots: int, rng: random.Random, scale: float = 1.0, sigma: float = SLOWNESS_SIGMA) -> None:
        self.slots = slots
        self._base_s, self._per_request_s, self._sigma = BASE_S / scale, PER_REQUEST_S / scale, sigma
        self.busy_s = 0.0
        self._rng = rng
        self._heap: list[tuple[float, int, Job]] = []
        self._order = 0
        self._made = 0.0
        self._now = 0.0

    @property
    def running(self) -> int:
        return len(self._heap)

    @property
    def step_s(self) -> float:
        return self._base_s + self._per_request_s * len(self._heap)

    def start(self, job: Job, now: float) -> None:
        self._move(now)
        # Lognormal with mean 1: by its seconds, the mean request runs at the server's speed.
        slowness = math.exp(self._rng.gauss(-(self._sigma**2) / 2, self._sigma))
        self._order += 1
        job.started = now
        heapq.heappush(self._heap, (self._made + job.length * slowness, self._order, job))

    def next_end(self) -> float:
        if not self._heap:
            return math.inf
        return self._now + max(0.0, self._heap[0][0] - self._made) * self.step_s

    def end(self) -> tuple[float, Job]:
        """The next job to end, and when."""
        now = self.next_end()
        self._move(now)
        goal, _, job = heapq.heappop(self._heap)
        self._made = max(self._made, goal)
        return now, job

    def _move(self, now: float) -> None:
        self.busy_s += (now - self._now) * len(self._heap)
        self._made += (now - self._now) / self.step_s
        self._now = now


@dataclass
class VirtualWorker:
    """A worker process: its server, what it knows of its speed, and what it has in flight."""

    name: str
    server: VirtualServer
    speed: Server = field(default_factory=lambda: Server("virtual"))
    flights: dict[str, Job] = field(default_factory=dict[str, Job])
    next_look: float = 0.0
    next_poll: float = 0.0
    turn: int = 0

    @property
    def free(self) -> int:
        return self.server.slots - len(self.flights)

    def start(self, job: Job, now: float) -> None:
        self.flights[job.job] = job
        self.server.start(job, now)

    def end(self) -> tuple[float, Job]:
        now, job = self.server.end()
        del self.flights[job.job]
        self.speed.finished(job.length, now - job.started)
        return now, job

    def age(self, job: Job, now: float) -> int:
        """What the worker believes, as `workers.flight` does."""
        return int((now - job.started) * self.speed.speed)


def workers(
    slots: int, per_server: int, rng: random.Random, scale: float = 1.0, sigma: float = SLOWNESS_SIGMA
) -> list[VirtualWorker]:
    """As many workers as it takes for `slots` in all, each with a server of its own."""
    return [
        VirtualWorker(f"w{number}", VirtualServer(per_server, rng, scale, sigma), next_look=rng.random())
        for number in range(slots // per_server)
    ]


def top_speed(slots: int, per_server: int) -> float:
    """Tokens per second over all servers with every slot taken."""
    return slots / (BASE_S + PER_REQUEST_S * per_server)
