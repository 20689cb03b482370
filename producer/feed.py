"""One dataset's passes: its prompts go by in order, and those that Redis does not know are queued.

The promise: whatever became of a job (queue emptied, taken to a stock worker's grave, dropped under a
cap that was raised since), a pass finds its prompt missing and queues it again; and a dataset is called
exhausted only by a pass that began and ended with nothing queued or in flight, and so looked at every
prompt while none could change.
"""

import logging
import time
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any

import zstandard

from budget import failpoints, keys, verbs
from budget.connections import RedisAway, translated
from budget.ledger import Ledger
from budget.snapshot import DatasetState, RunState
from producer.defects import Defect
from producer.known import Strangers
from producer.one_pass import READ_BATCH, Pass, Waiting
from producer.prompt_set import Library, PromptSet
from producer.queued import FIRST_BATCH, Marks, now, to_line, to_queued
from producer.sending import Sending
from workers.contracts import RunConfig

log = logging.getLogger("tokenmill.producer")

# Rendering stops after this long and what is there is queued: the other datasets and a stop wait no longer.
SLICE_S = 0.2
# So many batches a step: one is built while Redis takes in the one before.
BATCHES = 8
# Between passes that queue nothing.
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 2.0


class Step(Enum):
    """What one step came to."""

    WORKED = auto()
    WAITS = auto()
    NOT_READY = auto()


