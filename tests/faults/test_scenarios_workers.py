"""S1, S9, S14: workers killed, frozen, scaled up and down, and answers that come twice or late."""

import os
import random
import signal
import time
from collections.abc import Callable

from tests.e2e_support import Job, RedisServer, wait_for
from tests.faults.scenes import COUNT, SHORT_LEASE_S, SLOTS, TOKENS, MortalSimulator, Scene
from tests.tcp_proxy import TcpProxy

Wire = Callable[[str], TcpProxy]
# What one worker has in flight, in tokens: long answers are met more often than short ones.
IN_FLIGHT = SLOTS * TOKENS * 2
# 64 of them take two cores some minutes to start: that many by hand.
CROWD = int(os.environ.get("TOKENMILL_TEST_CROWD", "6"))


def test_s1_all_workers_killed_five_times(scene: Scene) -> None:
    """Killed anywhere, so now and then between an answer and its commit."""
    draw = random.Random(1)
    scene.start()
    for kill in range(5):
        wait_for("requests in flight", lambda: scene.in_flight >= SLOTS)
        time.sleep(draw.uniform(0, 0.3))
        alive = [name for name, part in scene.parts.items() if name.startswith("w") and part.is_running]
        for name in alive:
            scene.parts.pop(name).kill()
        for number in range(4 if kill == 2 else 2):
            scene.work(f"w{kill + 1}-{number}")
        scene.recovered()
    scene.ends("S1 all workers killed -9", most_again=(5 * 2 + 2) * IN_FLIGHT)


def test_s1_five_kills_cost_a_longer_run_two_percent(
    job: Job, redis_server: RedisServer, mortal: Callable[..., MortalSimulator]
) -> None:
    """What is in flight is lost with each kill; in a run that is not all in flight at once that is little."""
    scene = Scene(job, redis_server, mortal(speed=24), count=1600)
    scene.job.tables["sglang"]["concurrency"] = 4
    scene.job.write()
    scene.start()
    for kill in range(5):
        scene.until((kill + 1) / 7)
        for name in [name for name in scene.parts if name.startswith("w")]:
            scene.parts.pop(name).kill()
        for number in range(2):
            scene.work(f"w{kill + 1}-{number}")
        scene.recovered()
    cost = scene.ends("S1 all workers killed -9 in a longer run", most_again=10 * IN_FLIGHT)
    assert cost.ratio <= 1.02


def test_s1_killed_after_the_commit_was_sent(scene: Scene, wire: Wire) -> None:
    """What a worker sent arrives, but no reply: Redis has its answers, it has not heard so, and it is killed."""
    link = wire(f"{scene.redis.folder}/redis.sock")
    scene.start(workers=1, TOKENMILL_REDIS_URL=f"redis://{link.address}/0")
    wait_for("requests in flight", lambda: scene.in_flight == SLOTS)
    link.lose_replies()
    spent = sum(map(scene.redis.spent, scene.job.names))
    wait_for("a commit", lambda: sum(map(scene.redis.spent, scene.job.names)) > spent)
    scene.parts.pop("w0").kill()
    link.heal()
    scene.work("w1")
    scene.recovered()
    scene.ends("S1 killed after a commit whose reply was lost", most_again=IN_FLIGHT)


def test_s9_everything_is_delivered_twice(scene: Scene) -> None:
    """Every queued id pushed again, those in flight as well, again and again; three sweep at once all the time."""
    scene.start()
    for _ in range(3):
        for name in scene.job.names:
            queued = scene.redis.client.lrange(f"rq:queue:{name}", 0, -1)
            flying = scene.redis.client.hkeys(f"budget:{name}:leases")
            done = scene.redis.client.hkeys(f"budget:{name}:done")
            if ids := queued + flying + done[:20]:
                scene.redis.client.rpush(f"rq:queue:{name}", *ids)
    scene.ends("S9 every id pushed eight times", most_again=0)


def test_s9_a_stopped_worker_wakes_when_its_jobs_are_done(scene: Scene) -> None:
    """Its answers come late: a lease that ran out five times over, and somebody else's answer is in the file."""
    scene.short_leases()
    scene.start()
    wait_for("both in flight", lambda: set(scene.redis.holders(*scene.job.names).values()) == {SLOTS})
    scene.parts["w0"].send(signal.SIGSTOP)
    frozen = time.monotonic()
    wait_for("its jobs to be taken over", lambda: "w0" not in scene.redis.holders(*scene.job.names))
    scene.until(0.6)
    wait_for("five leases", lambda: time.monotonic() - frozen > 5 * SHORT_LEASE_S)
    scene.parts["w0"].send(signal.SIGCONT)
    scene.recovered()
    scene.ends("S9 a worker frozen for five leases, its answers late", most_again=IN_FLIGHT)


def test_s9_a_collector_that_reads_everything_again(scene: Scene) -> None:
    """Killed four times: each start reads a stream of which the files have a part."""
    scene.start()
    for _ in range(4):
        scene.more()
        scene.parts.pop("collect").kill()
        scene.parts["collect"] = scene.job.start("collect")
        scene.recovered()
    scene.ends("S9 collector killed -9", most_again=0)


def test_s14_scaled_to_nothing_and_back(
    job: Job, redis_server: RedisServer, mortal: Callable[..., MortalSimulator]
) -> None:
    """All workers go, half of them told to leave, half killed, and as many come; three times."""
    draw = random.Random(14)
    # A crowd by hand has as much to do as its slots hold, or most of it would be killed idle.
    scene = Scene(job, redis_server, mortal(), count=max(COUNT, SLOTS * CROWD // 2))
    scene.start(workers=CROWD)
    for step in range(3):
        workers = [name for name in scene.parts if name.startswith("w")]
        told = [name for name in workers if draw.random() < 0.5]
        for name in workers:
            if name in told:
                scene.parts[name].send(signal.SIGTERM)
            else:
                scene.parts.pop(name).kill()
        for name in told:
            # Of a crowd, some are told before they have begun to listen.
            assert scene.parts.pop(name).ended() in (0, 3, -signal.SIGTERM)
        if scene.answered == scene.total:
            break
        for number in range(CROWD):
            scene.work(f"w{step + 1}-{number}")
        scene.recovered()
    listed = scene.redis.client.smembers("rq:workers")
    scene.ends(f"S14 {CROWD} workers to none and back", most_again=3 * CROWD * IN_FLIGHT)
    assert len(listed) <= 2 * CROWD, "the dead are taken off RQ's list"
    wait_for("no ghost", lambda: not scene.redis.client.smembers("rq:workers"))


def test_everything_killed_at_once_charges_no_prompt(scene: Scene) -> None:
    """As in a reboot, three times: otherwise all that was in flight would be suspect, and sent one at a time."""
    scene.start()
    for _ in range(3):
        wait_for("requests in flight", lambda: scene.in_flight >= SLOTS)
        for name in list(scene.parts):
            scene.parts.pop(name).kill()
        for name in ("collect", "push"):
            scene.parts[name] = scene.job.start(name)
        wait_for("all to be back", lambda: scene.in_flight == 0)
        charged = [key for key in scene.redis.client.keys("rq:job:*") if scene.redis.client.hget(key, "deaths") != b"0"]
        assert not charged and int(scene.redis.client.hget("run", "deaths") or 0) == 0
        for name in ("again", "again-2"):
            scene.work(name)
        scene.recovered()
    scene.ends("S1 everything killed -9", most_again=3 * 2 * IN_FLIGHT)
