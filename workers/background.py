"""Ending what runs beside the jobs: renewals, heartbeats, probes of servers."""

import asyncio

_PATIENCE_S = 0.1


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait until they have ended, however they do.

    More than once where it must be: below Python 3.12 asyncio.wait_for, with which redis-py sends its
    commands, forgets a cancellation that comes as the command has just gone out.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_PATIENCE_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen; who cares for it has asked to be told
