"""One case of the kill matrix: a run of real processes in which one fails at a failpoint, and what must hold after.

A case has two datasets, one that ends by its budget and one by its prompts. The simulated server and the
two Redis servers are shared by the cases of a module: a case empties its Redis, and its datasets have
names of their own, so that the server's counts are the case's.
"""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import redis

from budget.failpoints import ACTIONS, CANCELLABLE, POINTS
from tests.e2e_support import Job, Running, Simulator, prompts, wait_for
from tests.support import OwnServer

WORKER = POINTS[:8]
COLLECTOR = POINTS[8:13]
PRODUCER = POINTS[13:]

SLOTS, TOKENS = 8, 60
# A case takes a few seconds; on a machine with much other work some more.
PATIENCE_S = 60
CAP = 30 * TOKENS
ENDS_BY_BUDGET, ENDS_BY_PROMPTS = 70, 40
LEASE_MS = 1000
TIMING = {"lease_ms": LEASE_MS, "renew_ms": 250, "sweep_ms": 100, "retry_ms": 100}
# When the place is visited for this time, the run is under way and far from its end.
NTH = {
    "before_claim": 3,
    "after_claim": 2,
    "mid_enqueue_batch": 20,
    "between_batches": 3,
    "during_rebuild": 1,
    **dict.fromkeys(WORKER[2:], 12),
    **dict.fromkeys(COLLECTOR[:4], 2),
}


class Case(NamedTuple):
    """A process fails at `point` by `action`."""

    point: str
    action: str

    def __str__(self) -> str:
        return f"{self.point}-{self.action}"

    @property
    def failpoint(self) -> str:
        return f"{self.point}:{self.action}:nth={NTH[self.point]}"

    @property
    def allowed_waste(self) -> int:
        """Tokens that may have been made in vain: what was in flight in a worker that died or froze.

        A raise lets the other slots finish, and a cancelled flight gives back a job that is not answered
        yet; whoever has an answer in hand settles it. Collector and producer hold nothing, but a Redis that
        was emptied has forgotten who had what in flight.
        """
        if self.point == "during_rebuild":
            return SLOTS * TOKENS
        if self.point not in WORKER:
            return 0
        if self.action == "cancel":
            return TOKENS if self.point in ("before_http", "after_headers", "after_http") else 0
        return TOKENS if self.action == "raise" else SLOTS * TOKENS


def cases(*points: str) -> list[Case]:
    return [Case(point, action) for point in points for action in ACTIONS if action != "cancel" or point in CANCELLABLE]


class Shared(NamedTuple):
    """What the cases of a module share."""

    servers: list[OwnServer]
    simulator: Simulator