class Feed:
    """Keeps one dataset's queue between the water marks, one batch a step; calls `before_building` before each."""

    def __init__(
        self,
        ledger: Ledger,
        config: RunConfig,
        name: str,
        library: Library,
        before_building: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._before_building = before_building
        self._ledger = ledger
        self._config = config
        self._dataset = config.dataset(name)
        self._all = [dataset.name for dataset in config.datasets]
        self._library = library
        self._prompts: PromptSet | None = None
        self._marks = Marks.of(config)
        self._compressor = zstandard.ZstdCompressor(level=1)
        self.reset()

    def reset(self) -> None:
        """Begin anew: Redis is another one, or was filled anew from the files."""
        self._pass: Pass | None = None
        self._told_inputs: int | None = None
        self._filling = False
        self._batch = FIRST_BATCH
        self._backoff = 0.0
        self._not_before = 0.0
        self._last_looked_at_all = False
        self._unexplained: tuple[int, int] | None = None
        self._said = ""

    @property
    def told(self) -> bool:
        """Whether Redis knows how many prompts there are."""
        return self._told_inputs is not None

    def step(self, run: RunState) -> Step:
        """Do one batch's worth of what is needed.

        Raises:
            RedisAway, RedisRefuses: nothing is lost; step again.
        """
        try:
            return self._step(run)
        except RedisAway:
            # What was sent may have been done: the pass cannot say any more that it queued nothing.
            if self._pass is not None:
                self._pass.certain = False
            raise

    def _step(self, run: RunState) -> Step:
        if self._prompts is None:
            self._prompts = self._library.open(self._dataset)
        state = run.dataset(self.name)
        inputs = self._prompts.count
        if inputs is not None and inputs != state.inputs and self._enqueue([], inputs=inputs).status == "notready":
            return Step.NOT_READY
        reason = run.complete(self.name)
        if reason == "prompts" and self._is_wrong(state):
            self.clear_exhausted()
            self._not_before = 0.0
            return Step.WORKED
        if reason is not None:
            return self._wind_down(self._prompts, state, reason)
        self._said = ""
        if state.waiting >= self._config.max_waiting_results:
            return Step.WAITS
        if state.queued >= (self._marks.high if self._filling else self._marks.low):
            self._filling = False
            return Step.WAITS
        if self._pass is None:
            if not self._is_due(state):
                return Step.WAITS
            self._pass = self._begin(self._prompts, state)
        self._filling = True
        return self._advance(self._prompts, self._pass, self._marks.high - state.queued)

    def clear_exhausted(self) -> None:
        """Take back that the prompts have run out: a start of the producer looks again."""
        client: Any = self._ledger.connection
        with translated():
            client.hdel(keys.budget(self.name), "exhausted")

    def _is_wrong(self, state: DatasetState) -> bool:
        """Whether prompts turned up after the dataset was called exhausted (`retry`, a worker thought lost).

        What a second look could not find either is accepted: the prompt files have changed.
        """
        left = (state.unsent or 0, state.dropped)
        if state.queued or (left != (0, 0) and left != self._unexplained):
            self._unexplained = left
            return True
        return False

    def _is_due(self, state: DatasetState) -> bool:
        idle = _is_idle(state)
        if idle and not self._last_looked_at_all:
            return True
        if self.told and not (idle or state.unsent is None or state.unsent or state.dropped):
            return False
        return time.monotonic() >= self._not_before

    def _begin(self, prompts: PromptSet, state: DatasetState) -> Pass:
        # Idle is read again by enqueue; here it only says that whatever a hash calls queued is not.
        rows = prompts.rows()
        telling = self._told_inputs is None or self._told_inputs != prompts.count
        strangers = Strangers(self._ledger.connection, self.name) if telling else None
        self._told_inputs = None if telling else self._told_inputs
        return Pass(self.name, rows, everything=_is_idle(state), strangers=strangers)

    def _advance(self, prompts: PromptSet, p: Pass, room: int) -> Step:
        """Some batches; while Redis takes in one, the next is built."""
        waiting = p.look(self._ledger.connection)
        if waiting is None:
            return self._end(prompts, p)
        if not waiting:
            return Step.WORKED
        self._before_building()
        until = time.monotonic() + SLICE_S
        with Sending(partial(self._enqueue, inputs=prompts.count, everything=p.everything), p.took) as sending:
            for _ in range(BATCHES if self._batch > FIRST_BATCH else 1):  # then it is the other datasets' turn
                size = max(1, min(self._batch, room))
                at = sending.under_way
                jobs, taken = self._built(prompts, p, waiting[at : at + size], until)
                # Asked before this batch is sent, behind which Redis would answer it.
                if len(waiting) <= at + taken:
                    p.look_further(self._ledger.connection)
                status = sending.send(jobs, taken)
                self._batch = min(READ_BATCH, self._batch * 4)
                room -= size
                if status != "ok" or room <= 0 or len(waiting) <= sending.under_way or time.monotonic() >= until:
                    break
            status = sending.end()
        return Step.NOT_READY if status == "notready" else Step.WORKED

    def _built(self, prompts: PromptSet, p: Pass, batch: list[Waiting], until: float) -> tuple[list[verbs.Queued], int]:
        """The jobs of a batch, and how many of its rows that are: as far as the time allows."""
        jobs: list[verbs.Queued] = []
        taken = 0
        for job, own, row in batch:
            built = self._build(prompts, job, own, row)
            taken += 1
            if failpoints.ACTIVE:
                failpoints.hit("mid_enqueue_batch")
            if isinstance(built, Defect):
                self._reject(p, job, own, built, prompts.shown(row))
            else:
                jobs.append(built)
            if time.monotonic() >= until:
                break
        return jobs, taken

    def _build(self, prompts: PromptSet, job: str, own: str, row: Any) -> verbs.Queued | Defect:
        try:
            built = prompts.build(own, row)
            return built if isinstance(built, Defect) else to_queued(self._dataset, job, built)
        except RecursionError:
            return Defect("malformed", "the row is nested too deeply")

    def _enqueue(
        self, jobs: list[verbs.Queued], *, inputs: int | None, everything: bool = False, ends: int | None = None
    ) -> verbs.Enqueued:
        return self._ledger(
            verbs.enqueue(
                dataset=self.name,
                jobs=jobs,
                all_datasets=self._all,
                lease_ms=self._config.timing.lease_ms,
                now=now(),
                everything=everything,
                pass_ends_with=ends,
                inputs=inputs,
            )
        )

    def _reject(self, p: Pass, job: str, own: str, defect: Defect, shown: Any) -> None:
        line = self._compressor.compress(to_line(self.name, own, defect, shown))
        if self._ledger(verbs.reject(dataset=self.name, job=job, line=line)) == "rejected":
            p.defects[defect.reason] += 1

    def _end(self, prompts: PromptSet, p: Pass) -> Step:
        # Only a pass that began with nothing in flight has seen every prompt where it can be judged: one that
        # passed over a leased job cannot know what became of it.
        answer = self._tell(prompts, p, ends=p.queued if p.everything and p.certain else None)
        if answer.status == "notready":
            return Step.NOT_READY
        self._pass = None
        self._last_looked_at_all = p.everything
        if p.queued:
            self._backoff = self._not_before = 0.0
        else:
            # A pass over many prompts takes a while itself: never more than half of the time goes into them.
            self._backoff = min(LAST_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * self._backoff))
            self._not_before = time.monotonic() + max(self._backoff, p.lasted_s)
        if p.defects:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in p.defects.most_common())
            log.warning(
                "%s: %s prompts can never work and are rejected (%s)", self.name, f"{p.defects.total():,}", reasons
            )
        if p.queued:
            log.info("%s: queued %s of its %s prompts", self.name, f"{p.queued:,}", f"{p.seen:,}")
        return Step.WORKED if p.queued or answer.status != "ok" else Step.WAITS

    def _tell(self, prompts: PromptSet, p: Pass, *, ends: int | None = None) -> verbs.Enqueued:
        """The end of a pass: Redis learns how many prompts there are, and whether they have run out."""
        if p.strangers is not None:
            client: Any = self._ledger.connection
            with translated():
                client.hset(keys.budget(self.name), "foreign", p.strangers.count)
        inputs = p.seen if prompts.count is None else prompts.count
        answer = self._enqueue([], inputs=inputs, ends=ends)
        if answer.status != "notready":
            self._told_inputs = inputs
        return answer

    def _wind_down(self, prompts: PromptSet, state: DatasetState, reason: str) -> Step:
        """The dataset takes no more: its queue is dropped; a pass that still counts the prompts counts on."""
        self._say_complete(state, reason)
        self._filling = False
        if state.queued:
            self._ledger(verbs.drop(dataset=self.name, all_datasets=self._all))
            return Step.WORKED
        if self.told:
            self._pass = None
            return Step.WAITS
        p = self._pass = self._pass or self._begin(prompts, state)
        counted = prompts.count is not None and (p.strangers is None or p.strangers.none)
        if not counted and p.read():
            return Step.WORKED
        if self._tell(prompts, p).status == "notready":
            return Step.NOT_READY
        self._pass = None
        return Step.WORKED

    def _say_complete(self, state: DatasetState, reason: str) -> None:
        if self._said == reason:
            return
        self._said = reason
        spent = f"{state.spent:,}" + ("" if state.cap is None else f" of {state.cap:,}") + " tokens"
        if reason == "prompts":
            log.warning("%s ran out of prompts at %s: give it more prompts, or a lower budget", self.name, spent)
        else:
            dropped = f": {state.queued:,} queued prompts are dropped" if state.queued else ""
            log.info("%s has its tokens (%s)%s", self.name, spent, dropped)


def _is_idle(state: DatasetState) -> bool:
    return state.queued == 0 and state.leased == 0 and state.intermediate == 0
