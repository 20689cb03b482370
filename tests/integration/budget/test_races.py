"""Many processes on one ledger, a Redis that freezes or forgets its scripts, and calls that are cancelled."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from budget import keys, verbs
from budget.ledger import AsyncLedger, Ledger
from budget.verbs import Lease
from tests.conftest import StartServer
from tests.integration.budget.racing import WORST
from tests.ledgers import Rig, dump
from tests.support import OwnServer, wait_until

ROOT = Path(__file__).parents[3]


def race(server: OwnServer, rig: Rig, roles: Sequence[str], admission: str = "forecast") -> None:
    """Run a process for each role, all starting at once, to the end."""
    racers = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.budget.racing", str(server.socket), admission, *roles],
        cwd=ROOT,
        start_new_session=True,
    )

    def all_wait() -> bool:
        return sum("blmove" in client["cmd"] for client in rig.connection.client_list()) == len(roles)

    try:
        wait_until(all_wait, 120, "all processes are ready")
        rig.connection.rpush("go", *roles)
        assert racers.wait(120) == 0
    finally:
        if racers.poll() is None:
            os.killpg(racers.pid, signal.SIGKILL)
            racers.wait()


@pytest.fixture
def one(connection: "redis.Redis") -> Rig:
    """One dataset with 600 jobs, more than its cap of 5,000 tokens can take."""
    rig = Rig(connection, ("A",))
    rig.cap("A", 5000)
    for start in range(0, 600, 300):
        rig.enqueue("A", *[f"A-{number}" for number in range(start, start + 300)], worst=WORST)
    return rig


class TestTwentyProcesses:
    @pytest.mark.parametrize(
        "ledger",
        [
            "spend",
            pytest.param(
                "spend_racily", marks=pytest.mark.xfail(strict=True, reason="what this test must catch: check-then-act")
            ),
        ],
    )
    def test_strict_never_passes_the_cap(self, redis_server: OwnServer, one: Rig, ledger: str) -> None:
        race(redis_server, one, [ledger] * 20, "strict")
        one.check()
        assert 5000 - WORST < one.spent("A") <= 5000

    def test_drain_passes_it_by_what_was_in_flight(self, redis_server: OwnServer, one: Rig) -> None:
        race(redis_server, one, ["spend"] * 20, "drain")
        one.check()
        assert 5000 <= one.spent("A") <= 5000 + 20 * 3 * WORST


class TestTheSameIds:
    def test_eight_committers_count_each_once(self, redis_server: OwnServer, one: Rig) -> None:
        one.cap("A", None)
        one.claim("w0", 64)
        race(redis_server, one, ["commit_same"] * 8)
        one.check()
        assert one.spent("A") == sum(range(1, 201))
        stored = Counter(entry[b"job"] for _, entry in one.connection.xrange(keys.results("A")))
        assert len(stored) == 200
        assert set(stored.values()) == {1}

    def test_seeds_beside_live_commits(self, redis_server: OwnServer, one: Rig) -> None:
        one.cap("A", None)
        race(redis_server, one, ["commit_same"] * 3 + ["seed_same"] * 3)
        one.check()
        assert one.spent("A") == sum(range(1, 201))

    def test_several_producers_queue_each_once(self, redis_server: OwnServer, one: Rig) -> None:
        one.connection.flushall()
        one.ready()
        one.cap("A", None)
        race(redis_server, one, ["enqueue_same"] * 4)
        assert sorted(one.queue("A")) == sorted(f"A-{number}" for number in range(200))


class TestAFrozenRedis:
    """redis-py re-sends a command after its socket timeout, and the first one is carried out as well."""

    def during_a_freeze(self, server: OwnServer, call: verbs.Call[Any]) -> Any:
        retry = Retry(NoBackoff(), 1000)
        answers: list[Any] = []
        with server.client(socket_timeout=0.05, retry=retry) as client, server.client() as watching:
            watcher: Any = watching
            asking: Any = client
            asking.ping()
            server.freeze()
            thread = threading.Thread(target=lambda: answers.append(Ledger(client)(call)))
            thread.start()
            # Each attempt is a connection in the backlog of the frozen server: wait for some.
            wait_until(lambda: backlog(server) >= 3, what="the command was sent again")
            server.thaw()
            thread.join(60)
            assert watcher.ping()
        assert answers, "the call did not come back"
        return answers[0]

    def test_nothing_is_done_twice(self, start_server: StartServer) -> None:
        server = start_server()
        with server.client() as client:
            rig = Rig(client, ("A",))
            rig.cap("A", None)
            queued = self.during_a_freeze(server, self.enqueue_call(40))
            assert queued.queued == 40
            assert len(rig.queue("A")) == 40
            claimed = self.during_a_freeze(server, rig.claim_call("w1", 8))
            assert len(claimed.leases) == 8
            assert rig.connection.hlen(keys.leases("A")) == 8
            assert len(rig.queue("A")) == 32
            first, second, *_ = claimed.leases
            self.during_a_freeze(
                server, verbs.commit(lease=first, worker="w1", tokens=70, truncated=False, line=b"line")
            )
            assert rig.spent("A") == 70
            assert rig.connection.xlen(keys.results("A")) == 1
            self.during_a_freeze(server, verbs.release(lease=second, charge="failures"))
            assert len(rig.queue("A")) == 33
            assert rig.hash(second.job)["failures"] == "1"
            rig.check()

    @staticmethod
    def enqueue_call(count: int) -> verbs.Call[verbs.Enqueued]:
        jobs = [verbs.Queued(job=f"A-{number}", data=b"data", worst=9, description="") for number in range(count)]
        return verbs.enqueue(dataset="A", jobs=jobs, all_datasets=["A"], lease_ms=60_000, now="")


def backlog(server: OwnServer) -> int:
    """Connections to the server's socket that exist for the kernel, accepted or not."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(f" {server.socket}") for line in lines) - 1