class Rig:
    """A case under way."""

    def __init__(
        self, folder: Path, server: OwnServer, shared: Shared, case: Case, root: Path, collect: Sequence[str]
    ) -> None:
        self.case = case
        self._collect = list(collect)
        self.client: Any = redis.Redis(unix_socket_path=str(server.socket))
        self.client.flushall()
        self.simulator = shared.simulator
        self.job = Job(folder, root)
        self.job.environment["TOKENMILL_REDIS_URL"] = server.url
        self.by_budget, self.by_prompts = f"b-{folder.name}", f"p-{folder.name}"
        self.job.dataset(self.by_budget, prompts(self.by_budget, ENDS_BY_BUDGET), max_tokens=CAP)
        self.job.dataset(self.by_prompts, prompts(self.by_prompts, ENDS_BY_PROMPTS), max_tokens="none")
        self.job.tables["sglang"] = {"servers": [self.simulator.url], "concurrency": SLOTS}
        self.job.tables["sampling"] = {"max_new_tokens": TOKENS + 20}
        self.job.tables["timing"] = dict(TIMING)
        self.job.write()

    def close(self) -> None:
        self.job.end_all()
        self.client.close()

    # -- the fault

    def run(self) -> None:
        """From the start to the end of the run, with the fault in between."""
        self.finish(self.fail())

    def fail(self) -> list[Running]:
        """Start the run and let the fault happen; returns what then is to end well."""
        point = self.case.point
        fails = "work" if point in WORKER else "push" if point in PRODUCER else "collect"
        parts = {"collect": self._collect, "push": ["push"], "work": ["work", "--name", "doomed"]}
        armed = {"TOKENMILL_FAILPOINT": self.case.failpoint}
        if point == "during_rebuild":
            started = {name: self.job.start(*words) for name, words in parts.items()}
            self._lose_redis(started)
            started[fails] = self.job.start(*parts[fails], **armed)
        else:
            started = {
                name: self.job.start(*words, **(armed if name == fails else {})) for name, words in parts.items()
            }
        again = parts[fails] if fails != "work" else ["work", "--name", "heir"]
        running = self._fail(started.pop(fails), again)
        self.simulator.let_go()
        return [*started.values(), *running]

    def finish(self, parts: list[Running]) -> None:
        for part in parts:
            try:
                assert part.ended(PATIENCE_S) == 0
            except AssertionError as failure:
                raise AssertionError(f"{failure}\n{self.story()}") from failure

    def story(self) -> str:
        """What the ledger holds, and what all parts said."""
        held = [
            f"{name}: {self.client.hgetall(f'budget:{name}')}, {self.client.hlen(f'budget:{name}:done')} done, "
            f"{self.client.llen(f'rq:queue:{name}')} queued, {self.client.xlen(f'results:{name}')} unwritten, "
            f"leases {self.client.hgetall(f'budget:{name}:leases')}"
            for name in self.job.names
        ]
        return "\n".join([*held, *(f"-- {part.log.name}:\n{part.text}" for part in self.job.started)])

    def _lose_redis(self, started: dict[str, Running]) -> None:
        """The collector is dead and has written all, the slots are in flight, and Redis has forgotten everything."""
        names = self.job.names
        wait_for("answers in both files", lambda: all(len(self.job.lines(name)) > SLOTS // 2 for name in names))
        self.simulator.hold()
        wait_for("all to be written", lambda: len(self.leases()) == SLOTS and not self.unwritten())
        started["collect"].kill()
        self.client.flushall()

    def _fail(self, doomed: Running, again: list[str]) -> list[Running]:
        """Wait for the fault and what it does; returns what then is to end well."""
        action = self.case.action
        if action == "cancel":
            wait_for("the cancellation", lambda: f"failpoint {self.case.point}: cancel" in doomed.text)
            return [doomed]
        if action == "stop":
            wait_for("the process to stop", lambda: is_stopped(doomed), patience_s=60)
            frozen_ms = self.now_ms()
            heirs = [self.job.start(*again)] if again[0] == "work" else []
            wait_for("two leases to pass", lambda: self.now_ms() > frozen_ms + 2 * LEASE_MS)
            doomed.send(signal.SIGCONT)
            return [*heirs, doomed]
        if action == "kill9":
            assert doomed.ended() == -signal.SIGKILL, doomed.text
        else:
            assert doomed.ended() == 5, doomed.text
            sentences = [line for line in doomed.text.splitlines() if line.startswith("tokenmill: ")]
            assert len(sentences) == 1 and f"Injected: failpoint {self.case.point}" in sentences[0], doomed.text
            assert "Traceback" not in doomed.text, doomed.text
        return [self.job.start(*again)]

    # -- what the ledger holds

    def done(self) -> int:
        """How many prompts of the dataset that ends by its prompts have ended."""
        return self.client.hlen(f"budget:{self.by_prompts}:done")

    def leases(self) -> dict[bytes, str]:
        """Who has each job that is in flight."""
        held: dict[bytes, bytes] = {}
        for name in self.job.names:
            held |= self.client.hgetall(f"budget:{name}:leases")
        return {job: lease.decode().rpartition(" ")[2] for job, lease in held.items()}

    def unwritten(self) -> int:
        return sum(self.client.xlen(f"results:{name}") for name in self.job.names)

    def now_ms(self) -> int:
        seconds, micros = self.client.time()
        return seconds * 1000 + micros // 1000

    # -- what must hold

    def check(self) -> None:
        """Nothing lost, nothing counted twice, and no more made in vain than was in flight."""
        job = self.job
        job.check()
        for name in job.names:
            assert not job.rejected(name), job.rejected(name)
            assert int(self.client.get(f"budget:{name}:spent")) == job.tokens(name)
        assert not self.leases() and not self.unwritten()
        assert len(job.lines(self.by_prompts)) == ENDS_BY_PROMPTS
        assert CAP <= job.tokens(self.by_budget) <= CAP + SLOTS * TOKENS
        answered, dropped = job.lines(self.by_budget), job.dropped(self.by_budget)
        assert len(answered) + len(dropped) <= ENDS_BY_BUDGET  # the rest was never sent
        assert 0 <= self.wasted() <= self.case.allowed_waste, self.simulator.state()["datasets"]

    def wasted(self) -> int:
        """Tokens that the server made for this case, beyond those in the files."""
        made = sum(counts["tokens"] for counts in wait_for("the server to be idle", self._when_idle))
        return made - sum(self.job.tokens(name) for name in self.job.names)

    def _when_idle(self) -> list[dict[str, int]]:
        found = self.simulator.state()["datasets"]
        counts = [found[name] for name in self.job.names]
        ended = all(c["received"] == c["finished"] + c["aborted"] + c["failed"] for c in counts)
        return counts if ended else []


def is_stopped(running: Running) -> bool:
    assert running.is_running, running.text
    stat = Path(f"/proc/{running.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"
