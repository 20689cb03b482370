"""Which servers a worker uses, from its start to its end: those of its run, as `tokenmill servers` changes them.

A beat brings the news: servers that join, are drained or removed, faults that other workers found, servers that
are good again, and how busy each one is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from budget.connections import RedisAway, RedisRefuses
from budget.fleet import Board, News, Wish
from workers.contracts import TokenizerFacts
from workers.errors import ServerAway
from workers.server import Server
from workers.servers import Servers
from workers.sglang import Broken, Model

log = logging.getLogger("tokenmill.worker")

START_POLL_S = 0.1
NEWS_S = 1.0


class Fleet:
    """The servers of one worker.

    Args:
        urls: those that it starts with; `own` if it was given them, so that none of the run's joins them.
        agree: finds out whether the model of a server is the run's, and raises `WrongModel` where it is not; its
            last argument says whether to wait for a Redis that is away.
    """

    def __init__(
        self,
        servers: Servers,
        urls: list[str],
        board: Board,
        *,
        own: bool,
        facts: TokenizerFacts,
        samplings: list[dict[str, Any]],
        agree: Callable[[Model, str, bool], Awaitable[None]],
    ) -> None:
        self.servers = servers
        self.board = board
        self._base = urls
        self._own = own
        self._facts = facts
        self._samplings = samplings
        self._agree = agree
        self._agreed: Model | None = None
        servers.breaker.board = board
        servers.check_again = self._check
        servers.refresh = self._refresh

    # -- the start

    async def start(self, wait_s: float, stopped: Callable[[], bool]) -> None:
        """Check all servers; returns when one is up, none is wanted, or a stop is wished.

        A server that was added in mid-run may load its weights for longer than `wait_s`: its worker then goes on
        without it, and uses it once it serves.

        Raises:
            ServerAway: none came up within `wait_s` seconds.
            Problem: a server is wrong, and waiting will not mend it.
        """
        news = await self._news()
        if news is not None:
            self._follow(news.wishes)
        wanted = [server for server in self.servers.all if server.wish == "use"]
        down = news.down if news is not None else {}
        was_added = news is not None and any(news.wishes.get(server.url) == "use" for server in wanted)
        for server in wanted:
            if server.url in down:  # its turns are shared with the workers that found it so
                server.reason, server.told = down[server.url], True
                self.servers.breaker.try_until_up(server, tell=False, at_once=True)
        await self._first_checks([server for server in wanted if server.url not in down])
        deadline = asyncio.get_running_loop().time() + wait_s
        said, next_news = False, 0.0
        while not stopped() and not self.servers.up and any(s.wish == "use" for s in self.servers.all):
            if (refusal := self.servers.breaker.refusal) is not None:
                raise refusal
            sentence = "; ".join(f"{server.url}: {server.reason}" for server in wanted)
            if asyncio.get_running_loop().time() > deadline:
                if was_added:
                    return
                raise ServerAway(f"no SGLang server can be reached ({sentence}): start one, or mend [sglang] servers")
            if not said:
                log.info("waiting for a server (%s)", sentence)
                said = True
            await asyncio.sleep(START_POLL_S)
            if asyncio.get_running_loop().time() > next_news:
                next_news = asyncio.get_running_loop().time() + NEWS_S
                await self._hear_news()

    async def _first_checks(self, servers: list[Server]) -> None:
        answers = await asyncio.gather(*(self._check(server) for server in servers), return_exceptions=True)
        for server, answer in zip(servers, answers, strict=True):
            if answer is None:
                server.come_up()
            elif isinstance(answer, BaseException):
                raise answer
        for server, answer in zip(servers, answers, strict=True):
            if isinstance(answer, str):
                server.reason = answer
                self.servers.breaker.try_until_up(server, tell=True)
                if self.servers.up:
                    log.warning("server %s is not up (%s): nothing is sent to it meanwhile", server.url, answer)

    async def _check(self, server: Server) -> str | None:
        problem = await self.servers.check(server, self._facts, self._samplings)
        if problem is None and server.model is not None:
            await self._agree_on(server.model, server.url)
        return problem

    async def _refresh(self, server: Server) -> str | None:
        try:
            problem = await self.servers.know(server, self._facts)
        except Broken as broken:
            return broken.detail or broken.kind
        if problem is None and server.model is not None:
            await self._agree_on(server.model, server.url)
        return problem

    async def _agree_on(self, model: Model, url: str) -> None:
        """Where Redis is away, what this worker has agreed on before is good enough."""
        try:
            await self._agree(model, url, self._agreed is None)
        except (RedisAway, RedisRefuses):
            known = self._agreed
            if known is None or (known.name, known.weight_version) != (model.name, model.weight_version):
                raise
        else:
            self._agreed = model

    # -- the news

    async def look(self) -> None:
        """How busy the servers are, and what the board says."""
        await asyncio.gather(*(self._measure(server) for server in self.servers.all if server.up))
        await self._hear_news()

    async def _hear_news(self) -> None:
        before = {server.url: (server, server.version, server.told, server.up) for server in self.servers.all}
        news = await self._news()
        if news is None:
            return
        for url, (server, version, told, up) in before.items():
            server.suspect = url in news.suspects
            # What has changed here since the board was asked is newer than its answer.
            if server.version == version:
                self._hear(server, news.down.get(url), told=told, up=up)
        self._follow(news.wishes)

    async def _measure(self, server: Server) -> None:
        try:
            await self.servers.measure(server)
            problem = await self.servers.leaving(server)
        except Broken:
            return
        if problem is not None:
            self.servers.fault(server, problem)

    def _hear(self, server: Server, down: str | None, *, told: bool, up: bool) -> None:
        if down is not None and up:
            self.servers.breaker.hear_down(server, down)
        elif down is not None:
            server.told, server.reason = True, down or server.reason
        elif told and not up:
            self.servers.breaker.hear_up(server)

    async def _news(self) -> News | None:
        try:
            return await self.board.read([server.url for server in self.servers.all])
        except (RedisAway, RedisRefuses):
            return None  # the engine says so

    def _follow(self, wishes: dict[str, Wish]) -> None:
        """Servers that join or come back, those that get nothing new, those that leave."""
        here = {server.url: server for server in self.servers.all}
        for url in self._base if self._own else list(dict.fromkeys([*self._base, *wishes])):
            word = wishes.get(url, "use")
            server = here.get(url)
            if server is None:
                if word != "remove":
                    self._join(url, word)
            elif word != server.wish:
                self._change(server, word)
        left = [server for server in self.servers.all if server.wish == "remove" and not server.in_flight]
        for server in left:
            log.info("server %s was removed from the run", server.url)
            self.servers.all.remove(server)

    def _join(self, url: str, word: Wish) -> None:
        server = Server(url, self.servers.most)
        server.wish = word
        self.servers.all.append(server)
        log.info("server %s joins the run", url)
        if word == "use":
            self.servers.breaker.try_until_up(server, tell=True, at_once=True)

    def _change(self, server: Server, word: Wish) -> None:
        server.wish = word
        if word == "use":
            log.info("server %s is in use again", server.url)
            if not server.up:
                self.servers.breaker.try_until_up(server, tell=False, at_once=True)
            self.servers.changed()
        else:
            log.info("server %s is being drained: nothing new is sent to it", server.url)