def test_scripts_that_are_flushed_all_the_time(redis_server: OwnServer, one: Rig) -> None:
    one.cap("A", None)
    over = threading.Event()

    def flush() -> None:
        with redis_server.client() as client:
            flushing: Any = client
            while not over.is_set():
                flushing.script_flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for _ in range(100):
            one.commit(one.lease(), 3)
    finally:
        over.set()
        thread.join()
    one.check()
    assert one.spent("A") == 300


def test_three_thousand_commits_cancelled_at_random(redis_server: OwnServer, one: Rig) -> None:
    chance = random.Random(7)
    one.cap("A", None)
    leases = [
        Lease(dataset="A", job=f"A-{number}", token=f"n-{number}", data=b"", attempt=1, failures=0, deaths=0)
        for number in range(3000)
    ]

    async def commits() -> int:
        pool: Any = redis.asyncio.BlockingConnectionPool(
            connection_class=redis.asyncio.UnixDomainSocketConnection,
            path=str(redis_server.socket),
            max_connections=16,
            timeout=None,
            retry=AsyncRetry(NoBackoff(), 3),
        )
        ledger = AsyncLedger(redis.asyncio.Redis.from_pool(pool))
        cancelled = 0

        async def commit(number: int, lease: Lease) -> None:
            call = verbs.commit(lease=lease, worker="w1", tokens=number + 1, truncated=False, line=b"line")
            stored, spent = await ledger(call)
            assert stored, f"{lease.job} was answered with another's reply"
            assert spent >= number + 1

        for start in range(0, len(leases), 100):
            tasks = [
                asyncio.create_task(commit(start + at, lease)) for at, lease in enumerate(leases[start : start + 100])
            ]
            for task in tasks:
                if chance.random() < 0.3:
                    for _ in range(chance.randint(0, 40)):
                        await asyncio.sleep(0)
                    task.cancel()
            for answer in await asyncio.gather(*tasks, return_exceptions=True):
                cancelled += isinstance(answer, asyncio.CancelledError)
                assert answer is None or isinstance(answer, asyncio.CancelledError), answer
        await ledger.connection.aclose()
        return cancelled

    assert asyncio.run(commits()) > 100
    one.check()
    for number, lease in enumerate(leases):
        one.commit(lease, number + 1)
    one.check()
    assert one.spent("A") == sum(range(1, 3001))
    before = dump(one.connection)
    one.commit(leases[5], 6)
    assert dump(one.connection) == before
