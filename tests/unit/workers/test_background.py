"""Tasks in the background end when they are to, also one that lets its first cancellation pass."""

import asyncio

from workers.background import end


async def stubborn(times: int) -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            times -= 1
            if times == 0:
                raise


async def broken() -> None:
    raise RuntimeError("it ended by itself")


def test_a_task_that_forgets_a_cancellation_is_cancelled_again() -> None:
    async def run() -> list[bool]:
        tasks = [asyncio.create_task(stubborn(1)), asyncio.create_task(stubborn(2)), asyncio.create_task(broken())]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await end(*tasks)
        assert isinstance(tasks[2].exception(), RuntimeError)
        return [task.done() for task in tasks]

    assert asyncio.run(run()) == [True, True, True]


def test_nothing_to_end() -> None:
    asyncio.run(end())
