"""Redis fails in the middle of a run: full, killed, emptied. Nothing is lost, nothing is made or counted twice."""

from collections.abc import Callable

import pytest

from tests.e2e_support import HELD_TOKENS, Job, RedisServer, Running, Simulator, prompts, wait_for

StartSimulator = Callable[..., Simulator]
Parts = tuple[Running, Running, Running]
Middle = tuple[Simulator, Parts]

COUNT, SLOTS = 60, 16


@pytest.fixture
def middle(job: Job, redis_server: RedisServer, start_simulator: StartSimulator) -> Middle:
    """Some answers are in the files, and all slots are in flight at a held server."""
    simulator = start_simulator(speed=20)
    for name in ("A1", "B2"):
        job.dataset(name, prompts(name, COUNT // 2), max_tokens="none")
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    parts = job.write().start_parts()
    wait_for("some answers", lambda: job.count() > 0)
    simulator.hold()
    wait_for("all slots to be in flight", lambda: redis_server.holders(*job.names).total() == SLOTS)
    return simulator, parts


def finish(job: Job, redis_server: RedisServer, simulator: Simulator, parts: Parts) -> None:
    job.finish(*parts)
    job.check_all_answered()
    assert simulator.served(*job.names) == COUNT, "no answer had to be made again"
    for name in job.names:
        assert redis_server.spent(name) == job.tokens(name) == COUNT // 2 * HELD_TOKENS


def test_a_redis_without_memory_pauses_the_run(job: Job, redis_server: RedisServer, middle: Middle) -> None:
    simulator, parts = middle
    redis_server.client.config_set("maxmemory", 1)
    simulator.let_go()
    wait_for("the worker to say so", lambda: "out of memory" in parts[2].text)
    assert all(part.is_running for part in parts)
    redis_server.client.config_set("maxmemory", 0)
    finish(job, redis_server, simulator, parts)


def test_a_redis_that_is_killed_and_comes_back(job: Job, redis_server: RedisServer, middle: Middle) -> None:
    simulator, parts = middle
    redis_server.kill()
    simulator.let_go()
    wait_for("the worker to say so", lambda: "Redis does not answer" in parts[2].text)
    wait_for("all in flight to be answered", lambda: simulator.state()["running"] == 0)
    redis_server.start()
    finish(job, redis_server, simulator, parts)


def test_a_redis_that_is_emptied(job: Job, redis_server: RedisServer, middle: Middle) -> None:
    simulator, parts = middle
    redis_server.client.flushall()
    simulator.let_go()
    job.finish(*parts)
    job.check_all_answered()
    # What was committed and not yet in the files may be gone, and is made again.
    assert simulator.served(*job.names) <= COUNT + SLOTS
    for name in job.names:
        assert redis_server.spent(name) == job.tokens(name)


def test_scripts_and_jobs_that_vanish(job: Job, redis_server: RedisServer, middle: Middle) -> None:
    """SCRIPT FLUSH, `rq empty` by hand, and a job hash that somebody deleted."""
    simulator, parts = middle
    client = redis_server.client
    client.script_flush()
    for name in job.names:
        queued = client.lrange(f"rq:queue:{name}", 0, -1)
        client.delete(f"rq:queue:{name}", *(f"rq:job:{id.decode()}" for id in queued))
        for id in client.hkeys(f"budget:{name}:leases")[:2]:
            client.delete(f"rq:job:{id.decode()}")
    simulator.let_go()
    finish(job, redis_server, simulator, parts)
