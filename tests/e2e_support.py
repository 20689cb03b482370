"""What the end-to-end tests stand on: real processes, a real Redis, a real simulated server, a run file.

Nothing is shared between two tests, and nothing that a test starts outlives it: each process is ended by
its id, and `processes_of` finds what a killed parent might have left behind.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec
import redis

from tests.nursery import Child, suits
from tokenmill.embedded import _binary as _redis_binary  # pyright: ignore[reportPrivateUsage]
from workers.simulator.config import SimulatorConfig
from workers.simulator.faults import Fault
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

ROOT = Path(__file__).parent.parent
TOKENIZER = ROOT / "examples" / "tokenizer"
PATIENCE_S = 120.0
HELD_TOKENS = 400
# Short enough that a death is noticed within a second, long enough for a machine that has other work.
TIMING = {"lease_ms": 3000, "renew_ms": 500, "sweep_ms": 300, "retry_ms": 200}

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The first true answer of `condition`; fails with `what` when it does not come."""
    deadline = time.monotonic() + patience_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(0.02)
    return answer


def redis_binary() -> str:
    """The server that `run` would start."""
    return _redis_binary()


def found(pattern: str, running: "Running") -> str:
    """What the first group of the pattern is in what a process says, once it says it."""
    said = wait_for(f"{pattern} in what it says", lambda: re.search(pattern, running.text))
    return said[1] if said else ""


class RedisServer:
    """A Redis or Valkey on a unix socket, with an append-only file; it can be killed and started again.

    `binary` is the server's path; by default the one that `run` would start.
    """

    def __init__(self, binary: str | None = None) -> None:
        self._binary = binary or redis_binary()
        self.folder = Path(tempfile.mkdtemp(prefix="tm-e2e-", dir="/tmp"))
        self.url = f"unix://{self.folder}/redis.sock"
        self.client: Any = redis.Redis(unix_socket_path=f"{self.folder}/redis.sock")
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def at(cls, url: str) -> "RedisServer":
        """One that another process is, to look into."""
        server = cls()
        server.url = url
        server.client = redis.Redis.from_url(url)
        wait_for("Redis to start", server._answers)
        return server

    def start(self, *options: str) -> "RedisServer":
        command = [self._binary, "--port", "0", "--unixsocket", f"{self.folder}/redis.sock", "--save", ""]
        command += ["--dir", str(self.folder), "--appendonly", "yes", "--maxmemory-policy", "noeviction", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("Redis to start", self._answers)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            return bool(self.client.ping())
        return False

    def holders(self, *datasets: str) -> Counter[str]:
        """How many jobs each worker has in flight."""
        leases = [lease for name in datasets for lease in self.client.hvals(f"budget:{name}:leases")]
        return Counter(lease.decode().split(" ")[-1] for lease in leases)

    def spent(self, dataset: str) -> int:
        return int(self.client.get(f"budget:{dataset}:spent") or 0)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.kill()
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """Its sentences on standard error, without the log's lines."""
        return [line for line in self.err.splitlines() if line.startswith("tokenmill: ")]


class Process(Protocol):
    """What is used of `subprocess.Popen` here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int, /) -> None: ...


class Running:
    """A process of a test, in a session of its own, with what it says in a file."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path, root: Path = ROOT, *, forks: bool = True
    ) -> None:
        self.log = log
        log.touch()
        if forks and suits(command, environment):
            self.process: Process = Child(command, environment, root, log)
            return
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, env=environment, cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9 of this process alone."""
        self.process.kill()
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, patience_s: float = PATIENCE_S) -> int:
        """Its exit code; fails with its log where it does not end."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience_s:.0f} s; it said:\n{self.text}") from None


