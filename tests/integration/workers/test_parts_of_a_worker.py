"""A part of a worker fails in a way that nobody expected: what is in flight is finished, then it is said."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from budget import connections, keys
from budget.environment import for_child
from tests.integration.workers.test_concurrency import SLOTS, publish
from tests.support import wait_until
from tokenmill.embedded import EmbeddedRedis
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

# Renewals and heartbeats are tasks that nobody waits for: each is replaced by one that fails once jobs are in flight.
WORK = """
import asyncio
from budget import connections, environment
from workers import AsyncWorker
from workers.beats import Beats
from workers.leases import Leases

async def fails(self, *_):
    flights = self._flights if isinstance(self, Leases) else self._engine.flights
    while len(flights) < {slots}:
        await asyncio.sleep(0.01)
    raise RuntimeError("it broke")

{part} = fails
worker = AsyncWorker(['D'], connection=connections.connect(environment.redis_url()), stay=True)
worker.work()
print(type(worker.problem).__name__, worker.problem)
"""


@pytest.mark.parametrize("part", ["Leases.keep_for_ever", "Beats.go_on_for_ever"])
def test_a_part_in_the_background_fails(tmp_path: Path, part: str) -> None:
    length = LengthSpec(shape="constant", mean=100)
    server = SimulatorProcess.start(SimulatorConfig(time_scale=10, lengths={"*": length}))
    try:
        with EmbeddedRedis(tmp_path) as embedded:
            connection: Any = connections.connect(embedded.url)
            publish(connection, server.url)
            worker = subprocess.run(
                [sys.executable, "-c", WORK.format(slots=SLOTS, part=part)], env=for_child(redis_url=embedded.url),
                capture_output=True, text=True, timeout=120, check=True,
            )  # fmt: skip
            assert "OwnFault a fault in Tokenmill itself (RuntimeError: it broke)" in worker.stdout, worker
            assert "Traceback" not in worker.stderr
            done = wait_until(lambda: connection.hlen(keys.done("D")), what="what was in flight is committed")
            assert done >= SLOTS and not connection.hlen(keys.leases("D"))
    finally:
        server.stop(grace_s=0)
