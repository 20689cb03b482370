"""The model of the server's speed: processor sharing, exact and independent of when it is looked at.

All running requests advance together, so one accumulator V (the tokens that a request running since
the beginning would have) describes them all: admitted at V0 with length L, a request ends when V
reaches V0 + L. The invariant: `advance` replays every finish and every admission at its exact virtual
time, in order, however late it is called; timers only decide when somebody looks. Each event costs
O(log n). No clock and no event loop in here: the caller passes the time.
"""

import heapq
from collections import deque
from typing import Literal

State = Literal["waiting", "running", "finished", "aborted"]


class Job:
    """One generation in the engine; `tokens` is final once it has ended."""

    __slots__ = (
        "admitted_at", "ended_at", "length", "prompt_tokens", "queued_at", "start_tokens", "state", "stop_at", "tokens",
    )  # fmt: skip

    def __init__(self, length: int, prompt_tokens: int = 0, *, stop_at: int | None = None) -> None:
        self.length = length
        self.prompt_tokens = prompt_tokens
        # Where a fault cuts it short: it still reserves a slot as the answer of `length` that it set out to be.
        self.stop_at = length if stop_at is None else min(stop_at, length)
        self.state: State = "waiting"
        self.queued_at = 0.0
        self.admitted_at = 0.0
        self.ended_at = 0.0
        self.start_tokens = 0.0
        self.tokens = 0


class Engine:
    """Slots, a FIFO queue before them, and the shared speed."""

    def __init__(
        self, *, slots: int, queue_limit: int | None, base_s: float, per_request_s: float, now: float = 0.0
    ) -> None:
        self._slots = slots
        self._queue_limit = queue_limit
        self._base_s = base_s
        self._per_request_s = per_request_s
        self._extra_s = 0.0
        self._paused = False
        self._now = now
        self._made = 0.0
        self._heap: list[tuple[float, int, Job]] = []
        self._order = 0
        self._waiting: deque[Job] = deque()
        self._n_waiting = 0
        self._n_running = 0
        self._ended: list[Job] = []

    @property
    def running(self) -> int:
        return self._n_running

    @property
    def waiting(self) -> int:
        return self._n_waiting

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def step_s(self) -> float:
        """Virtual seconds that each running request needs for its next token."""
        return self._base_s + self._extra_s + self._per_request_s * self._n_running

    def is_full(self, more: int = 1) -> bool:
        """Whether `more` requests arriving together would overflow the waiting queue.

        As in the real scheduler they all pass the queue before one is admitted, unless a slot is free
        for a single one.
        """
        if self._queue_limit is None:
            return False
        free = 0 if self._paused else self._slots - self._n_running
        if more == 1 and free > 0 and self._n_waiting == 0:
            return False
        return self._n_waiting + more > self._queue_limit

    def submit(self, job: Job, now: float) -> None:
        """Queues the job and admits it if a slot is free. Call `is_full` first; this never refuses."""
        self._move(now)
        job.queued_at = now
        self._waiting.append(job)
        self._n_waiting += 1
        self._admit()

    def abort(self, job: Job, now: float) -> bool:
        """Ends the job with what it has made so far; False where it had ended already."""
        self._move(now)
        if job.state not in ("waiting", "running"):
            return False
        if job.state == "running":
            job.tokens = self._tokens(job)
            self._n_running -= 1
        else:
            self._n_waiting -= 1
        job.state = "aborted"
        job.ended_at = now
        self._admit()
        return True

    def advance(self, now: float) -> list[Job]:
        """The jobs that have finished up to `now`, in order, and no job twice."""
        self._move(now)
        ended, self._ended = self._ended, []
        return ended

    def tokens(self, job: Job) -> int:
        """What the job has made up to the last time that the engine moved."""
        return self._tokens(job) if job.state == "running" else job.tokens

    def next_event(self) -> float | None:
        """When the next job will finish if nothing else happens; None if none will."""
        return self._now if self._ended else self._head()

    def _head(self) -> float | None:
        while self._heap and self._heap[0][2].state != "running":
            heapq.heappop(self._heap)
        if not self._heap or self._paused:
            return None
        return self._now + max(0.0, self._heap[0][0] - self._made) * self.step_s

    def pause(self, now: float) -> None:
        """Stops the world: nothing advances and nothing is admitted until `resume`."""
        self._move(now)
        self._paused = True

    def resume(self, now: float) -> None:
        self._move(now)
        self._paused = False
        self._admit()

    def slow_down(self, extra_s: float, now: float) -> None:
        """Adds `extra_s` to every step from now on."""
        self._move(now)
        self._extra_s = extra_s

    def _tokens(self, job: Job) -> int:
        # The epsilon is for sums of floats that should be whole numbers.
        return min(job.stop_at, max(0, int(self._made - job.start_tokens + 1e-6)))

    def _admit(self) -> None:
        while self._n_waiting and self._n_running < self._slots and not self._paused:
            job = self._waiting.popleft()
            if job.state != "waiting":
                continue
            self._n_waiting -= 1
            self._n_running += 1
            job.state = "running"
            job.admitted_at = self._now
            job.start_tokens = self._made
            self._order += 1
            heapq.heappush(self._heap, (self._made + job.stop_at, self._order, job))
        if not self._n_running:
            # Nobody measures against it: back to 0, so that V never grows until a token is below its precision.
            self._heap.clear()
            self._made = 0.0

    def _move(self, now: float) -> None:
        while True:
            event = self._head()
            if event is None or event > now:
                break
            goal, _, job = heapq.heappop(self._heap)
            self._made = max(self._made, goal)
            self._now = max(self._now, event)
            job.tokens = job.stop_at
            job.state = "finished"
            job.ended_at = self._now
            self._n_running -= 1
            self._ended.append(job)
            self._admit()
        if now > self._now:
            if self._n_running and not self._paused:
                self._made += (now - self._now) / self.step_s
            self._now = now
