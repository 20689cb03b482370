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


def test_damaged_leases_are_mended_while_the_run_goes_on(job: Job, redis_server: RedisServer, middle: Middle) -> None:
    simulator, parts = middle
    client = redis_server.client
    client.hset("budget:A1:leases", "junk", "junk")
    client.hset("budget:B2:leases", "junk", "junk")
    client.zadd("budget:B2:expiry", {"junk": 1e15})
    client.hset("budget:A1:leases", client.hkeys("budget:A1:leases")[0], "junk")
    wait_for("one of them to mend it", lambda: any("is mended" in part.text for part in parts))
    wait_for("the junk to be gone", lambda: not client.hexists("budget:B2:leases", "junk"))
    simulator.let_go()
    finish(job, redis_server, simulator, parts)


def test_verify_names_a_damaged_lease(job: Job, redis_server: RedisServer, middle: Middle) -> None:
    _, parts = middle
    for part in parts:
        part.kill()
    redis_server.client.hset("budget:B2:leases", "junk", "junk")
    verdict = job.call("verify")
    assert verdict.code == 1, verdict.err
    assert "lease of junk cannot be read" in verdict.out


@pytest.mark.parametrize(
    ("key", "place"), [("budget:A1:spent", "budget:A1:spent"), ("budget:B2", "field cap of budget:B2")]
)
def test_a_number_that_is_none_ends_the_run_with_its_key_and_the_mend(
    job: Job, redis_server: RedisServer, middle: Middle, key: str, place: str
) -> None:
    simulator, parts = middle
    client = redis_server.client
    if key.endswith("spent"):
        client.set(key, "abc")
    else:
        client.hset(key, "cap", "abc")
    simulator.let_go()
    for part in parts[:2]:
        assert part.ended() == 5
        (said,) = [line for line in part.text.splitlines() if line.startswith("tokenmill: ")]
        assert place in said and "tokenmill reset" in said, said
    parts[2].kill()
    for command in ("status", "verify"):
        ended = job.call(command)
        assert ended.code == 5, ended.err
        assert place in ended.err and "tokenmill reset" in ended.err
    assert job.call("reset", "--yes").code == 0
    job.finish(*job.start_parts())
    job.check_all_answered()


def test_a_job_of_another_type_stops_no_dataset(job: Job, redis_server: RedisServer, middle: Middle) -> None:
    simulator, parts = middle
    client = redis_server.client
    for name in job.names:
        for id in (client.lindex(f"rq:queue:{name}", 0), client.hkeys(f"budget:{name}:leases")[0]):
            client.delete(f"rq:job:{id.decode()}")
            client.set(f"rq:job:{id.decode()}", "junk")
    simulator.let_go()
    finish(job, redis_server, simulator, parts)


def test_parts_that_start_at_a_redis_without_memory_wait_for_it(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    job.dataset("A1", prompts("A1", 5), max_tokens="none")
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    redis_server.client.config_set("maxmemory", 1)
    collect = job.write().start("collect")
    wait_for("the collector to say so", lambda: "out of memory" in collect.text)
    redis_server.client.config_set("maxmemory", 0)
    push = job.start("push")
    wait_for("prompts in the queue", lambda: redis_server.client.llen("rq:queue:A1") == 5)
    redis_server.client.config_set("maxmemory", 1)
    work = job.start("work")
    wait_for("the worker to say so", lambda: "out of memory" in work.text)
    assert work.is_running
    redis_server.client.config_set("maxmemory", 0)
    job.finish(collect, push, work)
    job.check_all_answered()
