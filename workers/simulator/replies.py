"""The answers of /generate on the wire: SGLang's JSON, its stream events, and its broken ones."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import msgspec
from aiohttp import web

from workers.simulator.answers import output_ids, output_text
from workers.simulator.errors import ApiError
from workers.simulator.scheduler import Scheduler, Ticket
from workers.simulator.vocabulary import Vocabulary

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_encode = msgspec.json.Encoder().encode


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=_encode(value), status=status, content_type="application/json", headers=headers)


def error_response(error: ApiError) -> web.Response:
    if isinstance(error.body, str):
        return web.Response(text=error.body, status=error.status)
    # A detail may quote what the client sent, which need not be encodable: the message is text by then.
    return json_response(error.body, error.status)


def event(value: Any) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream_error(error: ApiError) -> bytes:
    """A refused request under `stream: true`: an event with status 200 around it."""
    message = error.body["error"]["message"]
    return (
        event({"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}) + DONE
    )


def never_ran(rid: str, reason: dict[str, Any], version: str, latency_s: float, now: float) -> dict[str, Any]:
    """An answer of the waiting queue: no prompt_tokens, no ids."""
    meta = {
        "id": rid, "finish_reason": reason, "weight_version": version, "e2e_latency": latency_s,
        "weight_versions": [{"version": version, "start": 0, "end": 0}], "completion_tokens": 0,
        "response_sent_to_client_ts": now,
    }  # fmt: skip
    return {"text": "", "output_ids": [], "meta_info": meta}


def payload(
    ticket: Ticket,
    scheduler: Scheduler,
    vocabulary: Vocabulary,
    version: str,
    *,
    final: bool = True,
    first: bool = True,
) -> dict[str, Any]:
    """One answer as SGLang words it; `final=False` is a stream's event on the way, `first` the first of them."""
    now = time.time()
    job, plan, sampling = ticket.job, ticket.plan, ticket.prompt.sampling
    if final and ticket.was_waiting:
        reason = {"type": "abort", "message": "Abort in waiting queue"}
        return never_ran(ticket.prompt.rid, reason, version, now - ticket.received_at, now)
    count = scheduler.tokens(ticket)
    ids = output_ids(plan, count, vocabulary)
    text = output_text(plan, ids, sampling, vocabulary)
    queue_s = (job.admitted_at - job.queued_at) / scheduler.scale
    admitted = ticket.received_at + queue_s
    meta: dict[str, Any] = {
        "id": ticket.prompt.rid, "finish_reason": _reason(ticket) if final else None,
        "prompt_tokens": job.prompt_tokens, "weight_version": version, "num_retractions": 0,
        "storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0, "forward_entry_time": admitted,
        "prefill_finished_time": admitted, "queue_time": queue_s, "reasoning_tokens": 0,
        "completion_tokens": count, "cached_tokens": 0, "cached_tokens_details": None, "dp_rank": None,
    }  # fmt: skip
    if final:
        decode_s = (job.ended_at - job.admitted_at) / scheduler.scale
        meta |= {
            "weight_versions": [{"version": version, "start": 0, "end": count}],
            "e2e_latency": now - ticket.received_at, "request_received_ts": ticket.received_at,
            "first_token_latency": queue_s + decode_s / max(count, 1),
            "api_server_dispatch_finish_ts": ticket.received_at, "request_finished_ts": now,
        }  # fmt: skip
        if count > 1 and decode_s > 0:
            meta["decode_throughput"] = count / decode_s
    if final or first:
        meta["response_sent_to_client_ts"] = now
    answer: dict[str, Any] = {"text": text, "output_ids": ids, "meta_info": meta}
    return _spoil(answer, ticket) if final else answer


def _reason(ticket: Ticket) -> dict[str, Any]:
    if ticket.aborted:
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    if ticket.fault is not None and ticket.fault.mode == "nan":
        return {"type": "stop", "matched": "NaN happened"}
    return ticket.plan.finish_reason


def _spoil(answer: dict[str, Any], ticket: Ticket) -> dict[str, Any]:
    mode = None if ticket.fault is None else ticket.fault.mode
    if mode == "wrong_ids":
        answer["output_ids"] = answer["output_ids"][:-1]
    elif mode == "missing_ids":
        del answer["output_ids"]
    return answer


async def hang() -> NoReturn:
    """Never answers; ends with the connection, which cancels the handler."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody resolves was resolved")


async def reset(request: web.Request) -> NoReturn:
    """Resets the connection (RST, not FIN)."""
    transport = request.transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    await hang()


@web.middleware
async def without_client(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A client that leaves just as its answer begins is no error, of which aiohttp would print a traceback."""
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response()  # which reaches nobody


async def broken_body(request: web.Request, response: web.Response, mode: str, interval_s: float) -> web.StreamResponse:
    """Sends a whole answer's headers and less than its body, or all of it byte by byte."""
    body = bytes(response.body) if isinstance(response.body, bytes) else b""
    stream = web.StreamResponse(status=response.status, headers={"Content-Type": "application/json"})
    stream.content_length = len(body)
    await stream.prepare(request)
    if mode == "drip":
        for at in range(len(body)):
            await stream.write(body[at : at + 1])
            await asyncio.sleep(interval_s)
        return stream
    # aiohttp holds the headers back until there is a byte of body.
    await stream.write(body[: len(body) // 2] if mode == "cut_body" else body[:1])
    if mode == "cut_body":
        if request.transport is not None:
            request.transport.close()
        await hang()
    return await reset(request)
