"""The SGLang servers of one worker: which are up, how busy, how fast, and why one is down.

A server at fault is sent nothing until it passes all the checks of the start again, of which the last
is a real one-token request: it may have come back with another model. Meanwhile its worker claims nothing
for it, so an outage costs no prompt an attempt and the queue waits.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from budget.errors import Problem
from workers import outcomes
from workers.background import end
from workers.contracts import TokenizerFacts
from workers.errors import KeyRefused, RunFault, WrongModel
from workers.sglang import Broken, Client, Model

log = logging.getLogger("tokenmill.worker")

LONGEST_PAUSE_S = 10.0
# Tokens per second of one request until the first answer has been timed; only the forecast's start depends on it.
FIRST_SPEED = 30.0
# What an answer still counts in the speed when one more has been timed: about the last thirty decide.
RECENT = 0.97


class _Rank(msgspec.Struct):
    num_running_reqs: float | None = None
    num_waiting_reqs: float | None = None
    gen_throughput: float | None = None


class _Loads(msgspec.Struct):
    """What is read of a server's answer to /v1/loads."""

    loads: list[_Rank] | None = None


class Server:
    """One server as this worker sees it. `speed` is in tokens per second of one request.

    `sent` counts prompts, `answered` accepted answers; `heard` is when the last answer of any kind came or, with
    nothing in flight before, the oldest request went out (monotonic seconds). `pause_s` is how long it was left
    alone after its last fault; it grows with each fault that no accepted answer came between.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.up = False
        self.reason = "not asked yet"
        self.in_flight = 0
        self.answered = 0
        self.sent = 0
        self.pause_s = 0.0
        self.heard = time.monotonic()
        self.speed = FIRST_SPEED
        self.tokens = 0
        self._recent_tokens = 0.0
        self._recent_s = 0.0
        self.model: Model | None = None
        self.running = 0
        self.waiting = 0
        self.throughput = 0.0
        self.measured = False

    def begun(self) -> None:
        """A prompt is sent to it."""
        if not self.in_flight:
            self.heard = time.monotonic()
        self.in_flight += 1
        self.sent += 1

    def ended(self) -> None:
        """A prompt is answered, well or not, or given up."""
        self.in_flight -= 1
        self.heard = time.monotonic()

    def finished(self, tokens: int, seconds: float) -> None:
        """Learn the speed from a completion; recent answers count most.

        Tokens over seconds, not the mean of the answers' own speeds: what is in flight at any moment is
        mostly slow and long requests, and it is their age that the speed has to tell.
        """
        self.tokens += tokens
        self.answered += 1
        self.pause_s = 0.0
        self.heard = time.monotonic()
        if seconds <= 0 or tokens <= 0:
            return
        self._recent_tokens = self._recent_tokens * RECENT + tokens
        self._recent_s = self._recent_s * RECENT + seconds
        self.speed = self._recent_tokens / self._recent_s


class Servers:
    """The pool.

    `changed` is called whenever a server comes up. `check_again` is what a server at fault must pass to
    be up: it answers why not, or raises where waiting alone will not mend it.
    """

    def __init__(self, client: Client, urls: list[str], pause_s: float, changed: Callable[[], None]) -> None:
        self.client = client
        self.all = [Server(url) for url in urls]
        self.check_again: Callable[[Server], Awaitable[str | None]] = lambda server: self.probe(server, {})
        self._pause_s = pause_s
        self._changed = changed
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> list[Server]:
        return [server for server in self.all if server.up]

    @property
    def speed(self) -> float:
        """Tokens per second of one request on the fastest server that is up."""
        return max((server.speed for server in self.up), default=FIRST_SPEED)

    @property
    def why_down(self) -> str:
        return "; ".join(f"{server.url}: {server.reason}" for server in self.all)

    def choose(self) -> Server | None:
        """The server that is up and has the fewest requests in flight, as a share of its speed."""
        return min(self.up, key=lambda server: (server.in_flight + 1) / server.speed, default=None)

    def fault(self, server: Server, reason: str) -> None:
        """Take a server out of use until a real request succeeds again."""
        if not server.up:
            return
        server.up, server.reason = False, reason
        log.warning("server %s is at fault (%s): nothing is sent to it until it answers again", server.url, reason)
        task = asyncio.create_task(self._probe_until_up(server))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def close(self) -> None:
        await end(*self._probes)

    async def _probe_until_up(self, server: Server) -> None:
        longest = min(LONGEST_PAUSE_S, 10 * self._pause_s)
        while True:
            server.pause_s = min(max(2 * server.pause_s, self._pause_s), longest)
            await asyncio.sleep(server.pause_s * random.uniform(0.5, 1.0))
            try:
                problem = await self.check_again(server)
            except Problem as refusal:
                problem = str(refusal)
                if problem != server.reason:
                    log.error("%s; nothing is sent to it meanwhile", problem)
            if problem is None:
                server.up, server.reason = True, ""
                log.info("server %s answers again", server.url)
                self._changed()
                return
            server.reason = problem

    async def probe(self, server: Server, sampling: dict[str, Any]) -> str | None:
        """One real request for one token. None if it is answered, else why not.

        Raises:
            KeyRefused, RunFault: the server answers that the key or the parameters are wrong.
        """
        wanted = {name: value for name, value in sampling.items() if name != "min_new_tokens"}
        body = msgspec.json.encode({"input_ids": [1], "sampling_params": {**wanted, "max_new_tokens": 1}})
        try:
            status, answer = await self.client.generate(server.url, body)
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
                return detail

    def quiet(self, seconds: float) -> list[Server]:
        """Those that have prompts in flight, and have answered none of them for so long."""
        now = time.monotonic()
        return [server for server in self.all if server.in_flight and now - server.heard >= seconds]

    async def measure(self, server: Server) -> None:
        """Ask how many requests it runs and keeps waiting, and its tokens per second over all of them."""
        try:
            _, loads = await self.client.get(server.url, "/v1/loads?include=core")
        except Broken:
            server.measured = False
            return
        server.measured = True
        try:
            ranks = msgspec.convert(loads, _Loads, strict=False).loads or []
        except msgspec.ValidationError:
            ranks = []  # a proxy's own idea of loads; they are only for being seen
        server.running = sum(int(rank.num_running_reqs or 0) for rank in ranks)
        server.waiting = sum(int(rank.num_waiting_reqs or 0) for rank in ranks)
        server.throughput = sum(rank.gen_throughput or 0.0 for rank in ranks)

    async def check(self, server: Server, facts: TokenizerFacts, samplings: list[dict[str, Any]]) -> str | None:
        """Everything that must be right before a job is claimed. None if it is, else why to wait.

        Raises:
            KeyRefused, RunFault, WrongModel: waiting will not mend it.
        """
        try:
            status, model = await self.client.model(server.url)
            if status in (401, 403):
                raise KeyRefused(f"server {server.url} refuses the API key: set TOKENMILL_SGLANG_API_KEY")
            if model is None:
                return f"it answers HTTP {status} to /model_info"
            if model.context_length is None:
                model = msgspec.structs.replace(model, context_length=facts.context_length)
            server.model = model
            await self._check_tokenizer(server, model, facts)
        except Broken as broken:
            return broken.detail or broken.kind
        for sampling in samplings:
            problem = await self.probe(server, sampling)
            if problem is not None:
                return problem
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
