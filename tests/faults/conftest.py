"""The fixtures of runs with real processes."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e_support import Job, RedisServer, Simulator, simulator_config
from tests.faults.matrix_fixtures import shared, start_case
from tests.faults.scenes import LIVELY, MortalSimulator, Scene
from tests.job_fixtures import job, local_job, redis_server, start_simulator
from tests.tcp_proxy import TcpProxy

__all__ = ["job", "local_job", "redis_server", "shared", "start_case", "start_simulator"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A scenario is a dozen processes, each of which starts a Python: give it time where there is other work."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name.startswith(("test_scenarios", "test_soak")):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def mortal(tmp_path: Path) -> Generator[Callable[..., MortalSimulator]]:
    """Starts a simulated server that a scenario may kill and start again."""
    started: list[MortalSimulator] = []

    def start(**settings: Any) -> MortalSimulator:
        config = simulator_config(tmp_path, **{**LIVELY, **settings})
        started.append(MortalSimulator(Simulator(tmp_path, config), config))
        return started[-1]

    try:
        yield start
    finally:
        for simulator in started:
            simulator.stop()


@pytest.fixture
def scene(job: Job, redis_server: RedisServer, mortal: Callable[..., MortalSimulator]) -> Scene:
    """A run that is written and not yet started."""
    return Scene(job, redis_server, mortal())


@pytest.fixture
def wire() -> Generator[Callable[[str], TcpProxy]]:
    """Starts a wire to a server (HOST:PORT or a unix socket's path)."""
    strung: list[TcpProxy] = []

    def string(target: str) -> TcpProxy:
        strung.append(TcpProxy(target))
        return strung[-1]

    try:
        yield string
    finally:
        for proxy in strung:
            proxy.close()
