"""The SGLang servers of one worker: which of them gets the next request, and what each must pass to get any."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from workers import outcomes
from workers.breaker import Breaker
from workers.contracts import TokenizerFacts
from workers.errors import KeyRefused, RunFault, WrongModel
from workers.limits import Loads
from workers.server import FIRST_SPEED, Server
from workers.sglang import Broken, Client, Model

__all__ = ["Server", "Servers"]

log = logging.getLogger("tokenmill.worker")

# The longest that a request for one token may take: it may have to wait until one of the long ones has ended.
PROBE_S = 30.0
LOADS_S = 5.0
# A prompt whose connection broke waits so long at most for the server to be tried.
TRIED_S = 10.0


class Servers:
    """The pool.

    `changed` is called whenever a server comes up. `check_again` is what a server at fault must pass to
    be up: it answers why not, or raises where waiting alone will not mend it. `refresh` is the same for one that
    another worker has just found good.

    Args:
        pause_s: the shortest between two tries of a server at fault, in seconds.
        most: the most requests that one server is sent at a time.
        probe_s: the longest that a request for one token may take, in seconds.
    """

    def __init__(
        self,
        client: Client,
        urls: list[str],
        pause_s: float,
        changed: Callable[[], None],
        *,
        most: int = 64,
        probe_s: float = PROBE_S,
    ) -> None:
        self.client = client
        self.all = [Server(url, most) for url in urls]
        self.check_again: Callable[[Server], Awaitable[str | None]] = lambda server: self.probe(server, {})
        self.refresh: Callable[[Server], Awaitable[str | None]] = lambda server: self.check_again(server)
        self.most = most
        self.changed = changed
        self._pause_s = pause_s
        self._probe_s = probe_s
        self.breaker = Breaker(
            check=self._try,
            refresh=lambda server: self.refresh(server),
            pause_s=pause_s,
            changed=lambda: self.changed(),
        )

    @property
    def up(self) -> list[Server]:
        """Those that requests may be sent to."""
        return [server for server in self.all if server.in_use]

    @property
    def room(self) -> int:
        """How many requests more they take now."""
        return sum(server.room for server in self.all)

    @property
    def speed(self) -> float:
        """Tokens per second of one request on the fastest server that is up."""
        return max((server.speed for server in self.up), default=FIRST_SPEED)

    @property
    def why_none(self) -> str:
        """Why requests can be sent to none of them."""
        wanted = [server for server in self.all if server.wish == "use"]
        if not wanted:
            return "all its servers are drained (`tokenmill servers`)"
        return f"no server is up ({'; '.join(f'{server.url}: {server.reason}' for server in wanted)})"

    def by_preference(self) -> list[Server]:
        """Those with room, the one first that has the fewest requests in flight, as a share of its pace."""
        with_room = [server for server in self.all if server.room > 0]
        return sorted(with_room, key=lambda server: (server.in_flight + 1) / server.pace)

    def choose(self) -> Server | None:
        """The server for the next request; one at its limit where none has room (it had when the job was claimed)."""
        candidates = [server for server in self.all if server.room > 0] or self.up
        return min(candidates, key=lambda server: (server.in_flight + 1) / server.pace, default=None)

    def fault(self, server: Server, reason: str, *, died: bool = False) -> None:
        """Take a server out of use until a real request succeeds again; `died` if requests were cut off in flight."""
        if server.up:
            self.breaker.open(server, reason, died=died)

    def refused(self, server: Server, detail: str) -> None:
        """It is full, or says so: fewer requests, and none for a while."""
        if server.up and server.refused(self._pause_s):
            self.breaker.open(server, detail)

    async def tried(self, server: Server) -> None:
        """Until the server has been tried since it went down, and at most `TRIED_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TRIED_S):
                await server.tried.wait()

    async def close(self) -> None:
        await self.breaker.close()

    # -- what a server must pass

    async def _try(self, server: Server) -> str | None:
        """One request first, so that a server that is still down is asked for no more."""
        try:
            problem = await self.leaving(server)
        except Broken as broken:
            return broken.detail or broken.kind
        return problem or await self.probe(server, {}) or await self.check_again(server)

    async def probe(self, server: Server, sampling: dict[str, Any]) -> str | None:
        """One real request for one token. None if it is answered, else why not.

        Raises:
            KeyRefused, RunFault: the server answers that the key or the parameters are wrong.
        """
        wanted = {name: value for name, value in sampling.items() if name != "min_new_tokens"}
        body = msgspec.json.encode({"input_ids": [1], "sampling_params": {**wanted, "max_new_tokens": 1}})
        try:
            async with asyncio.timeout(self._probe_s):
                status, answer = await self.client.generate(server.url, body)
        except TimeoutError:
            return f"it does not answer a request for one token within {self._probe_s:g} s"
        except Broken as broken:
            return broken.detail or broken.kind
        outcome = outcomes.sort_answer(status, answer)
        match outcome:
            case outcomes.Accept():
                return None
            case outcomes.RunFault(reason="key", detail=detail):
                raise KeyRefused(f"server {server.url} refuses the API key ({detail}): set TOKENMILL_SGLANG_API_KEY")
            case outcomes.RunFault(detail=detail) | outcomes.Reject(detail=detail):
                raise RunFault(f"server {server.url} refuses the sampling parameters: {detail}; mend [sampling]")
            case outcomes.Retry(detail=detail) | outcomes.ServerFault(detail=detail):
                return detail if status == 200 else f"it answers HTTP {status} to a request for one token ({detail})"

    async def measure(self, server: Server) -> Loads | None:
        """Ask how much it runs and keeps waiting; None where it does not tell. The limit follows.

        Raises:
            Broken: it gave no answer at all, and the limit stays.
        """
        try:
            async with asyncio.timeout(LOADS_S):
                status, found = await self.client.get(server.url, "/v1/loads?include=core")
        except TimeoutError as error:
            raise Broken("timeout", "no answer to /v1/loads") from error
        server.look(_loads(found) if status == 200 else None)
        return server.loads

    async def leaving(self, server: Server) -> str | None:
        """Why nothing more is to be sent to a server that answers all the same; None where it may be.

        SGLang that was told to end (SIGTERM) takes new work until it has none: with ours it would never end. Its
        /ready then says 503, as it may after a health check that failed once; a new one clears that up.

        Raises:
            Broken: it gave no answer at all.
        """
        for path in ("/ready", "/health"):
            status, _ = await self.client.get(server.url, path)
            if status != 503:
                return None
        return "it is ending, or starting: its /ready and /health say 503"

    async def check(self, server: Server, facts: TokenizerFacts, samplings: list[dict[str, Any]]) -> str | None:
        """Everything that must be right before a job is claimed. None if it is, else why to wait.

        Raises:
            KeyRefused, RunFault, WrongModel: waiting will not mend it.
        """
        try:
            problem = await self.know(server, facts)
            if problem is None and server.model is not None:
                await self._check_tokenizer(server, server.model, facts)
        except Broken as broken:
            return broken.detail or broken.kind
        for sampling in samplings if problem is None else []:
            problem = problem or await self.probe(server, sampling)
        return problem

    async def know(self, server: Server, facts: TokenizerFacts) -> str | None:
        """Ask which model it serves and how busy it is. None if it said so, else why to wait.

        Raises:
            KeyRefused: it refuses the key.
            Broken: no whole answer came back.
        """
        if (problem := await self.leaving(server)) is not None:
            return problem
        status, model = await self.client.model(server.url)
        if status in (401, 403):
            raise KeyRefused(f"server {server.url} refuses the API key: set TOKENMILL_SGLANG_API_KEY")
        if model is None and status == 200:
            return "its answer to /model_info is none of SGLang's: is it an SGLang server?"
        if model is None:
            return f"it answers HTTP {status} to /model_info"
        if model.context_length is None:
            model = msgspec.structs.replace(model, context_length=facts.context_length)
        server.model = model
        with contextlib.suppress(Broken):
            await self.measure(server)
        return None

    async def _check_tokenizer(self, server: Server, model: Model, facts: TokenizerFacts) -> None:
        if not facts.probe_ids:
            return
        ids = await self.client.tokenize(server.url, facts.probe_text)
        if ids is None:
            log.info("server %s cannot tokenize, so its model is not compared with the run's tokenizer", server.url)
        elif ids != facts.probe_ids:
            raise WrongModel(
                f"server {server.url} serves {model.name}, which tokenizes otherwise than the run's tokenizer: "
                f"name that model's own tokenizer in [model], or another server"
            )


class _Rank(msgspec.Struct):
    num_running_reqs: float | None = None
    num_waiting_reqs: float | None = None
    max_running_requests: float | None = None
    gen_throughput: float | None = None


class _Loads(msgspec.Struct):
    """What is read of a server's answer to /v1/loads."""

    loads: list[_Rank] | None = None


def _loads(found: dict[str, Any]) -> Loads | None:
    """The sum over all ranks; None where there is nothing of the kind, or a proxy's own idea of it."""
    try:
        ranks = msgspec.convert(found, _Loads, strict=False).loads or []
    except msgspec.ValidationError:
        return None
    if not ranks:
        return None
    most = [int(rank.max_running_requests or 0) for rank in ranks]
    return Loads(
        running=sum(int(rank.num_running_reqs or 0) for rank in ranks),
        waiting=sum(int(rank.num_waiting_reqs or 0) for rank in ranks),
        most=sum(most) if all(most) else None,
        throughput=sum(rank.gen_throughput or 0.0 for rank in ranks),
    )
