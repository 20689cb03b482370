"""The ways to stop at a budget that bench/budgets.py compares, each driven from one event to the next."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from _virtual import SLOWNESS_SIGMA, Job, VirtualWorker, top_speed, workers

from budget import ages, keys, runbook, verbs
from budget.forecast import bucket
from budget.ledger import Ledger, source
from workers.contracts import Admission
from workers.reservations import Pace, Reservations
from workers.simulator.lengths import LengthSpec

RENEW_S = 10.0
CLAIM_BATCH = 64
IDLE_FIRST_S, IDLE_LONGEST_S = 0.05, 1.0
NEVER_MS = 10**12
PROMPTS_AHEAD = 500


@dataclass(frozen=True)
class Task:
    """One cell of the matrix: datasets by name with how long their answers are, caps, slots, one seed.

    Leases are renewed every `renew_s`; servers are `scale` times faster than a GPU; `sigma` is how much
    requests differ in speed.
    """

    specs: dict[str, LengthSpec]
    cap: int
    slots: int
    per_server: int
    most: int
    seed: int
    renew_s: float = RENEW_S
    scale: float = 1.0
    sigma: float = SLOWNESS_SIGMA

    @property
    def ideal_s(self) -> float:
        return self.cap * len(self.specs) / top_speed(self.slots, self.per_server) / self.scale

    def crew(self, rng: random.Random) -> list[VirtualWorker]:
        return workers(self.slots, self.per_server, rng, self.scale, self.sigma)

    def draws(self, name: str) -> Iterator[int]:
        spec, base = self.specs[name], hash((self.seed, len(name), name.encode()[-1]))
        return (min(self.most, spec.draw(base * 1_000_003 + n)) for n in itertools.count())


@dataclass
class Outcome:
    """What a contender spent and how long it took."""

    spent: dict[str, int]
    seconds: float
    busy_s: float
    ends: dict[str, float] = field(default_factory=dict[str, float])
    looks: int = 0
    renewals: int = 0

    def figures(self, task: Task) -> dict[str, float]:
        """As shares: total and worst overshoot, lowest dataset, makespan over the ideal, slots busy."""
        over = {name: spent / task.cap - 1 for name, spent in self.spent.items()}
        return {
            "total": sum(self.spent.values()) / (task.cap * len(task.specs)) - 1,
            "worst": max(over.values()),
            "lowest": min(over.values()),
            "makespan": self.seconds / task.ideal_s,
            "occupancy": self.busy_s / (self.seconds * task.slots),
        }


class Script:
    """A run without a ledger: so many samples of every dataset, or one dataset after the other until its counter
    has passed the cap."""

    def __init__(self, task: Task, rng: random.Random, *, samples: int | None) -> None:
        self.task = task
        self.crew = task.crew(rng)
        self.draws = {name: task.draws(name) for name in task.specs}
        self.spent = dict.fromkeys(task.specs, 0)
        self.left = None if samples is None else dict.fromkeys(task.specs, samples)
        self.ends: dict[str, float] = {}
        self.numbers = itertools.count()

    def run(self) -> Outcome:
        now = 0.0
        for names in [list(self.spent)] if self.left is not None else [[name] for name in self.spent]:
            turn = itertools.cycle(names)
            for worker in self.crew:
                self._fill(worker, turn, len(names), now)
            while busy := [worker for worker in self.crew if worker.flights]:
                worker = min(busy, key=lambda worker: worker.server.next_end())
                now, job = worker.end()
                self.spent[job.dataset] += job.length
                self.ends[job.dataset] = now
                self._fill(worker, turn, len(names), now)
        return Outcome(self.spent, now, sum(worker.server.busy_s for worker in self.crew), self.ends)

    def _fill(self, worker: VirtualWorker, turn: Iterator[str], count: int, now: float) -> None:
        while worker.free:
            name = next((name for name in itertools.islice(turn, count) if self._admits(name)), None)
            if name is None:
                return
            if self.left is not None:
                self.left[name] -= 1
            worker.start(Job(name, str(next(self.numbers)), "", next(self.draws[name])), now)

    def _admits(self, name: str) -> bool:
        return self.spent[name] < self.task.cap if self.left is None else self.left[name] > 0


class LedgerRun:
    """A run through the real ledger: the scripts on a real Redis, the worker's own forecast, order and rhythm."""

    def __init__(self, task: Task, admission: Admission, connection: Any, rng: random.Random) -> None:
        self.task, self.admission = task, admission
        self.connection = connection
        self.ledger = Ledger(connection)
        self.names = list(task.specs)
        self.crew = task.crew(rng)
        self.rng = rng
        self.draws = {name: task.draws(name) for name in self.names}
        self.lengths: dict[str, int] = {}
        self.reservations = {
            worker.name: Reservations(admission, dict.fromkeys(self.names, task.most), task.renew_s)
            for worker in self.crew
        }
        self.paces = {worker.name: Pace(task.renew_s) for worker in self.crew}
        self.pauses = dict.fromkeys(self.paces, IDLE_FIRST_S)
        self.nonces, self.numbers = itertools.count(), itertools.count()
        # Polls between two changes of the ledger would be answered alike, so they are not sent.
        self.changes = 0
        self.refused_at = dict.fromkeys(self.paces, -1)
        self.spent = dict.fromkeys(self.names, 0)
        self.ends: dict[str, float] = {}
        self.open = set(self.names)
        self.digests: dict[str, str] = {}
        self.looks = self.renewals = 0

    def run(self) -> Outcome:
        self.connection.flushall()
        for verb in ("claim", "commit"):
            self.digests[verb] = self.connection.script_load(source(verb))
        self.connection.set(keys.READY, runbook.run_id(self.connection))
        for name in self.names:
            runbook.set_cap(self.connection, name, self.task.cap)
            self._enqueue(name, PROMPTS_AHEAD)
        now = 0.0
        while self.open or any(worker.flights for worker in self.crew):
            worker, at, kind = self._next()
            now = max(now, at)
            if kind == "end":
                now, job = worker.end()
                self._claim(worker, now, job)
            elif kind == "look":
                self._look(worker, now)
            else:
                self._claim(worker, now)
        last = max(self.ends.values())
        busy = sum(worker.server.busy_s for worker in self.crew)
        return Outcome(self.spent, last, busy, self.ends, self.looks, self.renewals)

    def _next(self) -> tuple[VirtualWorker, float, str]:
        best: tuple[float, int, str] = (float("inf"), 0, "")
        for number, worker in enumerate(self.crew):
            best = min(best, (worker.server.next_end(), number, "end"))
            if worker.flights and self.admission == "forecast":
                best = min(best, (worker.next_look, number, "look"))
            if worker.free and self.open and self.refused_at[worker.name] != self.changes:
                best = min(best, (worker.next_poll, number, "poll"))
        return self.crew[best[1]], best[0], best[2]

    def _enqueue(self, name: str, count: int) -> None:
        queued: list[verbs.Queued] = []
        for _ in range(count):
            job = f"{name}-{next(self.numbers)}"
            self.lengths[job] = next(self.draws[name])
            queued.append(verbs.Queued(job=job, data=b"x", worst=self.task.most, description=""))
        self.ledger(verbs.enqueue(dataset=name, jobs=queued, all_datasets=self.names, lease_ms=NEVER_MS, now=""))

    def _send(self, *calls: verbs.Call[Any]) -> list[Any]:
        """Several verbs in one round trip, which is what a virtual day spends its real time on."""
        with self.connection.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.evalsha(self.digests[call.script], len(call.keys), *call.keys, *call.args)
            answers = pipe.execute()
        return [call.parse(answer) for call, answer in zip(calls, answers, strict=True)]

    def _claim(self, worker: VirtualWorker, now: float, ended: Job | None = None) -> None:
        """Settle the job that has just ended, if one has, and fill the worker's slots."""
        settling = [] if ended is None else [self._commit(worker, ended, now)]
        reservations = self.reservations[worker.name]
        while worker.free and self.open:
            k = min(worker.free, CLAIM_BATCH)
            worker.turn += 1
            order = [name for name in reservations.order(self.names, worker.turn) if name in self.open]
            call = verbs.claim(
                worker=worker.name,
                datasets=order,
                all_datasets=self.names,
                k=k,
                nonce=str(next(self.nonces)),
                admission=self.admission,
                reservations=[reservations.first(name) for name in order],
                lease_ms=NEVER_MS,
                holds_suspect=False,
                max_waiting=10**9,
                now="",
            )
            *settled, claimed = self._send(*settling, call)
            if ended is not None and settled:
                self._note(ended, settled[0])
            settling = []
            for lease in claimed.leases:
                length, reserved = self.lengths.pop(lease.job), reservations.first(lease.dataset)
                worker.start(Job(lease.dataset, lease.job, lease.token, length, reserved=reserved), now)
            for name, gate in claimed.gates.items():
                if gate.state == "complete":
                    self.open.discard(name)
                elif gate.queued < PROMPTS_AHEAD // 2:
                    self._enqueue(name, PROMPTS_AHEAD)
            self.changes += len(claimed.leases)
            if len(claimed.leases) < k:
                self.refused_at[worker.name] = self.changes
                pause = self.pauses[worker.name]
                pause = IDLE_FIRST_S if claimed.leases else min(pause * 1.5, IDLE_LONGEST_S)
                self.pauses[worker.name] = pause
                worker.next_poll = now + pause * self.rng.uniform(0.7, 1.0)
                return
            self.pauses[worker.name] = IDLE_FIRST_S
        if settling and ended is not None:
            self._note(ended, self._send(*settling)[0])

    def _commit(self, worker: VirtualWorker, job: Job, now: float) -> verbs.Call[tuple[bool, int]]:
        self.changes += 1
        self.ends[job.dataset] = now
        lease = verbs.Lease(
            dataset=job.dataset, job=job.job, token=job.token, data=b"", attempt=1, failures=0, deaths=0
        )
        return verbs.commit(lease=lease, worker=worker.name, tokens=job.length, truncated=False, line=b"x")

    def _note(self, job: Job, answer: tuple[bool, int]) -> None:
        stored, self.spent[job.dataset] = answer
        assert stored

    def _look(self, worker: VirtualWorker, now: float) -> None:
        reservations, pace = self.reservations[worker.name], self.paces[worker.name]
        whole = pace.whole(now)
        revised = self.names if whole else reservations.near_cap()
        reservations.learn(ages.read(self.connection, revised))
        renewals: list[verbs.Renewal] = []
        for job in worker.flights.values():
            if job.dataset in revised:
                age = worker.age(job, now)
                reserved = reservations.revised(job.dataset, age, self.task.most)
                if not whole and not reservations.worth_telling(job.reserved, reserved):
                    continue
                job.reserved = reserved
                renewals.append(
                    verbs.Renewal(
                        dataset=job.dataset, job=job.job, token=job.token, reserved=reserved, bucket=bucket(age)
                    )
                )
        if renewals:
            self.ledger(verbs.renew(worker=worker.name, renewals=renewals, lease_ms=NEVER_MS))
            self.changes += 1
        self.looks += 1
        self.renewals += len(renewals)
        fresh_s = reservations.pause_s(reservations.near_cap(), worker.speed.speed)
        worker.next_look = now + pace.pause(now, fresh_s) + 1e-6
