"""A master is killed in mid-run, and Sentinels make its replica the master, which knows less than the master did."""

import signal
import subprocess
import sys
from collections.abc import Callable, Generator

import pytest

from tests.e2e_support import ROOT, Job, Simulator, redis_binary, wait_for
from tests.faults.scenes import SLOTS, TOKENS, Scene
from tests.redis_support import WatchedRedis

IN_FLIGHT = 2 * SLOTS * TOKENS * 2


@pytest.fixture
def watched() -> Generator[WatchedRedis]:
    servers = WatchedRedis(redis_binary())
    try:
        yield servers.start()
    finally:
        servers.remove()


@pytest.mark.timeout(300)
def test_a_failover_in_mid_run(local_job: Job, watched: WatchedRedis, mortal: Callable[..., Simulator]) -> None:
    """What the replica had not heard is mended: from the files, or made again where it had not reached them."""
    scene = Scene(local_job, watched, mortal()).start()
    job = scene.job
    scene.until(0.2)
    scene.simulator.hold()
    rq = [sys.executable, "-m", "rq.cli", "info", "-c", "tokenmill.rq_settings"]
    shown = subprocess.run(rq, env=job.environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "2 workers, 2 queues" in shown
    scene.simulator.let_go()

    watched.wire.blackhole()
    scene.until(0.5)
    scene.parts["collect"].send(signal.SIGSTOP)
    master, replica = watched.itself(watched.master), watched.itself(watched.replica)
    wait_for("answers that no file has", lambda: sum(master.xlen(f"results:{name}") for name in job.names) > 10)
    watched.kill()
    watched.wire.cut()
    written = scene.answered
    had = sum(replica.hlen(f"budget:{name}:done") for name in job.names)
    assert had < written, "the replica knows of fewer answers than are in the files"
    scene.parts["collect"].send(signal.SIGCONT)

    scene.recovered()
    assert replica.info("replication")["role"] == "master"
    cost = scene.ends("S2 failover to a replica that is behind", most_again=2 * IN_FLIGHT)
    print(f"the replica had {had} of {written} answers that were in the files; made again: {cost.again} tokens")
