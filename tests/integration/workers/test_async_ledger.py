"""Calls of one event loop travel to Redis together, and each gets its own answer."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import redis.exceptions

from budget import connections, keys, verbs
from budget.connections import RedisAway, RedisRefuses
from budget.ledger import TOGETHER, TRIPS_AT_ONCE, AsyncLedger
from tokenmill.embedded import EmbeddedRedis


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with EmbeddedRedis(tmp_path) as server:
        yield server.url


def seed(dataset: str, job: str, tokens: int = 5) -> verbs.Call[tuple[int, int]]:
    return verbs.seed(dataset=dataset, entries=[(job, tokens, False)])


def test_each_call_gets_its_own_answer(url: str) -> None:
    async def main() -> None:
        async with connections.connect_async(url, 4) as client:
            ledger = AsyncLedger(client)
            count = TOGETHER * 3 + 1
            for changed in (1, 0):
                answers = await asyncio.gather(*(ledger(seed(f"D{n}", "a", n + 1)) for n in range(count)))
                assert answers == [(changed, n + 1) for n in range(count)]
            assert await ledger(seed("D0", "b")) == (1, 6)

    asyncio.run(main())


def test_one_call_that_fails_fails_alone(url: str) -> None:
    connections.connect(url).set(keys.done("bad"), "not a hash")

    async def main() -> None:
        async with connections.connect_async(url, 4) as client:
            ledger = AsyncLedger(client)
            calls = (ledger(seed(name, "a")) for name in ("good", "bad", "fine"))
            good, bad, fine = await asyncio.gather(*calls, return_exceptions=True)
            assert (good, fine) == ((1, 5), (1, 5))
            assert isinstance(bad, RedisRefuses)

    asyncio.run(main())


def test_a_cancelled_call_is_run_and_the_others_are_answered(url: str) -> None:
    async def main() -> None:
        async with connections.connect_async(url, 4) as client:
            ledger = AsyncLedger(client)
            tasks = [asyncio.create_task(ledger(seed("D", job))) for job in ("a", "b", "c")]
            await asyncio.sleep(0)
            tasks[1].cancel()
            first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
            assert (first, third) == ((1, 5), (1, 15))
            assert isinstance(second, asyncio.CancelledError)

    asyncio.run(main())


def test_a_redis_that_is_away_is_said_to_all(tmp_path: Path) -> None:
    async def main() -> None:
        with EmbeddedRedis(tmp_path) as server:
            client: Any = connections.connect_async(server.url, 4)
            ledger = AsyncLedger(client)
            assert await ledger(seed("D", "a")) == (1, 5)
            running = connections.connect(server.url)
            with contextlib.suppress(redis.exceptions.ConnectionError):
                running.shutdown(nosave=True)
            answers = await asyncio.gather(*(ledger(seed("D", job)) for job in "bcd"), return_exceptions=True)
            assert [type(answer) for answer in answers] == [RedisAway] * 3
            await client.aclose()

    asyncio.run(main())


class Counted(AsyncLedger):
    """With the number of calls of each trip."""

    def __init__(self, connection: "redis.asyncio.Redis") -> None:
        super().__init__(connection)
        self.trips: list[int] = []

    async def make_many(self) -> None:
        """As many calls, one after the other, as go at once; on a slow machine too."""
        for number in range(TRIPS_AT_ONCE):
            await self(seed("D", str(number)))
        self._departs_at = time.monotonic()

    async def is_cut_off(self) -> None:
        """Waits until its connection has heard of its end."""
        with contextlib.suppress(redis.exceptions.ConnectionError):
            while not await self._own.can_read():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

    async def _answers(self, calls: list[verbs.Call[Any]]) -> list[Any]:
        self.trips.append(len(calls))
        return await super()._answers(calls)


def test_many_calls_soon_after_each_other_wait_for_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("budget.ledger.TRIP_EVERY_S", 1.0)

    async def main() -> None:
        async with connections.connect_async(url, 4) as client:
            ledger = Counted(client)
            await ledger.make_many()
            first = asyncio.create_task(ledger(seed("D", "first")))
            await asyncio.sleep(0.02)
            assert await ledger(seed("D", "second")) == (1, 5 * (TRIPS_AT_ONCE + 2))
            await first
            assert ledger.trips == [1] * TRIPS_AT_ONCE + [2]

    asyncio.run(main())


def test_a_full_trip_waits_for_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("budget.ledger.TRIP_EVERY_S", 3600.0)

    async def main() -> None:
        async with connections.connect_async(url, 4) as client:
            ledger = Counted(client)
            await ledger.make_many()
            await asyncio.gather(*(ledger(seed("D", f"full {number}")) for number in range(TOGETHER)))
            assert ledger.trips == [1] * TRIPS_AT_ONCE + [TOGETHER]

    asyncio.run(main())


def test_one_connection_is_enough_also_where_redis_knows_no_script(url: str) -> None:
    async def main() -> None:
        async with connections.connect_async(url, 1) as client:
            ledger = AsyncLedger(client)
            answers = await asyncio.gather(*(ledger(seed("D", job)) for job in "abc"))
            assert answers == [(1, 5), (1, 10), (1, 15)]

    asyncio.run(main())


def test_a_connection_that_redis_has_closed_is_opened_again_before_a_call(url: str) -> None:
    other: Any = connections.connect(url)

    async def main() -> None:
        async with connections.connect_async(url, 1) as client:
            ledger = Counted(client)
            for number in range(3):
                assert await ledger(seed("D", str(number))) == (1, 5 * (number + 1))
                other.client_kill_filter(_type="normal", skipme=True)
                await ledger.is_cut_off()

    asyncio.run(main())


def test_a_connection_that_breaks_in_mid_trip_gives_nobody_anothers_answer(url: str) -> None:
    """Redis stops to answer; the calls fail, and what is called after it went on is answered by its own."""
    other: Any = connections.connect(url)

    async def main() -> None:
        client: Any = connections.connect_async(url, 1)
        client.connection_pool.connection_kwargs["socket_timeout"] = 0.2
        ledger = AsyncLedger(client)
        assert await ledger(seed("D", "before")) == (1, 5)
        other.client_pause(1_000)
        late = await asyncio.gather(*(ledger(seed(f"L{n}", "late", n + 1)) for n in range(3)), return_exceptions=True)
        assert [type(answer) for answer in late] == [RedisAway] * 3
        await asyncio.to_thread(other.ping)
        answers = [await ledger(seed(f"D{n}", "after", n + 1)) for n in range(3)]
        assert answers == [(1, n + 1) for n in range(3)]
        await client.aclose()

    asyncio.run(main())
