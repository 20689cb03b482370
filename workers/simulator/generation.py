"""POST /generate: from a body to an answer, through the faults, the queue and the engine.

Every request that was accepted leaves the journal balanced: whatever happens to its connection, it is
counted as finished, aborted or failed, with the tokens that it really cost.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from workers.simulator.answers import plan_answer
from workers.simulator.bodies import Batch, parse_generate
from workers.simulator.config import SimulatorConfig
from workers.simulator.errors import ApiError, Poison, internal_error, request_error, unavailable
from workers.simulator.faults import Fault, FaultBox
from workers.simulator.journal import Journal
from workers.simulator.replies import (
    DONE,
    broken_body,
    error_response,
    event,
    hang,
    json_response,
    never_ran,
    payload,
    reset,
    stream_error,
)
from workers.simulator.scheduler import Scheduler, Ticket
from workers.simulator.vocabulary import Vocabulary

DATASET_HEADER = "X-Tokenmill-Dataset"
QUEUE_FULL = "The request queue is full."
# A stream's events come with each token; below this interval several share one.
_EVENT_S = 0.02


class QueueFull(ApiError):
    """So many requests wait already that no more are taken."""

    def __init__(self) -> None:
        said = unavailable(QUEUE_FULL)
        super().__init__(said.status, said.body)


_CONNECTION_FAULTS = frozenset(("reset_after_headers", "cut_body", "drip"))


class Generation:
    """The handler of /generate and what it needs."""

    def __init__(
        self, config: SimulatorConfig, vocabulary: Vocabulary, scheduler: Scheduler, journal: Journal, faults: FaultBox,
        crash: Callable[[], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._vocabulary = vocabulary
        self._scheduler = scheduler
        self._journal = journal
        self._faults = faults
        self._crash = crash
        self.is_dead = False
        self.is_crashed = False
        self._open = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            batch = parse_generate(raw, request.content_type, self._vocabulary, self._config.context_length)
        except ApiError as error:
            return await self._stream(request, stream_error(error)) if error.streamable else error_response(error)
        except Poison:
            self._crash()
            await hang()
        try:
            async with self.in_flight(request, batch) as tickets:
                if batch.stream:
                    return await self._answer_stream(request, batch, tickets)
                return await self._answer(request, batch, tickets)
        except QueueFull:
            if not batch.stream:
                raise
            reason = {"type": "abort", "status_code": 503, "message": QUEUE_FULL}
            rid = batch.prompts[0].rid
            full = never_ran(rid, reason, self._config.weight_version, 0.0, time.time())
            return await self._stream(request, event(full) + DONE)

    @asynccontextmanager
    async def in_flight(self, request: web.Request, batch: Batch) -> AsyncGenerator[list[Ticket]]:
        """The tickets of a batch while it is in flight, after the faults that come before that.

        Raises:
            ApiError: it is refused, or a fault says so.
        """
        if self.is_dead or self.is_crashed:
            await hang()
        dataset = request.headers.get(DATASET_HEADER, "")
        if not dataset.isascii():
            dataset = dataset.encode("utf-8", "replace").decode("utf-8", "replace")
        head = batch.prompts[0]
        fault = self._faults.draw(head.input_ids, dataset, head.digest)
        if fault is not None:
            await self._fail_early(request, fault)
        for prompt in batch.prompts:
            if self._scheduler.is_in_flight(prompt.rid):
                raise request_error(f"Duplicate request ID detected: {prompt.rid}")
        if self._scheduler.engine.is_full(len(batch.prompts)):
            raise QueueFull
        tickets = self._submit(batch, dataset, fault)
        self._open += 1
        self.idle.clear()
        try:
            yield tickets
        finally:
            self._settle(tickets)
            self._open -= 1
            if not self._open:
                self.idle.set()

    async def _fail_early(self, request: web.Request, fault: Fault) -> None:
        """Raises, never returns, or returns where the fault comes later."""
        if fault.mode == "crash":
            self._crash()
            await hang()
        elif fault.mode == "hang":
            if not fault.seconds:
                await hang()
            await asyncio.sleep(fault.seconds)
        elif fault.mode == "reset_before_headers":
            await reset(request)
        elif fault.mode == "unavailable":
            raise unavailable(QUEUE_FULL)
        elif fault.mode == "error":
            raise internal_error()

    def _submit(self, batch: Batch, dataset: str, fault: Fault | None) -> list[Ticket]:
        tickets: list[Ticket] = []
        for prompt in batch.prompts:
            tokens = len(prompt.input_ids)
            plan = plan_answer(
                prompt.digest, tokens, prompt.sampling, dataset, prompt.index, self._config, self._vocabulary
            )
            ticket = Ticket(prompt, plan, dataset, fault)
            self._journal.received(prompt.rid, dataset, tokens, plan.length)
            self._scheduler.submit(ticket)
            tickets.append(ticket)
        return tickets

    async def _answer(self, request: web.Request, batch: Batch, tickets: list[Ticket]) -> web.StreamResponse:
        for ticket in tickets:
            await ticket.done
        answers = [self.answer(ticket) for ticket in tickets]
        if batch.return_prompt_token_ids:
            for answer, ticket in zip(answers, tickets, strict=True):
                answer["prompt_token_ids"] = ticket.prompt.input_ids
        return await self.send(request, json_response(answers if batch.as_list else answers[0]), tickets)

    def answer(self, ticket: Ticket) -> dict[str, Any]:
        """What /generate answers once the ticket is done."""
        return payload(ticket, self._scheduler, self._vocabulary, self._config.weight_version)

    async def send(self, request: web.Request, response: web.Response, tickets: list[Ticket]) -> web.StreamResponse:
        """Send it, or what the fault that these tickets met leaves of it."""
        self._settle(tickets)
        fault = tickets[0].fault
        if fault is not None and fault.mode in _CONNECTION_FAULTS:
            return await broken_body(request, response, fault.mode, fault.seconds)
        return response

    async def _answer_stream(self, request: web.Request, batch: Batch, tickets: list[Ticket]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        version = self._config.weight_version
        sent = dict.fromkeys(tickets, 0)
        live = list(tickets)
        while live:
            interval = max(_EVENT_S, self._scheduler.engine.step_s / self._scheduler.scale)
            await asyncio.wait([t.done for t in live], timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            for ticket in list(live):
                final = ticket.done.done()
                count = self._scheduler.tokens(ticket)
                if not final and count <= sent[ticket]:
                    continue
                if final:
                    live.remove(ticket)
                    if not live:
                        self._settle(tickets)
                        if ticket.fault is not None and ticket.fault.mode in _CONNECTION_FAULTS - {"drip"}:
                            await response.write(b"data: ")
                            await reset(request)
                first = sent[ticket] == 0
                sent[ticket] = count
                chunk = payload(ticket, self._scheduler, self._vocabulary, version, final=final, first=first)
                if batch.as_list:
                    chunk["index"] = tickets.index(ticket)
                await response.write(event(chunk))
        await response.write(DONE)
        await response.write_eof()
        return response

    async def _stream(self, request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(body)
        await response.write_eof()
        return response

    def _settle(self, tickets: list[Ticket]) -> None:
        """Counts each ticket once. One that has not ended has lost its client, or its server."""
        for ticket in tickets:
            if ticket.settled:
                continue
            ticket.settled = True
            ended = ticket.job.state in ("finished", "aborted")
            if not ended:
                self._scheduler.abort(ticket)
            rid, tokens = ticket.prompt.rid, ticket.job.tokens
            mode = None if ticket.fault is None else ticket.fault.mode
            if self.is_crashed:
                self._journal.failed(rid, ticket.dataset, tokens, "crash")
            elif not ended or ticket.aborted:
                self._journal.aborted(rid, ticket.dataset, tokens)
            elif mode in ("reset_after_headers", "cut_body", "nan", "wrong_ids", "missing_ids"):
                self._journal.failed(rid, ticket.dataset, tokens, mode)
            else:
                self._journal.finished(rid, ticket.dataset, tokens)
