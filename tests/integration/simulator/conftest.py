"""Servers for these tests: in this process by default, as a process where signals and exits matter."""

from collections.abc import Callable, Iterator

import pytest

from workers.simulator.config import SimulatorConfig
from workers.simulator.process import SimulatorProcess


@pytest.fixture
def start_process() -> Iterator[Callable[[SimulatorConfig], SimulatorProcess]]:
    """Starts servers as processes and ends them after the test."""
    started: list[SimulatorProcess] = []

    def start(config: SimulatorConfig) -> SimulatorProcess:
        child = SimulatorProcess.start(config)
        started.append(child)
        return child

    yield start
    for child in started:
        child.stop(grace_s=0)