def run_to_its_end(
    command: list[str], environment: Mapping[str, str], root: Path, patience_s: float, *, forks: bool
) -> Ended:
    """Run a command, and say how it ended."""
    if not (forks and suits(command, environment)):
        done = subprocess.run(
            command, env=environment, cwd=root, timeout=patience_s, capture_output=True, text=True, errors="replace",
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)
    with tempfile.TemporaryDirectory(prefix="tm-said-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        child = Child(command, environment, root, out, err)
        try:
            code = child.wait(patience_s)
        finally:
            child.kill()
        return Ended(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def prompts(dataset: str, count: int) -> list[dict[str, Any]]:
    """Rows with token ids: nothing to render, nothing that two datasets have in common."""
    first = 10 + sum(dataset.encode()) % 1000
    return [{"id": f"{dataset}/{n}", "input_ids": [first, 3 + n % 900, 3 + n // 900]} for n in range(count)]


class Job:
    """A folder with a run file and its prompts, and the commands on it.

    The run file is written by `write`, from `tables` and the datasets that were added; change them and
    write again to edit it. Commands are those of the packages in `root`; they are forked (see `tests.nursery`)
    unless `forks` says otherwise.
    """

    def __init__(self, folder: Path, root: Path = ROOT, *, forks: bool = True) -> None:
        self.folder = folder
        self.root = root
        self.forks = forks
        self.file = folder / "run.toml"
        self.output = folder / "out"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
        self.tables: dict[str, dict[str, Any]] = {
            "run": {"name": "test", "max_tokens_per_dataset": 2000},
            # A path in the folder, so that every process of this run is known by its command line.
            "model": {"tokenizer": str(folder / "tokenizer")},
            "sampling": {"max_new_tokens": 600},
            "sglang": {"concurrency": 16},
            "timing": dict(TIMING),
        }
        self.datasets: dict[str, dict[str, Any]] = {}
        self.started: list[Running] = []
        if not (folder / "tokenizer").exists():
            (folder / "tokenizer").symlink_to(TOKENIZER)

    @property
    def names(self) -> list[str]:
        return list(self.datasets)

    def dataset(self, name: str, rows: Iterable[Any] | bytes, **keys: Any) -> None:
        path = self.folder / f"{name}.jsonl"
        data = rows if isinstance(rows, bytes) else b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        path.write_bytes(data)
        self.datasets[name] = {"name": name, "prompts": path.name, **keys}

    def write(self) -> "Job":
        parts = [_toml(f"[{name}]", table) for name, table in self.tables.items()]
        parts += [_toml("[[dataset]]", table) for table in self.datasets.values()]
        self.file.write_text("\n".join(parts))
        return self

    # -- commands

    def command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tokenmill", name, str(self.file), *arguments]

    def call(self, name: str, *arguments: str, patience_s: float = PATIENCE_S, **environment: str) -> Ended:
        """Run a command to its end."""
        done = run_to_its_end(
            self.command(name, *arguments), {**self.environment, **environment}, self.root, patience_s, forks=self.forks
        )
        assert "Traceback" not in done.err + done.out, done.err + done.out
        return done

    def start(self, name: str, *arguments: str, **environment: str) -> Running:
        return self.start_command(self.command(name, *arguments), **environment)

    def start_command(self, command: list[str], **environment: str) -> Running:
        log = self.folder / f"process-{len(self.started)}.log"
        running = Running(command, {**self.environment, **environment}, log, self.root, forks=self.forks)
        self.started.append(running)
        return running

    def start_rq(self, *arguments: str, **environment: str) -> Running:
        """One of RQ's own commands, at the run's Redis."""
        command = [sys.executable, "-m", "rq.cli", *arguments, "--url", self.environment["TOKENMILL_REDIS_URL"]]
        return self.start_command(command, PYTHONPATH=str(ROOT), **environment)

    def start_parts(self, *workers: str) -> tuple[Running, Running, Running]:
        """Collector, producer and one `work` with these arguments."""
        return self.start("collect"), self.start("push"), self.start("work", *workers)

    def finish(self, *parts: Running) -> None:
        """All of these end well by themselves."""
        for part in parts:
            assert part.ended() == 0, part.text

    def end_all(self) -> None:
        for running in self.started:
            if running.is_running:
                running.kill()
        for pid in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- what came of it

    def status(self) -> dict[str, Any]:
        shown = self.call("status", "--json")
        assert shown.code == 0, shown.err
        return json.loads(shown.out)

    def lines(self, dataset: str) -> list[dict[str, Any]]:
        """The answers in the file, whole lines only."""
        return _lines(self.output / dataset / "raw_responses.jsonl")

    def rejected(self, dataset: str) -> list[dict[str, Any]]:
        return _lines(self.output / dataset / "rejected.jsonl")

    def dropped(self, dataset: str) -> list[dict[str, Any]]:
        return _lines(self.output / dataset / "dropped.jsonl")

    def count(self) -> int:
        return sum(len(self.lines(name)) for name in self.names)

    def tokens(self, dataset: str) -> int:
        return sum(line["completion_tokens"] for line in self.lines(dataset))

    def files(self) -> dict[str, bytes]:
        """Every file that people read, with its bytes."""
        found = sorted(self.output.glob("*/*.jsonl"))
        return {str(path.relative_to(self.output)): path.read_bytes() for path in found}

    def check(self) -> None:
        """`tokenmill verify` agrees, and no answer stands twice."""
        verdict = self.call("verify")
        assert verdict.code == 0, verdict.out + verdict.err
        for name in self.names:
            ids = [(line.get("id"), line.get("turn")) for line in self.lines(name)]
            assert len(ids) == len(set(ids)), f"{name} holds an answer twice"

    def check_all_answered(self) -> None:
        """Every prompt of every dataset has its answer, once."""
        self.check()
        for name, table in self.datasets.items():
            wanted = [row["id"] for row in _lines(self.folder / table["prompts"])]
            assert sorted(line["id"] for line in self.lines(name)) == sorted(wanted)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.split(b"\n")] if whole else []


def _toml(head: str, table: Mapping[str, Any]) -> str:
    return "\n".join([head, *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]) + "\n"


def _key(key: str) -> str:
    return json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return "{ " + ", ".join(f"{_key(key)} = {_value(held)}" for key, held in table.items()) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)  # nan and inf are called so in TOML too
    if isinstance(value, list):
        return "[" + ", ".join(_value(held) for held in cast("list[Any]", value)) + "]"
    return json.dumps(value)


def processes_of(folder: Path) -> list[int]:
    """The ids of all live processes that have this folder in their command line, or work in it (Redis does)."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(folder) in words or (entry / "cwd").readlink().is_relative_to(folder):
                    found.append(int(entry.name))
    return found


class SimulatedServer:
    """A simulated server of whoever started it, and its own counts. `speed` is its time scale."""

    def __init__(self, url: str, speed: float) -> None:
        self.url = url
        self._speed = speed

    def state(self) -> dict[str, Any]:
        return self._call("/simulator/state", None)

    def hold(self) -> None:
        """From now on nothing is finished, until `let_go`: the middle of a run, for as long as a test needs it.

        A token takes so long that an answer of `HELD_TOKENS` outlasts every wait, while the single token
        with which a worker tries a server comes soon.
        """
        self._call("/slow_down", {"forward_sleep_time": 0.4 * self._speed})

    def let_go(self) -> None:
        self._call("/slow_down", {"forward_sleep_time": 0})

    def faults(self, *faults: Fault) -> None:
        """These faults instead of those in force."""
        self._call("/simulator/faults", {"faults": msgspec.to_builtins(list(faults))})

    def _call(self, path: str, body: Any) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def served(self, *datasets: str) -> int:
        """Requests of these datasets that were answered; the workers' own probes name none."""
        found = self.state()["datasets"]
        return sum(found[name]["finished"] for name in datasets if name in found)

    def finished_tokens(self, *datasets: str) -> int:
        """Tokens of all the answers that it gave, kept or not."""
        found = self.state()["datasets"]
        return sum(found[name]["finished_tokens"] for name in datasets if name in found)


class Simulator(SimulatedServer):
    """A simulated server of the test's own, and its log."""

    def __init__(self, folder: Path, config: SimulatorConfig) -> None:
        self.log = folder / "simulator.jsonl"
        self.child = SimulatorProcess.start(config)
        super().__init__(self.child.url, config.time_scale)

    def stop(self) -> None:
        self.child.stop(grace_s=0)


def simulator_config(
    folder: Path, *, tokens: float = HELD_TOKENS, speed: float = 200, **changes: Any
) -> SimulatorConfig:
    """A server whose answers all have `tokens` tokens; at speed 1 about 100 of them a second."""
    settings: dict[str, Any] = {
        "tokenizer": str(TOKENIZER),
        "model": "simulated",
        "time_scale": speed,
        "lengths": {"*": LengthSpec(shape="constant", mean=tokens)},
        "log_path": str(folder / "simulator.jsonl"),
        **changes,
    }
    return SimulatorConfig(**settings)
