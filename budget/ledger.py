"""Runs the ledger's verbs: the only module that calls Lua.

Scripts are run by their digest and sent whole when Redis does not know it (a restart, SCRIPT FLUSH),
so nothing has to be loaded beforehand. Redis' errors become this package's here, once.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, TypeVar, cast

import hiredis
import redis
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError

from budget import failpoints
from budget.connections import translated
from budget.forecast import EDGES
from budget.protocol import PROTOCOL
from budget.rules import FEWEST_DEATHS, MOST_DEATHS
from budget.verbs import Arg, Call

T = TypeVar("T")

_pack: Callable[[tuple[Arg, ...]], bytes] = cast("Any", hiredis).pack_command

# Calls that travel together at most: what one batch may keep a Redis busy with, and its answers in memory.
TOGETHER = 64
# In the long run trips begin no nearer to each other than this: where hundreds of answers end in a second, they are
# what costs a worker most. So many may begin at once before that: a worker with long answers never waits.
TRIP_EVERY_S = 0.005
TRIPS_AT_ONCE = 8


@cache
def source(verb: str) -> str:
    """The Lua text of a verb as it is sent: what Python says once, the shared prelude, the verb's own file."""
    folder = resources.files("budget") / "lua"
    said = f"local PROTOCOL = '{PROTOCOL}'\nlocal EDGES = {{{','.join(map(str, EDGES))}}}\n"
    said += f"local FEWEST_DEATHS, MOST_DEATHS = {FEWEST_DEATHS}, {MOST_DEATHS}\n"
    return said + (folder / "prelude.lua").read_text() + (folder / f"{verb}.lua").read_text()


@cache
def _digest(verb: str) -> str:
    return hashlib.sha1(source(verb).encode(), usedforsecurity=False).hexdigest()


class Ledger:
    """The ledger for code that blocks: the producer, the collector, the command line."""

    def __init__(self, connection: "redis.Redis") -> None:
        self.connection = connection

    def __call__(self, call: Call[T]) -> T:
        """Run a verb.

        Raises:
            RedisAway: Redis cannot be reached, or does not answer.
            RedisRefuses: Redis answers with an error (out of memory, read only, no permission).
            OtherProtocol: another version of Tokenmill started the run; nothing was changed.
        """
        client: Any = self.connection
        with translated():
            try:
                answer = client.evalsha(_digest(call.script), len(call.keys), *call.keys, *call.args)
            except NoScriptError:
                answer = client.eval(source(call.script), len(call.keys), *call.keys, *call.args)
        return call.parse(answer)


class AsyncLedger:
    """The ledger for the worker's event loop. Errors as `Ledger`.

    Calls that are made while others are on their way travel together, and a worker that makes many waits up to
    five milliseconds for more: with hundreds of answers a second, a trip to Redis for each would cost it more than
    anything else that it does. A call whose caller was cancelled is run all the same.
    """

    def __init__(self, connection: "redis.asyncio.Redis") -> None:
        self.connection = connection
        self._waiting: list[tuple[Call[Any], asyncio.Future[Any]]] = []
        self._travelling: asyncio.Task[None] | None = None
        self._departs_at = -math.inf
        # One of the pool's, kept: trips go one by one.
        self._own: Any = None

    async def __call__(self, call: Call[T]) -> T:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        if self._travelling is None:
            self._travelling = asyncio.create_task(self._travel())
        return call.parse(await future)

    async def _travel(self) -> None:
        try:
            while self._waiting:
                await self._departure()
                trip, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                calls = [call for call, _ in trip]
                for (_, future), answer in zip(trip, await self._answers(calls), strict=True):
                    if future.done():
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._travelling = None

    async def _departure(self) -> None:
        """When the next trip may begin: now, unless there were many of late and it would not be full."""
        if len(self._waiting) >= TOGETHER:
            return
        now = time.monotonic()
        self._departs_at = max(self._departs_at, now - TRIP_EVERY_S * TRIPS_AT_ONCE) + TRIP_EVERY_S
        if self._departs_at > now:
            await asyncio.sleep(self._departs_at - now)

    async def _answers(self, calls: list[Call[Any]]) -> list[Any]:
        """An answer or an exception for each call."""
        try:
            with translated():
                answers = await self._sent([("EVALSHA", _digest(call.script), *_rest(call)) for call in calls])
                if failpoints.ACTIVE:
                    for job in (str(call.args[0]) for call in calls if call.script == "commit"):
                        failpoints.hit("commit_sent", job)
        except Exception as error:
            return [error] * len(calls)
        return [await self._settled(call, answer) for call, answer in zip(calls, answers, strict=True)]

    async def _settled(self, call: Call[Any], answer: Any) -> Any:
        """An answer as it is, an error in our words; a script that Redis does not know yet is sent whole."""
        try:
            with translated():
                if isinstance(answer, NoScriptError):
                    (answer,) = await self._sent([("EVAL", source(call.script), *_rest(call))])
                if isinstance(answer, Exception):
                    raise answer
        except Exception as error:
            return error
        return answer

    async def _sent(self, commands: list[tuple[Arg, ...]]) -> list[Any]:
        """An answer, or the error that Redis gave, for each command.

        Not by redis-py's pipeline, which costs a worker more than the trip: it packs in Python, takes its connection
        from the pool each time, and gives it back by a task of its own. A connection that fails closes itself, and the
        pool opens it again (behind Sentinels, to the server that is the master by then).
        """
        pool: Any = self.connection.connection_pool
        packed = list(map(_pack, commands))
        if self._own is None:
            self._own = await pool.get_connection()
        else:
            await pool.ensure_connection(self._own)
        await self._own.send_packed_command(packed)
        return [await _answer(self._own) for _ in commands]


def _rest(call: Call[Any]) -> tuple[Arg, ...]:
    return (len(call.keys), *call.keys, *call.args)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
