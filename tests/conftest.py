"""Servers for the tests of all parts: one shared by a process' tests, and own ones for those that break them."""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings

from tests.support import OwnServer, server_binary

# A shell that starts the tests in the background has SIGINT ignored, nohup SIGHUP, and so would every process that
# they start.
with contextlib.suppress(ValueError):  # not in the main thread
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Shrinking against a real server takes minutes: `--hypothesis-profile=long` does it, and looks further.
settings.register_profile(
    "quick",
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long", max_examples=1000, stateful_step_count=80, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")


class StartServer(Protocol):
    """Starts a server of the test's own, ended after the test."""

    def __call__(self, *, aof: bool = False, settings: Sequence[str] = ()) -> OwnServer: ...


@pytest.fixture(
    scope="session", params=[pytest.param("redis-server", marks=pytest.mark.redis_server), pytest.param("valkey")]
)
def redis_binary(request: pytest.FixtureRequest) -> str:
    """The server under test. A test that needs but one: `parametrize("redis_binary", ["valkey"], indirect=True)`."""
    path = server_binary(request.param)
    if path is None:
        pytest.skip(f"no {request.param} on PATH")
    return path


@pytest.fixture(scope="session")
def redis_server(redis_binary: str) -> Iterator[OwnServer]:
    """A server that this process' tests share; do not stop it or change its configuration."""
    server = OwnServer(redis_binary)
    yield server
    server.close()


@pytest.fixture
def connection(redis_server: OwnServer) -> "Iterator[redis.Redis]":
    """A client of the shared server, which holds nothing."""
    with redis_server.client() as client:
        flushing: Any = client
        flushing.flushall()
        yield client


@pytest.fixture
def start_server(redis_binary: str) -> Iterator[StartServer]:
    started: list[OwnServer] = []

    def start(*, aof: bool = False, settings: Sequence[str] = ()) -> OwnServer:
        server = OwnServer(redis_binary, aof=aof, settings=settings)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
