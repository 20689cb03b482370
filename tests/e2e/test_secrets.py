"""Keys are where they belong: in the environment, and nowhere else that anybody can look at."""

import json
import os
import threading
import urllib.request
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import msgspec
import pytest
import zstandard

from tests.dashboard_support import Dashboard
from tests.e2e_support import Job, prompts, redis_binary, simulator_config, wait_for
from tests.e2e_support import found as said_by
from tests.redis_support import HOST, GuardedRedis

KEY, PASSWORD, TOKEN = (f"kept-{name}-{os.urandom(6).hex()}" for name in ("key", "password", "token"))
SECRETS = (KEY, PASSWORD, TOKEN)
SLOTS = 4


class Watch:
    """Looks at the command lines of all processes, all the time."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = entry.read_bytes().decode(errors="replace")
                except OSError:
                    continue
                self._seen.add(words)
                if leaks(words):
                    self.found.add(words)

    def end(self) -> int:
        """How many command lines it saw."""
        self._stop.set()
        self._thread.join()
        return len(self._seen)


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@pytest.fixture
def store() -> Generator[GuardedRedis]:
    server = GuardedRedis(redis_binary(), [f"requirepass {PASSWORD}"])
    try:
        yield server.start()
    finally:
        server.remove()


def plain(data: bytes) -> Iterator[str]:
    """The bytes as they are, and unpacked where they are packed: RQ packs its payloads, we pack our records."""
    yield data.decode(errors="replace")
    unpacking: tuple[Callable[[bytes], bytes], ...] = (zlib.decompress, lambda d: zstandard.decompress(d, 1 << 24))
    for unpack in unpacking:
        try:
            yield unpack(data).decode(errors="replace")
        except (zlib.error, zstandard.ZstdError):
            continue


def leaves(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for pair in cast("dict[Any, Any]", value).items():
            yield from leaves(pair)
    elif isinstance(value, list | tuple | set):
        for held in cast("list[Any]", value):
            yield from leaves(held)


def everything(client: Any) -> Iterator[tuple[bytes, bytes]]:
    """Every key of the database, with each piece of what it holds."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"stream": client.xrange,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1),
    }
    for key in client.keys("*"):
        yield key, key
        kind = client.type(key)
        if kind in read:
            for value in leaves(read[kind](key)):
                yield key, value


def in_redis(client: Any) -> tuple[set[str], int]:
    """The keys with a secret in them, and how many pieces were looked at."""
    pieces = list(everything(client))
    return {repr(key) for key, value in pieces for text in plain(value) if leaks(text)}, len(pieces)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def test_secrets_are_nowhere_to_be_seen(local_job: Job, store: GuardedRedis, tmp_path_factory: Any) -> None:
    job, watch = local_job, Watch()
    job.forks = False  # command lines are looked at
    # Its key by a file outside of what is searched, as anybody who starts a server by hand should give it.
    hidden = tmp_path_factory.mktemp("hidden") / "simulator.json"
    config = msgspec.structs.replace(simulator_config(job.folder), api_key=KEY)
    hidden.write_bytes(msgspec.json.encode(config))
    command = job.command("sim")[:-2]
    simulator = job.start_command([*command, "sim", "--config", str(hidden)])
    url = said_by(r"listening on (\S+)", simulator)

    def control(path: str, body: Any) -> None:
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=60).close()

    job.environment |= {
        "TOKENMILL_REDIS_URL": f"redis://:{quote(PASSWORD)}@{HOST}:{store.port}/0", "TOKENMILL_SGLANG_API_KEY": KEY,
    }  # fmt: skip
    for name in ("A1", "B2"):
        job.dataset(name, [*prompts(name, 12), {"id": f"{name}/bad", "input_ids": []}], max_tokens="none")
    job.tables["sglang"] = {"servers": [url], "concurrency": SLOTS}
    control("/slow_down", {"forward_sleep_time": 0.4 * 200})
    run = job.write().start("run", "--verbose")
    client = store.client(password=PASSWORD)
    wait_for("all in flight", lambda: sum(client.hlen(f"budget:{name}:leases") for name in job.names) == SLOTS)
    late = job.start("work", "--verbose", "--metrics-port", "0")
    metrics = said_by(r"(http://\S+/metrics)", late)
    wait_for("the second worker", lambda: client.scard("rq:workers") == 2)
    dashboard = Dashboard(job, token=TOKEN)
    assert dashboard.act("pause", token=TOKEN).code == dashboard.act("resume", token=TOKEN).code == 200
    dashboard.state()
    shown = {path: dashboard.ask(path).body.decode() for path in ("/", "/state.json", "/metrics", "/nothing")}
    shown |= {"worker": get(metrics)}
    found, middle = in_redis(client)
    control("/slow_down", {"forward_sleep_time": 0})
    for name in ("status", "servers", "budget"):
        ended = job.call(name)
        shown[name] = ended.out + ended.err
    assert run.ended() == 0, run.text
    assert late.ended() == 0, late.text
    job.check()
    ended = job.call("status", "--json")
    wrong = job.call("doctor", "--json", TOKENMILL_SGLANG_API_KEY=f"{TOKEN}-is-wrong")
    shown |= {"status --json": ended.out, "a wrong key": wrong.out + wrong.err}
    assert wrong.code == 1
    again, last = in_redis(client)

    assert middle > 100 and last > 50
    assert not found | again
    assert watch.end() > 8 and not watch.found
    assert {name for name, text in shown.items() if leaks(text)} == set()
    files = [path for path in job.folder.rglob("*") if path.is_file()]
    assert {"report.html", "raw_responses.jsonl", "rejected.jsonl", "collector.log"} <= {path.name for path in files}
    assert [path.name for path in files if leaks(path.read_bytes().decode(errors="replace"))] == []
