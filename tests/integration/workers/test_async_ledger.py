"""Calls of one event loop travel to Redis together, and each gets its own answer."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions

from budget import connections, keys, verbs
from budget.connections import RedisAway, RedisRefuses
from budget.ledger import TOGETHER, AsyncLedger
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
