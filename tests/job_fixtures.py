"""A run's folder, a Redis and a simulated server for each test; all of them gone after it."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e_support import Job, RedisServer, Simulator, simulator_config

StartSimulator = Callable[..., Simulator]


@pytest.fixture
def local_job(tmp_path: Path) -> Generator[Job]:
    """A run without any Redis: `run` starts its own."""
    job = Job(tmp_path)
    try:
        yield job
    finally:
        job.end_all()


@pytest.fixture
def redis_server() -> Generator[RedisServer]:
    server = RedisServer().start()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def job(local_job: Job, redis_server: RedisServer) -> Job:
    """A run with a Redis of the test's own."""
    local_job.environment["TOKENMILL_REDIS_URL"] = redis_server.url
    return local_job


@pytest.fixture
def start_simulator(tmp_path: Path) -> Generator[StartSimulator]:
    started: list[Simulator] = []

    def start(**settings: Any) -> Simulator:
        simulator = Simulator(tmp_path, simulator_config(tmp_path, **settings))
        started.append(simulator)
        return simulator

    try:
        yield start
    finally:
        for simulator in started:
            simulator.stop()
