"""Runs the ledger's verbs: the only module that calls Lua.

Scripts are run by their digest and sent whole when Redis does not know it (a restart, SCRIPT FLUSH),
so nothing has to be loaded beforehand. Redis' errors become this package's here, once.
"""

import hashlib
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from budget.connections import translated
from budget.forecast import EDGES
from budget.verbs import Call

T = TypeVar("T")


@cache
def source(verb: str) -> str:
    """The Lua text of a verb as it is sent: the bucket edges, the shared prelude, the verb's own file."""
    folder = resources.files("budget") / "lua"
    edges = "local EDGES = {" + ",".join(map(str, EDGES)) + "}\n"
    return edges + (folder / "prelude.lua").read_text() + (folder / f"{verb}.lua").read_text()


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
        """
        client: Any = self.connection
        with translated():
            try:
                answer = client.evalsha(_digest(call.script), len(call.keys), *call.keys, *call.args)
            except NoScriptError:
                answer = client.eval(source(call.script), len(call.keys), *call.keys, *call.args)
        return call.parse(answer)


class AsyncLedger:
    """The ledger for the worker's event loop. Errors as `Ledger`."""

    def __init__(self, connection: "redis.asyncio.Redis") -> None:
        self.connection = connection

    async def __call__(self, call: Call[T]) -> T:
        client: Any = self.connection
        with translated():
            try:
                answer = await client.evalsha(_digest(call.script), len(call.keys), *call.keys, *call.args)
            except NoScriptError:
                answer = await client.eval(source(call.script), len(call.keys), *call.keys, *call.args)
        return call.parse(answer)
