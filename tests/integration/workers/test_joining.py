"""A worker that has joined, and whose Redis goes away before it has all that it needs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from budget import connections, keys
from budget.environment import for_child
from tests.integration.workers.test_concurrency import JOBS, publish
from tests.support import wait_until
from tests.tcp_proxy import TcpProxy
from tokenmill.embedded import EmbeddedRedis
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

# It says when it has joined, and goes on when it is told to.
WORK = """
from budget import connections, environment
from workers import AsyncWorker, async_worker

pieces_of = async_worker.pieces_of

def after_a_word(connection, facts):
    if waits:
        waits.pop()
        print("joined", flush=True)
        input()
    return pieces_of(connection, facts)

waits = [True]
async_worker.pieces_of = after_a_word
worker = AsyncWorker(['D'], connection=connections.connect(environment.redis_url()), stay=True)
print("left well", worker.work(), flush=True)
"""


@pytest.fixture
def server() -> Iterator[SimulatorProcess]:
    config = SimulatorConfig(time_scale=10, lengths={"*": LengthSpec(shape="constant", mean=100)})
    started = SimulatorProcess.start(config)
    yield started
    started.stop(grace_s=0)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as running:
        yield running


@pytest.fixture
def proxy(embedded: EmbeddedRedis) -> Iterator[TcpProxy]:
    running = TcpProxy(embedded.url.removeprefix("unix://"))
    yield running
    running.close()


@pytest.fixture
def worker(proxy: TcpProxy) -> Iterator["subprocess.Popen[str]"]:
    started = subprocess.Popen(
        [sys.executable, "-c", WORK], env=for_child(redis_url=f"redis://{proxy.address}/0"), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    yield started
    started.kill()
    started.wait()


def test_it_starts_when_redis_is_back(
    server: SimulatorProcess, embedded: EmbeddedRedis, proxy: TcpProxy, worker: "subprocess.Popen[str]"
) -> None:
    connection: Any = connections.connect(embedded.url)
    publish(connection, server.url, pieces_digest="0" * 32)
    assert worker.stdin and worker.stdout and worker.stderr
    assert worker.stdout.readline() == "joined\n"
    proxy.cut()
    worker.stdin.write("\n")
    worker.stdin.flush()
    while "starts as soon as it can" not in (line := worker.stderr.readline()):
        assert line, "it ended"
    proxy.heal()
    wait_until(lambda: connection.hlen(keys.done("D")) == JOBS, what="all is answered")
    worker.terminate()
    out, errors = worker.communicate(timeout=60)
    assert "left well False" in out and "Traceback" not in errors
