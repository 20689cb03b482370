"""What the fault scenarios stand on: a run in its middle, what it cost, and how soon it went on.

A scenario ends with `Scene.ends`: every part
has left by itself, every prompt has its answer once, the ledger agrees with the files, and what was
generated stands in the simulated servers' own log.
"""

import json
import time
from typing import Any, NamedTuple

import msgspec

from tests.e2e_support import TIMING, Job, RedisServer, Running, Simulator, prompts, wait_for
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

# For scenarios in which leases must run out. Elsewhere they must not, however busy the machine is.
SHORT_LEASES = {"lease_ms": 1000, "renew_ms": 250, "sweep_ms": 200, "retry_ms": 100}
SHORT_LEASE_S = 1.0
NAMES = ("A1", "B2")
COUNT, SLOTS, TOKENS = 80, 16, 80
# About 2,000 tokens a second over all slots: a run of 160 prompts lasts some seven seconds.
LIVELY: dict[str, Any] = {"speed": 1, "lengths": {"*": LengthSpec(mean=TOKENS, sigma=0.6)}}


class Account(NamedTuple):
    """Tokens that the servers made for the run's datasets, and tokens that are in its files."""

    generated: int
    committed: int

    @property
    def again(self) -> int:
        return self.generated - self.committed

    @property
    def ratio(self) -> float:
        return self.generated / max(1, self.committed)


def account(job: Job) -> Account:
    """From the simulated servers' log. What a killed server had under way counts with its whole length."""
    under_way: dict[str, int] = {}
    generated = 0
    for line in (job.folder / "simulator.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        if event["dataset"] not in job.names:
            continue
        if event["event"] == "received":
            under_way[event["rid"]] = event["length"]
        else:
            under_way.pop(event["rid"], None)
            generated += event["tokens"]
    return Account(generated + sum(under_way.values()), sum(job.tokens(name) for name in job.names))


class Scene:
    """A run of two datasets without caps, and the processes that do it.

    Args:
        server: where workers find SGLang, if not at the simulator itself.
    """

    def __init__(
        self, job: Job, redis_server: RedisServer, simulator: Simulator, *, count: int = COUNT, server: str = ""
    ) -> None:
        self.job = job
        self.redis = redis_server
        self.simulator = simulator
        self.parts: dict[str, Running] = {}
        self.recoveries: list[float] = []
        for name in NAMES:
            job.dataset(name, prompts(name, count), max_tokens="none")
        job.tables["sglang"] = {"servers": [server or simulator.url], "concurrency": SLOTS}
        job.tables["timing"] = {**TIMING, "retry_ms": 100}
        job.environment["TOKENMILL_REDIS_URL"] = redis_server.url
        job.write()

    @property
    def answered(self) -> int:
        """Whole lines in the files."""
        return self.job.count()

    @property
    def in_flight(self) -> int:
        return self.redis.holders(*self.job.names).total()

    def short_leases(self) -> None:
        """Call it before `start`."""
        self.job.tables["timing"] = dict(SHORT_LEASES)
        self.job.write()

    def start(self, workers: int = 2, **environment: str) -> "Scene":
        """Collector, producer and workers; back when the first answers are in the files."""
        for name in ("collect", "push"):
            self.parts[name] = self.job.start(name)
        for number in range(workers):
            self.work(f"w{number}", **environment)
        wait_for("the first answers", lambda: self.answered >= 5)
        return self

    def work(self, name: str, *arguments: str, **environment: str) -> Running:
        self.parts[name] = self.job.start("work", "--name", name, *arguments, **environment)
        return self.parts[name]

    def until(self, share: float) -> None:
        """Until so much of the run's prompts is answered."""
        wait_for(f"{share:.0%} of the answers", lambda: self.answered >= share * self.total)

    @property
    def total(self) -> int:
        return sum(
            (self.job.folder / table["prompts"]).read_bytes().count(b"\n") for table in self.job.datasets.values()
        )

    def more(self) -> None:
        """Until the files have grown, or everything is answered."""
        before = self.answered
        wait_for("the run to go on", lambda: self.answered > before or before >= self.total)

    def recovered(self) -> None:
        """Call it where a fault ends: notes the seconds until the files grow again (0 where all is answered)."""
        began = time.monotonic()
        self.more()
        self.recoveries.append(time.monotonic() - began)

    def ends(self, scenario: str, *, most_again: float, answered: bool = True) -> Account:
        """The run comes to its end by itself and nothing is wrong; says what it cost, for docs/faults.md.

        Args:
            most_again: how many tokens may at most have been generated in vain.
            answered: every prompt has an answer; otherwise only that the files and the ledger agree.
        """
        self.job.finish(self.parts["collect"], self.parts["push"])
        # A scenario may have replaced workers until now.
        self.job.finish(*self.parts.values())
        if answered:
            self.job.check_all_answered()
        else:
            self.job.check()
        for name in self.job.names:
            assert self.redis.spent(name) == self.job.tokens(name), "counter and file"
            assert int(self.redis.client.hget(f"budget:{name}", "reserved") or 0) == 0
        assert self.in_flight == 0
        cost = account(self.job)
        assert 0 <= cost.again <= most_again, f"{cost.again} tokens were generated in vain"
        slowest = f"{max(self.recoveries):.1f} s" if self.recoveries else "-"
        print(
            f"\n| {scenario} | {len(self.recoveries) or 1} | 0 | 0 | {cost.again:,} of {cost.generated:,} "
            f"({cost.again / max(1, cost.generated):.1%}) | {slowest} |"
        )
        return cost


class MortalSimulator(Simulator):
    """A simulated server that can be killed and started again on its port."""

    def __init__(self, simulator: Simulator, config: SimulatorConfig) -> None:
        self.log, self.url, self.child = simulator.log, simulator.url, simulator.child
        self._speed = config.time_scale
        self._config = msgspec.structs.replace(config, port=int(simulator.url.rpartition(":")[2]))

    @property
    def is_dead(self) -> bool:
        return self.child.process.poll() is not None

    def kill(self) -> None:
        """kill -9."""
        self.child.stop(grace_s=0)

    def revive(self, **changes: Any) -> None:
        """Start it again; `changes` to its configuration."""
        self.kill()
        self.child = SimulatorProcess.start(msgspec.structs.replace(self._config, **changes))
