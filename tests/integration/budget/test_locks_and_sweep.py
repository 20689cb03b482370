"""Locks name their owners; dead processes of this host are known at once, others by their leases."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from budget import keys, process
from budget.connections import RedisAway
from budget.locks import Held, Lock, LockLost
from budget.sweep import PROCESS_FIELD, dead_workers, sentence, sweep
from tests.conftest import StartServer
from tests.ledgers import LEASE_MS, Rig
from tests.support import wait_until

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that lives until it is killed."""
    child = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


class TestIdentity:
    def test_the_living_are_not_dead(self, child: "subprocess.Popen[bytes]") -> None:
        assert not process.is_dead(process.identity())
        assert not process.is_dead(process.identity(child.pid))
        assert " " not in process.identity()

    def test_a_zombie_and_a_process_that_is_gone_are_dead(self, child: "subprocess.Popen[bytes]") -> None:
        identity = process.identity(child.pid)
        child.kill()
        wait_until(lambda: process.is_dead(identity), what="the zombie counts as dead")
        child.wait()
        assert process.is_dead(identity)

    def test_a_pid_that_is_used_again_is_another_process(self) -> None:
        place, _, start = process.identity().rpartition("/")
        assert process.is_dead(f"{place}/{int(start) - 1}")

    @pytest.mark.parametrize("other", ["", "host/12", "boot/pid:[1]/99999999/1", "///", "elsewhere"])
    def test_nobody_of_another_host_is_declared_dead(self, other: str) -> None:
        assert not process.is_dead(other)


class TestLock:
    def lock(self, connection: "redis.Redis", lease_ms: int = 60_000) -> Lock:
        return Lock(connection, keys.COLLECTOR_LOCK, lease_ms, "the collector of run kimi")

    def test_a_live_owner_is_named(self, connection: "redis.Redis") -> None:
        first, second = self.lock(connection), self.lock(connection)
        first.acquire()
        first.acquire()
        with pytest.raises(
            Held, match=rf"the collector of run kimi is already running: process {os.getpid()} on .*60 s"
        ):
            second.acquire()
        second.release()
        with pytest.raises(Held):
            second.acquire()
        first.release()
        second.acquire()

    def owned_by(self, connection: "redis.Redis", identity: str) -> None:
        client: Any = connection
        owner = f'{{"token":"t","host":"h","pid":7,"process":"{identity}"}}'
        client.set(keys.COLLECTOR_LOCK, owner, px=60_000)

    def test_a_dead_owner_of_this_host_is_followed_at_once(self, connection: "redis.Redis") -> None:
        place, _, start = process.identity().rpartition("/")
        self.owned_by(connection, f"{place}/{int(start) - 1}")
        self.lock(connection).acquire()

    def test_an_owner_elsewhere_is_waited_for(self, connection: "redis.Redis") -> None:
        self.owned_by(connection, "elsewhere/1/2")
        with pytest.raises(Held, match="process 7 on h"):
            self.lock(connection).acquire()

    def test_it_runs_out(self, connection: "redis.Redis") -> None:
        client: Any = connection
        self.lock(connection, lease_ms=50).acquire()
        wait_until(lambda: not client.exists(keys.COLLECTOR_LOCK))
        self.lock(connection).acquire()

    def test_renewing_prolongs_and_takes_again_what_nobody_has(self, connection: "redis.Redis") -> None:
        client: Any = connection
        lock = self.lock(connection)
        lock.acquire()
        client.pexpire(keys.COLLECTOR_LOCK, 5_000)
        lock.renew()
        assert client.pttl(keys.COLLECTOR_LOCK) > 50_000
        client.flushall()
        lock.renew()
        assert client.exists(keys.COLLECTOR_LOCK)

    def test_a_lock_that_another_has_by_now_is_lost(self, connection: "redis.Redis") -> None:
        client: Any = connection
        lock, other = self.lock(connection), self.lock(connection)
        lock.acquire()
        client.delete(keys.COLLECTOR_LOCK)
        other.acquire()
        with pytest.raises(LockLost, match="taken over"):
            lock.renew()
        lock.release()
        other.renew()

    def test_a_value_that_is_not_a_lock_is_overwritten(self, connection: "redis.Redis") -> None:
        client: Any = connection
        client.set(keys.COLLECTOR_LOCK, "junk")
        self.lock(connection).acquire()

    def test_redis_away_is_said(self, start_server: StartServer) -> None:
        server = start_server()
        with server.client(retry=None) as client:
            lock = self.lock(client)
            server.kill()
            with pytest.raises(RedisAway):
                lock.acquire()


class TestSweep:
    def listed(self, rig: Rig, worker: str, identity: str) -> None:
        key = keys.rq_worker(worker)
        rig.connection.sadd(keys.RQ_WORKERS, key)
        rig.connection.sadd("rq:workers:A", key)
        rig.connection.hset(key, PROCESS_FIELD, identity)

    def test_a_worker_killed_on_this_host_is_known_at_once(self, rig: Rig, child: "subprocess.Popen[bytes]") -> None:
        self.listed(rig, "w1", process.identity(child.pid))
        self.listed(rig, "w2", process.identity())
        rig.enqueue("A", "A-1", "A-2")
        rig.lease("w1")
        rig.lease("w2")
        assert sweep(rig.run, rig.datasets, LEASE_MS) == []
        child.kill()
        wait_until(lambda: dead_workers(rig.connection) == ["w1"])
        (death,) = sweep(rig.run, rig.datasets, LEASE_MS)
        assert (death.worker, death.requeued, death.rejected) == ("w1", 1, 0)
        assert sentence(death) == "worker w1 is gone: 1 of its jobs are back in the queue, 0 rejected"
        assert rig.connection.smembers(keys.RQ_WORKERS) == {b"rq:worker:w2"}
        assert rig.connection.smembers("rq:workers:A") == {b"rq:worker:w2"}
        assert not rig.connection.exists(keys.rq_worker("w1"))
        assert rig.queue("A") == ["A-1"]
        assert sweep(rig.run, rig.datasets, LEASE_MS) == []
        rig.check()

    def test_a_foreign_worker_only_by_its_lease_in_a_redis_that_was_heard(self, rig: Rig) -> None:
        self.listed(rig, "w1", "elsewhere/pid:[1]/77/123")
        rig.enqueue("A", "A-1")
        rig.lease("w1")
        rig.listen()
        assert sweep(rig.run, rig.datasets, LEASE_MS) == []
        rig.expire("w1")
        rig.connection.delete(keys.SEEN)
        assert sweep(rig.run, rig.datasets, LEASE_MS) == []
        rig.listen()
        (death,) = sweep(rig.run, rig.datasets, LEASE_MS)
        assert death.worker == "w1"
        assert rig.connection.exists(keys.rq_worker("w1"))

    def test_a_real_lease_runs_out(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        rig.lease("w1", lease_ms=100)
        deaths = wait_until(lambda: sweep(rig.run, rig.datasets, 100))
        assert [death.worker for death in deaths] == ["w1"]

    def test_a_stock_worker_without_an_identity_is_left_alone(self, rig: Rig) -> None:
        rig.connection.sadd(keys.RQ_WORKERS, keys.rq_worker("stock"), keys.rq_worker("ghost"))
        rig.connection.hset(keys.rq_worker("stock"), "state", "busy")
        assert dead_workers(rig.connection) == []

    def test_two_sweepers_take_nothing_twice(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        nonce = secrets.token_hex(4)
        rig.claim("w1", 1, nonce=nonce)
        assert len(rig.reclaim("w1")) + len(rig.reclaim("w1")) == 1
        assert rig.queue("A") == ["A-1"]
