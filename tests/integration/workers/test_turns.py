"""Of all workers one at a time tries a server at fault, and one that dies in the middle of it holds up nobody."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from budget.connections import connect_async
from budget.fleet import Board
from tokenmill.embedded import EmbeddedRedis
from workers.breaker import Breaker
from workers.server import Server

URL = "http://127.0.0.1:1"
LEASE_MS = 200


@asynccontextmanager
async def boards(folder: Path) -> AsyncGenerator[tuple[Board, Board]]:
    with EmbeddedRedis(folder) as redis:
        async with connect_async(redis.url, 4) as client:
            yield Board(client, "a", LEASE_MS), Board(client, "b", LEASE_MS)


async def turn_comes(board: Board) -> None:
    async with asyncio.timeout(20):
        while not await board.take_turn(URL):  # noqa: ASYNC110 - it is Redis that is waited for
            await asyncio.sleep(0.02)


def test_the_turn_of_a_worker_that_died_comes_to_another_within_a_lease(tmp_path: Path) -> None:
    async def main() -> None:
        async with boards(tmp_path) as (dead, alive):
            assert await dead.take_turn(URL)
            assert await alive.take_turn(URL) is False
            await turn_comes(alive)
            await dead.keep_turn(URL)
            await dead.give_turn(URL)  # what is another's by now it neither takes nor gives away
            assert await dead.take_turn(URL) is False

    asyncio.run(main())


def test_a_turn_lasts_as_long_as_the_try_and_ends_with_the_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with boards(tmp_path) as (trying, waiting):
            tried = asyncio.Event()

            async def frozen(_server: Server) -> str | None:
                tried.set()
                await asyncio.Event().wait()
                return None

            breaker = Breaker(check=frozen, refresh=frozen, pause_s=0.01, changed=lambda: None)
            breaker.board = trying
            breaker.try_until_up(Server(URL, 1), tell=True, at_once=True)
            await tried.wait()
            for _ in range(10):
                await asyncio.sleep(LEASE_MS / 2000)  # five leases in all
                assert await waiting.take_turn(URL) is False
            await breaker.close()
            assert await waiting.take_turn(URL)

    asyncio.run(main())
