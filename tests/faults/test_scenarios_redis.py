"""S2, S15: Redis or Valkey killed, cut short, emptied, frozen, replaced by an old copy, and unable to write."""

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import redis
from rq.command import send_shutdown_command

from tests.e2e_support import Job, RedisServer, Simulator, wait_for
from tests.faults.scenes import SLOTS, TOKENS, Scene, account

IN_FLIGHT = 2 * SLOTS * TOKENS * 2


@pytest.fixture
def either(job: Job, redis_binary: str, mortal: Callable[..., Simulator]) -> Generator[Scene]:
    """The scene on Redis, and on Valkey."""
    server = RedisServer(redis_binary).start()
    try:
        yield Scene(job, server, mortal())
        job.end_all()
    finally:
        server.remove()


def test_s2_killed_five_times(either: Scene) -> None:
    """kill -9 with its append-only file: what was acknowledged is there again."""
    scene = either.start()
    for _ in range(5):
        scene.redis.kill()
        scene.redis.start()
        scene.recovered()
    scene.ends("S2 Redis killed -9, AOF", most_again=IN_FLIGHT)


def test_s2_the_end_of_its_file_is_lost(either: Scene) -> None:
    """What a power cut leaves: the newest part of the append-only file is short by up to 200 KB."""
    scene = either.start()
    scene.until(0.3)
    scene.redis.kill()
    newest = max((scene.redis.folder / "appendonlydir").glob("*.incr.aof"))
    lost = random.Random(2).randrange(1_000, min(200_000, newest.stat().st_size // 2))
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - lost)
    written, served = scene.answered, scene.simulator.served(*scene.job.names)
    scene.redis.start("--aof-load-truncated", "yes")
    scene.recovered()
    scene.ends("S2 Redis killed -9, AOF tail of 1-200 KB lost", most_again=2 * IN_FLIGHT)
    # What the files have is not made again: only what was in flight may come twice.
    assert scene.simulator.served(*scene.job.names) - served <= scene.total - written + 2 * SLOTS


def test_s2_emptied_and_killed(either: Scene) -> None:
    scene = either.start()
    scene.until(0.3)
    scene.redis.client.flushall()
    scene.redis.kill()
    scene.redis.start()
    written = scene.answered
    served = scene.simulator.served(*scene.job.names)
    scene.recovered()
    scene.ends("S2 FLUSHALL and kill -9", most_again=2 * IN_FLIGHT)
    assert scene.simulator.served(*scene.job.names) - served <= scene.total - written + 2 * SLOTS


def test_s2_a_worker_hears_commands_after_redis_was_away(scene: Scene) -> None:
    """RQ's thread for commands has its own connection, which must come back too."""
    scene.start()
    scene.simulator.hold()
    wait_for("both in flight", lambda: set(scene.redis.holders(*scene.job.names).values()) == {SLOTS})
    scene.redis.kill()
    scene.redis.start()
    worker = scene.parts.pop("w0")

    def told() -> bool:
        send_shutdown_command(scene.redis.client, "w0")
        return "draining" in worker.text

    wait_for("the worker to hear", told)
    scene.simulator.let_go()
    assert worker.ended() == 3, worker.text
    scene.recovered()
    scene.ends("S2 a command to a worker after Redis was killed -9", most_again=IN_FLIGHT)


def test_s2_frozen_for_longer_than_a_client_waits(scene: Scene) -> None:
    """redis-py sends every command again after 5 s; both are carried out when the server thaws."""
    scene.start()
    assert scene.redis.process is not None
    began = time.monotonic()
    scene.redis.process.send_signal(signal.SIGSTOP)
    wait_for("longer than a client waits", lambda: time.monotonic() - began > 7)
    scene.redis.process.send_signal(signal.SIGCONT)
    scene.recovered()
    scene.ends("S2 Redis frozen for 7 s", most_again=IN_FLIGHT)


def test_s2_scripts_forgotten_all_the_time(scene: Scene) -> None:
    stop = threading.Event()

    def flush() -> None:
        client: Any = redis.Redis(unix_socket_path=f"{scene.redis.folder}/redis.sock")
        with client:
            while not stop.wait(0.2):
                client.script_flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    try:
        scene.start()
        scene.ends("S2 SCRIPT FLUSH five times a second", most_again=0)
    finally:
        stop.set()
        flushing.join()


def test_s2_an_old_copy_is_brought_back(either: Scene) -> None:
    """A copy of its folder, made early in the run, takes the place of what it became."""
    scene = either.start()
    scene.redis.kill()
    data, copy = scene.redis.folder / "appendonlydir", scene.redis.folder / "copy"
    shutil.copytree(data, copy)
    scene.redis.start()
    scene.until(0.6)
    scene.redis.kill()
    written = scene.answered
    shutil.rmtree(data)
    copy.rename(data)
    served = scene.simulator.served(*scene.job.names)
    scene.redis.start()
    scene.recovered()
    scene.ends("S2 an old copy of Redis brought back", most_again=2 * IN_FLIGHT)
    assert scene.simulator.served(*scene.job.names) - served <= scene.total - written + 2 * SLOTS


def test_s15_a_redis_that_cannot_write_its_disk(job: Job, mortal: Callable[..., Simulator]) -> None:
    """MISCONF for a while: every part waits, says so, and goes on."""
    server = RedisServer()
    blocker = server.folder / "dump.rdb" / "x"
    try:
        server.start("--stop-writes-on-bgsave-error", "yes")
        scene = Scene(job, server, mortal()).start()
        server.client.config_set("save", "3600 1000000")
        # Root may write anywhere: a folder in the dump's place cannot be replaced by a file even so.
        blocker.mkdir(parents=True)
        server.client.bgsave()
        wait_for("a worker to say so", lambda: any("MISCONF" in part.text for part in scene.parts.values()))
        wait_for("all in flight to be answered", lambda: scene.simulator.state()["running"] == 0)
        assert not [part.text for part in scene.parts.values() if not part.is_running]
        shutil.rmtree(Path(blocker).parent)
        server.client.bgsave()
        scene.recovered()
        scene.ends("S15 Redis cannot write its disk (MISCONF)", most_again=0)
        job.end_all()
    finally:
        server.remove()


def test_s15_a_redis_that_fills_up_again_and_again(scene: Scene) -> None:
    scene.start()
    for _ in range(3):
        scene.redis.client.config_set("maxmemory", 1)
        wait_for("all in flight to be answered", lambda: scene.simulator.state()["running"] == 0)
        scene.redis.client.config_set("maxmemory", 0)
        scene.recovered()
    scene.ends("S15 Redis out of memory", most_again=0)
    assert account(scene.job).ratio == 1


def test_s15_somebody_elses_script_blocks_redis(scene: Scene) -> None:
    """For two seconds every command is answered BUSY: all wait, and go on."""
    scene.start()
    client: Any = scene.redis.client
    client.config_set("busy-reply-threshold", 100)
    loop = "local t = redis.call('TIME')[1] repeat until redis.call('TIME')[1] - t >= 3"
    client.eval(loop, 0)
    scene.recovered()
    scene.ends("S15 a script of another client blocks Redis for 3 s", most_again=IN_FLIGHT)
    assert any("BUSY" in part.text for part in scene.parts.values())
