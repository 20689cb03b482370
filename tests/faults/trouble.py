"""Faults at random, for the soak: whom to kill, stop, cut off, fill up or empty next."""

import contextlib
import random
import signal
import time
from collections.abc import Callable

from tests.e2e_support import Job, RedisServer, Running, wait_for
from tests.faults.scenes import MortalSimulator
from tests.tcp_proxy import TcpProxy
from workers.simulator.faults import Fault, Mode

WORKERS = ("w0", "w1", "w2")
# How a part may end while faults are made: well, told to, refused (a stopped one holds its lock), Redis away, killed
# (or told to leave before it listens).
EXPECTED = {0, 3, 4, 5, -signal.SIGKILL, -signal.SIGTERM}


MODES: tuple[Mode, ...] = (
    "abort", "cut_body", "drip", "error", "hang", "nan", "reset_after_headers", "reset_before_headers", "unavailable",
    "wrong_ids",
)  # fmt: skip
SERVER_WIDE: tuple[Mode, ...] = ("dead", "refuse", "slow_start")


class Trouble:
    """Makes faults in a run and takes them back; `made` names them, `highest` is each dataset's largest cap ever.

    Parts that ended are started again at the next step, as a person or a supervisor would.
    """

    def __init__(
        self,
        draw: random.Random,
        job: Job,
        redis: RedisServer,
        simulator: MortalSimulator,
        to_redis: TcpProxy,
        to_sglang: TcpProxy,
        caps: dict[str, int | None],
    ) -> None:
        self.made: list[str] = []
        self.highest = dict(caps)
        self._draw = draw
        self._job = job
        self._redis = redis
        self._simulator = simulator
        self._to_redis = to_redis
        self._to_sglang = to_sglang
        self._parts: dict[str, Running] = {}
        self._heals: list[tuple[float, Callable[[], None]]] = []
        self._faults: list[tuple[int, str, Callable[[], None]]] = [
            (6, "kill worker", lambda: self._signal(draw.choice(WORKERS), signal.SIGKILL)),
            (2, "stop worker", lambda: self._pause(draw.choice(WORKERS))),
            (2, "term worker", lambda: self._signal(draw.choice(WORKERS), signal.SIGTERM)),
            (2, "kill producer", lambda: self._signal("push", signal.SIGKILL)),
            (1, "stop producer", lambda: self._pause("push")),
            (1, "term producer", lambda: self._signal("push", signal.SIGTERM)),
            (3, "kill collector", lambda: self._signal("collect", signal.SIGKILL)),
            (2, "stop collector", lambda: self._pause("collect")),
            (1, "term collector", lambda: self._signal("collect", signal.SIGTERM)),
            (3, "kill Redis", self._kill_redis),
            (2, "cut Redis' file", self._cut_redis),
            (2, "freeze Redis", self._freeze_redis),
            (1, "SCRIPT FLUSH", lambda: self._redis.client.script_flush() and None),
            (2, "FLUSHALL", lambda: self._redis.client.flushall() and None),
            (1, "fill Redis", self._fill_redis),
            (2, "kill SGLang", self._kill_simulator),
            (4, "SGLang fails", self._simulator_faults),
            (3, "wire to Redis", lambda: self._wire(to_redis)),
            (3, "wire to SGLang", lambda: self._wire(to_sglang)),
            (2, "budget set", self._budget),
            (1, "rq empty", self._empty),
        ]

    def start(self) -> None:
        self._revive()

    def make(self) -> None:
        """One fault, by weight. Nothing is asked of a Redis that is away."""
        weights = [weight for weight, _, _ in self._faults]
        _, name, act = self._draw.choices(self._faults, weights)[0]
        self.made.append(name)
        act()

    def wait(self, seconds: float) -> None:
        """Let so long pass; what has lasted long enough is healed, what has ended is started again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._take_back(time.monotonic())
            self._revive()
            time.sleep(0.02)

    def heal(self) -> None:
        """Everything is taken back; all parts are gone, half of the times killed."""
        self._take_back(float("inf"))
        wait_for("the simulated server to listen", self._tell)
        how = self._draw.choice([signal.SIGKILL, signal.SIGTERM])
        for part in self._parts.values():
            if part.is_running:
                part.send(how)
        for name, part in self._parts.items():
            self._judge(name, part, part.ended(60))

    # -- parts

    def _revive(self) -> None:
        for name in ("collect", "push", *WORKERS):
            part = self._parts.get(name)
            if part is not None and part.is_running:
                continue
            if part is not None:
                self._judge(name, part, part.ended())
            if name in WORKERS:
                # The first one reaches Redis over the wire that is cut now and then.
                where = {"TOKENMILL_REDIS_URL": f"redis://{self._to_redis.address}/0"} if name == "w0" else {}
                self._parts[name] = self._job.start("work", "--name", name, "--stay", **where)
            else:
                self._parts[name] = self._job.start(name, "--stay")

    @staticmethod
    def _judge(name: str, part: Running, code: int) -> None:
        assert code in EXPECTED, f"{name} ended with {code}:\n{part.text[-3000:]}"

    def _signal(self, name: str, number: signal.Signals) -> None:
        if self._parts[name].is_running:
            self._parts[name].send(number)

    def _pause(self, name: str) -> None:
        part = self._parts[name]
        self._signal(name, signal.SIGSTOP)
        self._later(self._draw.uniform(0.3, 2.5), lambda: part.send(signal.SIGCONT))

    def _later(self, seconds: float, heal: Callable[[], None]) -> None:
        self._heals.append((time.monotonic() + seconds, heal))

    def _take_back(self, now: float) -> None:
        due = [heal for at, heal in self._heals if at <= now]
        self._heals = [entry for entry in self._heals if entry[0] > now]
        for heal in due:
            heal()

    # -- Redis

    def _kill_redis(self) -> None:
        self._redis.kill()
        time.sleep(self._draw.uniform(0, 0.5))
        self._redis.start("--aof-load-truncated", "yes")

    def _cut_redis(self) -> None:
        """kill -9, and the end of what it wrote is gone, as after a power cut."""
        self._redis.kill()
        newest = max((self._redis.folder / "appendonlydir").glob("*.incr.aof"))
        size = newest.stat().st_size
        with newest.open("r+b") as file:
            file.truncate(max(0, size - self._draw.randrange(1000, 200_000)))
        self._redis.start("--aof-load-truncated", "yes")

    def _freeze_redis(self) -> None:
        process = self._redis.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._draw.uniform(0.2, 3))
        process.send_signal(signal.SIGCONT)

    def _fill_redis(self) -> None:
        self._redis.client.config_set("maxmemory", 1)
        self._later(self._draw.uniform(0.2, 1.5), lambda: self._redis.client.config_set("maxmemory", 0) and None)

    def _empty(self) -> None:
        for name in self._job.names:
            queue = f"rq:queue:{name}"
            for job in self._redis.client.lrange(queue, 0, -1):
                self._redis.client.delete(f"rq:job:{job.decode()}")
            self._redis.client.delete(queue)

    def _budget(self) -> None:
        """Through the command, as a person does it; refused where Redis was just emptied."""
        name = self._draw.choice(self._job.names)
        # A smaller one is refused under `strict`: no answer would fit.
        least = self._job.tables["sampling"]["max_new_tokens"]
        cap = self._draw.choice([None, 0, max(least, self._draw.randrange(8000))])
        ended = self._job.call("budget", "set", name, "none" if cap is None else str(cap))
        assert ended.code in EXPECTED, ended.err
        highest = self.highest[name]
        self.highest[name] = None if highest is None or cap is None else max(highest, cap)

    # -- SGLang

    def _kill_simulator(self) -> None:
        self._simulator.kill()
        self._later(self._draw.uniform(0.1, 1.0), self._simulator.revive)

    def _simulator_faults(self) -> None:
        """A few of its faults at once, for a while."""
        if self._simulator.is_dead:
            return
        modes = self._draw.sample(MODES, 3)
        faults = [Fault(mode=mode, probability=0.1, count=4, seconds=0.05 if mode == "drip" else 0) for mode in modes]
        choices: list[Mode | None] = [*SERVER_WIDE, None]
        whole = self._draw.choice(choices)
        if whole is not None:
            faults.append(Fault(mode=whole, seconds=self._draw.uniform(0.2, 1.5)))
        self._tell(*faults)

    def _tell(self, *faults: Fault) -> bool:
        """False where it cannot be told: it refuses connections just now."""
        with contextlib.suppress(OSError):
            self._simulator.faults(*faults)
            return True
        return False

    # -- wires

    def _wire(self, wire: TcpProxy) -> None:
        how = self._draw.choice([wire.cut, wire.blackhole, wire.lose_replies, lambda: wire.delay(0.1)])
        how()
        self._later(self._draw.uniform(0.3, 3), wire.heal)
