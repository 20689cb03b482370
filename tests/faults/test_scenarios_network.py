"""S4: the wires between worker, Redis and SGLang cut, silent, slow, or open in one direction only."""

import time
from collections.abc import Callable

from tests.e2e_support import Job, RedisServer, Simulator, wait_for
from tests.faults.scenes import NAMES, SHORT_LEASE_S, SLOTS, TOKENS, Scene
from tests.tcp_proxy import TcpProxy

Wire = Callable[[str], TcpProxy]
IN_FLIGHT = SLOTS * TOKENS * 3


def lasting(leases: float) -> None:
    began = time.monotonic()
    wait_for("some leases", lambda: time.monotonic() - began > leases * SHORT_LEASE_S)


def through(scene: Scene, link: TcpProxy) -> None:
    """One worker reaches Redis over this wire, the other one directly; both are in the middle."""
    scene.short_leases()
    scene.start(workers=1, TOKENMILL_REDIS_URL=f"redis://{link.address}/0")
    scene.work("near")
    wait_for("both in flight", lambda: set(scene.redis.holders(*scene.job.names).values()) == {SLOTS})


def test_s4_a_worker_cut_off_from_redis(scene: Scene, wire: Wire) -> None:
    """For three leases: its answers come, another worker takes its jobs over, then it is back."""
    link = wire(f"{scene.redis.folder}/redis.sock")
    through(scene, link)
    link.cut()
    lasting(3)
    link.heal()
    scene.recovered()
    scene.ends("S4 worker cut off from Redis for three leases", most_again=2 * IN_FLIGHT)


def test_s4_replies_of_redis_are_lost(scene: Scene, wire: Wire) -> None:
    """What the worker sends arrives and is carried out; it hears nothing, for three leases."""
    link = wire(f"{scene.redis.folder}/redis.sock")
    through(scene, link)
    link.lose_replies()
    lasting(3)
    link.heal()
    scene.recovered()
    scene.ends("S4 replies of Redis lost for three leases", most_again=3 * IN_FLIGHT)


def test_s4_redis_is_slow(scene: Scene, wire: Wire) -> None:
    """Every piece of data is half a renewal late, both ways: the run is slower, and nothing else."""
    link = wire(f"{scene.redis.folder}/redis.sock")
    through(scene, link)
    link.delay(0.12)
    scene.more()
    scene.ends("S4 Redis 120 ms away", most_again=IN_FLIGHT)


def test_s4_sglang_falls_silent(scene: Scene, wire: Wire) -> None:
    """Nothing passes and nobody is told; what was sent arrives later: nothing is generated twice."""
    link = wire(scene.simulator.url.removeprefix("http://"))
    scene.job.tables["sglang"]["servers"] = [f"http://{link.address}"]
    scene.job.write()
    scene.start()
    link.blackhole()
    lasting(3)
    link.heal()
    scene.recovered()
    scene.ends("S4 SGLang silent for three leases", most_again=0)


def test_s4_answers_of_sglang_are_lost(
    job: Job, redis_server: RedisServer, mortal: Callable[..., Simulator], wire: Wire
) -> None:
    """Requests arrive, answers do not: given up at the deadline, and made again."""
    scene = Scene(job, redis_server, mortal(speed=4))
    link = wire(scene.simulator.url.removeprefix("http://"))
    scene.job.tables["sglang"].update(servers=[f"http://{link.address}"], answer_s=5)
    scene.job.write()
    scene.start()
    link.lose_replies()
    wait_for("all in flight to be answered in vain", lambda: scene.simulator.state()["running"] == 0)
    link.heal()
    scene.recovered()
    scene.ends("S4 answers of SGLang lost", most_again=3 * IN_FLIGHT)
    assert not any(scene.job.rejected(name) for name in NAMES)
