"""What is known of the servers of a run beyond its run file, in Redis: what people want of each, and what is wrong.

`wishes` is what `tokenmill servers` says in mid-run, as `budget set` does of caps. The board is where the
workers tell each other which servers are at fault, so that each is tried by one worker at a time, and which
have a suspect in flight. All of it is advice: a worker that cannot read it goes on by what it sees itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import redis
import redis.asyncio

from budget import keys
from budget.connections import RedisAway, RedisRefuses, translated

Wish = Literal["use", "drain", "remove"]
WISHES: tuple[Wish, ...] = ("use", "drain", "remove")


def wishes(connection: "redis.Redis") -> dict[str, Wish]:
    """What `tokenmill servers` has said, by URL."""
    client: Any = connection
    with translated():
        return said(client.hgetall(keys.SERVERS))


def wish(connection: "redis.Redis", url: str, word: Wish) -> None:
    """Say what is wanted of a server from now on; the workers hear it with their next beat."""
    client: Any = connection
    with translated():
        client.hset(keys.SERVERS, url, word)


def members(base: Iterable[str], wanted: Mapping[str, Wish]) -> list[str]:
    """The servers of a run: those of its run file and those added, without those removed."""
    return [url for url in dict.fromkeys([*base, *wanted]) if wanted.get(url) != "remove"]


def said(found: Mapping[bytes, bytes]) -> dict[str, Wish]:
    """The wishes in the hash as Redis gives it; words and addresses that no part of ours writes are left out."""
    read = {url.decode("utf-8", "replace"): word.decode("utf-8", "replace") for url, word in found.items()}
    return {url: word for url, word in read.items() if word in WISHES and _may_be_address(url)}


def _may_be_address(url: str) -> bool:
    """Whether it may stand in a log and in a command line; `servers add` has looked closer before it wrote it."""
    return url.startswith(("http://", "https://")) and url.isprintable() and " " not in url


class News(msgspec.Struct, frozen=True, kw_only=True):
    """The board at one moment: `down` has the reason of each server at fault, `suspects` those that try one."""

    wishes: dict[str, Wish]
    down: dict[str, str]
    suspects: frozenset[str]


class Board:
    """The board as one worker reads and writes it. Every write says whether Redis took it."""

    def __init__(self, connection: "redis.asyncio.Redis", worker: str, lease_ms: int) -> None:
        self._client: Any = connection
        self._worker = worker
        self._lease_ms = lease_ms
        self.lease_s = lease_ms / 1000

    async def read(self, urls: Sequence[str]) -> News:
        """Everything on it about these servers.

        Raises:
            RedisAway, RedisRefuses: it cannot be read now.
        """
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.hgetall(keys.SERVERS)
                for url in urls:
                    pipe.hmget(keys.server(url), "down_since", "reason")
                    pipe.exists(keys.suspect(url))
                wanted, *rows = await pipe.execute()
        down = {
            url: (reason or b"").decode("utf-8", "replace")
            for url, (since, reason) in zip(urls, rows[::2], strict=True)
            if since is not None
        }
        suspects = frozenset(url for url, there in zip(urls, rows[1::2], strict=True) if there)
        return News(wishes=said(wanted), down=down, suspects=suspects)

    async def tell_down(self, url: str, reason: str, *, died: bool = False) -> bool:
        """A server is at fault. The first to say so sets since when, and counts its death among the run's."""
        try:
            with translated():
                seconds, micros = await self._client.time()
                async with self._client.pipeline(transaction=False) as pipe:
                    pipe.hsetnx(keys.server(url), "down_since", seconds * 1000 + micros // 1000)
                    pipe.hset(keys.server(url), "reason", reason)
                    is_first, _ = await pipe.execute()
                if is_first and died:
                    await self._client.hincrby(keys.RUN, "deaths", 1)
        except (RedisAway, RedisRefuses):
            return False
        return True

    async def tell_up(self, url: str) -> bool:
        """It has passed all checks: every worker may use it again."""
        try:
            with translated():
                async with self._client.pipeline(transaction=False) as pipe:
                    pipe.hdel(keys.server(url), "down_since", "reason")
                    pipe.delete(keys.probe(url))
                    await pipe.execute()
        except (RedisAway, RedisRefuses):
            return False
        return True

    async def take_turn(self, url: str) -> bool | None:
        """Whether it is this worker's turn to try a server at fault; None where Redis cannot say.

        A turn lasts as long as a lease, so that a worker that dies in the middle of its try does not keep the
        others from theirs; `keep_turn` prolongs it.
        """
        try:
            with translated():
                return bool(await self._client.set(keys.probe(url), self._worker, nx=True, px=self._lease_ms))
        except (RedisAway, RedisRefuses):
            return None

    async def keep_turn(self, url: str) -> None:
        """Prolong this worker's own turn, or take it anew where it had run out and nobody else has it."""
        await self._own(keys.probe(url), keep=True)

    async def give_turn(self, url: str) -> None:
        """This worker leaves before its try has ended: somebody else may try at once."""
        await self._own(keys.probe(url), keep=False)

    async def end_turn(self, url: str, reason: str, rest_ms: int) -> None:
        """The try failed: nobody's turn comes within `rest_ms`."""
        try:
            with translated():
                await self._client.set(keys.probe(url), self._worker, px=rest_ms)
                if await self._client.hexists(keys.server(url), "down_since"):
                    await self._client.hset(keys.server(url), "reason", reason)
        except (RedisAway, RedisRefuses):
            return

    async def seat_suspect(self, url: str) -> bool:
        """Whether this worker may send its suspect there: no server has two, of whatever workers."""
        try:
            with translated():
                return bool(await self._client.set(keys.suspect(url), self._worker, nx=True, px=self._lease_ms))
        except (RedisAway, RedisRefuses):
            return False

    async def has_suspect(self, url: str) -> bool:
        """Whether any worker has a suspect in flight there."""
        try:
            with translated():
                return bool(await self._client.exists(keys.suspect(url)))
        except (RedisAway, RedisRefuses):
            return False

    async def keep_suspect(self, url: str) -> None:
        """Prolong this worker's own seat there; taken anew where it had run out and nobody else has it."""
        await self._own(keys.suspect(url), keep=True)

    async def unseat_suspect(self, url: str) -> None:
        """Its suspect is no longer in flight there."""
        await self._own(keys.suspect(url), keep=False)

    async def _own(self, key: str, *, keep: bool) -> None:
        """Prolong what this worker holds, or give it up; what another one holds is left alone."""
        try:
            with translated():
                async with self._client.pipeline() as pipe:
                    await pipe.watch(key)
                    holder = await pipe.get(key)
                    if holder != self._worker.encode() and not (keep and holder is None):
                        return
                    pipe.multi()
                    if keep:
                        pipe.set(key, self._worker, px=self._lease_ms)
                    else:
                        pipe.delete(key)
                    await pipe.execute()
        except (RedisAway, RedisRefuses):  # or it became somebody else's meanwhile
            return
