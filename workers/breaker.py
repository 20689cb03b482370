"""What becomes of a server at fault: nothing is sent to it until it passes all the checks of the start again.

The breaker is the servers', not the worker's: who finds a fault tells it to the others through the board in
Redis, and of all workers one at a time tries the server, ever more seldom. When it passes, all of them go on.
Without Redis each worker's own breaker works alone.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from budget.connections import RedisAway, RedisRefuses
from budget.errors import Problem
from budget.fleet import Board
from workers.background import end
from workers.server import Server

log = logging.getLogger("tokenmill.worker")

Check = Callable[[Server], Awaitable[str | None]]


class Breaker:
    """The breaker of one worker's servers.

    Args:
        check: all that a server must pass; None, or why not. It may raise `Problem` where waiting will not mend it.
        refresh: the same for a server that another worker has found good: what is to be known of it, cheaply.
        pause_s: how long a server is left alone at first, at least; then twice as long each time.
        changed: called when a server comes up.
    """

    def __init__(self, *, check: Check, refresh: Check, pause_s: float, changed: Callable[[], None]) -> None:
        self.board: Board | None = None
        self.refusal: Problem | None = None
        self._check = check
        self._refresh = refresh
        self._pause_s = pause_s
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rejoining: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await end(*self._tasks.values(), *self._rejoining)

    def open(self, server: Server, reason: str, *, died: bool = False) -> None:
        """This worker found the server at fault, or dead."""
        log.warning("server %s is at fault (%s): nothing is sent to it until it answers again", server.url, reason)
        server.go_down(reason)
        self.try_until_up(server, tell=True, died=died)

    def hear_down(self, server: Server, reason: str) -> None:
        """Another worker did."""
        log.warning("server %s is at fault (%s), as another worker found: nothing is sent to it", server.url, reason)
        server.go_down(reason)
        server.told = True
        self.try_until_up(server, tell=False)

    def hear_up(self, server: Server) -> None:
        """Another worker has tried the server, and it passed."""
        server.told = False
        task = asyncio.create_task(self._rejoin(server))
        self._rejoining.add(task)
        task.add_done_callback(self._rejoining.discard)

    def try_until_up(self, server: Server, *, tell: bool, at_once: bool = False, died: bool = False) -> None:
        """Try it again and again, in the background, while it is wanted; `died` is what to tell the others of it."""
        if (old := self._tasks.get(server.url)) is not None:
            old.cancel()
        self._tasks[server.url] = asyncio.create_task(self._try_until_up(server, tell=tell, at_once=at_once, died=died))

    async def _try_until_up(self, server: Server, *, tell: bool, at_once: bool, died: bool) -> None:
        wait = 0.0 if at_once else server.left_alone(self._pause_s)
        passed_over = False
        while not server.up and server.wish == "use":
            if tell and self.board is not None:
                tell = not await self.board.tell_down(server.url, server.reason, died=died)
                server.told = server.told or not tell
            await asyncio.sleep(wait * random.uniform(1.0, 1.5))
            if server.up:
                return
            if self.board is not None and await self.board.take_turn(server.url) is False:
                if passed_over:  # whoever's turn it was has tried it by now
                    server.tried.set()
                wait, passed_over = self._pause_s, True
                continue
            problem = await self._try_in_turn(server)
            if problem is None:
                if self.board is not None:
                    await self.board.tell_up(server.url)
                self._come_up(server)
                return
            server.reason = problem
            wait = server.left_alone(self._pause_s)
            if self.board is not None:
                await self.board.end_turn(server.url, problem, round(wait * 1000))

    async def _try_in_turn(self, server: Server) -> str | None:
        """The turn is prolonged while the try lasts, and given back where it is broken off."""
        if (board := self.board) is None:
            return await self._try(server)
        keeping = asyncio.create_task(_keep_turn(board, server.url))
        try:
            return await self._try(server)
        except asyncio.CancelledError:
            await end(keeping)
            await board.give_turn(server.url)
            raise
        finally:
            await end(keeping)

    async def _try(self, server: Server) -> str | None:
        try:
            return await self._check(server)
        except Problem as refusal:
            if not isinstance(refusal, RedisAway | RedisRefuses):
                self.refusal = refusal
            if str(refusal) != server.reason:
                log.error("%s; nothing is sent to it meanwhile", refusal)
            return str(refusal)
        finally:
            server.tried.set()

    async def _rejoin(self, server: Server) -> None:
        try:
            problem = await self._refresh(server)
        except Problem as refusal:
            problem = str(refusal)
        if problem is None:
            self._come_up(server)
        else:  # only from here: the others go on, and it is tried as before
            server.reason = problem

    def _come_up(self, server: Server) -> None:
        if not server.up:
            server.come_up()
            log.info("server %s answers again", server.url)
            self._changed()


async def _keep_turn(board: Board, url: str) -> None:
    while True:
        await asyncio.sleep(board.lease_s / 3)
        await board.keep_turn(url)
