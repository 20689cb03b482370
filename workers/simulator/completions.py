"""POST /v1/chat/completions: what clients of the OpenAI API ask, on the same engine, queue and faults as /generate.

The tokenizer's own chat template makes the prompt, as on a real server. `return_token_ids` adds the ids, in the
fields in which vLLM gives them.
"""

import asyncio
import time
import uuid
from typing import Any, cast

from aiohttp import web

from workers.chat import ChatProblem, ChatTokenizer, Unrenderable
from workers.simulator.bodies import Batch, check_length, decode_body, samples
from workers.simulator.config import SimulatorConfig
from workers.simulator.errors import ApiError, internal_error, validation_error
from workers.simulator.generation import Generation
from workers.simulator.replies import DONE, error_response, event, json_response
from workers.simulator.sampling import parse_sampling
from workers.simulator.vocabulary import Vocabulary

_ROUTE = ("POST /v1/chat/completions", "openai_v1_chat_completions")
# Names that mean the same in both APIs.
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_SAME = (
    *_NUMBERS, "top_k", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "no_stop_trim", "n",
    "logit_bias",
)  # fmt: skip
_RENAMED = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "min_tokens": "min_new_tokens",
            "seed": "sampling_seed"}  # fmt: skip


class Completions:
    """The handler of /v1/chat/completions. The tokenizer is loaded with the first request, which takes seconds."""

    def __init__(self, config: SimulatorConfig, vocabulary: Vocabulary, generation: Generation) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._generation = generation
        self._chat: ChatTokenizer | None = None
        self._loading = asyncio.Lock()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = decode_body(raw, request.content_type, *_ROUTE, "ChatCompletionRequest")
            batch = await self._batch(body)
            return await self._answer(request, batch, body)
        except ApiError as error:
            return error_response(_worded(error))

    async def _batch(self, body: dict[str, Any]) -> Batch:
        messages = body.get("messages")
        if not isinstance(messages, list):
            kind = "missing" if messages is None else "list_type"
            text = "Field required" if messages is None else "Input should be a valid list"
            detail = {"type": kind, "loc": ("body", "messages"), "msg": text, "input": body}
            raise validation_error(*_ROUTE, detail)
        ids = await self._render(cast("list[Any]", messages), body)
        params: dict[str, Any] = {"max_new_tokens": None}
        params |= {name: body[name] for name in _SAME if body.get(name) is not None}
        params |= {ours: body[theirs] for theirs, ours in _RENAMED.items() if body.get(theirs) is not None}
        # The real server's types make floats of them before anything looks at them.
        params |= {name: float(params[name]) for name in _NUMBERS if isinstance(params.get(name), int)}
        sampling = parse_sampling(params, self._vocabulary.size)
        check_length(len(ids), sampling, self._config.context_length)
        return Batch(
            prompts=samples(str(body.get("rid") or uuid.uuid4().hex), ids, sampling),
            as_list=False,
            stream=bool(body.get("stream")),
            return_prompt_token_ids=bool(body.get("return_token_ids")),
        )

    async def _render(self, messages: list[Any], body: dict[str, Any]) -> list[int]:
        if self._config.tokenizer is None:
            raise _error(
                500,
                "InternalServerError",
                "Internal server error: 'NoneType' object has no attribute 'apply_chat_template'",
            )
        async with self._loading:
            if self._chat is None:
                kwargs: Any = body.get("chat_template_kwargs") or {}
                self._chat = await asyncio.to_thread(ChatTokenizer.load, self._config.tokenizer, kwargs)
        try:
            return self._chat.render(messages, body.get("tools") or [])
        except (ChatProblem, Unrenderable, AttributeError, TypeError) as error:
            raise _error(400, "BadRequestError", str(error)) from error

    async def _answer(self, request: web.Request, batch: Batch, body: dict[str, Any]) -> web.StreamResponse:
        async with self._generation.in_flight(request, batch) as tickets:
            for ticket in tickets:
                await ticket.done
            answers = [self._generation.answer(ticket) for ticket in tickets]
            if any(answer["meta_info"]["finish_reason"]["type"] == "abort" for answer in answers):
                raise _error(503, "503", "The request was aborted.")
            whole = _completion(answers, batch, str(body.get("model") or self._config.model))
            response = json_response(whole)
            if not batch.stream:
                return await self._generation.send(request, response, tickets)
        options: dict[str, Any] = body.get("stream_options") or {}
        return await _stream(request, whole, with_usage=bool(options.get("include_usage")))


def _error(status: int, kind: str, message: str) -> ApiError:
    return ApiError(status, {"object": "error", "message": message, "type": kind, "param": None, "code": status})


def _worded(error: ApiError) -> ApiError:
    """The same refusal as this API words it."""
    body: Any = error.body
    if error.status != 400 or not isinstance(body, dict) or "error" not in body:
        return error if isinstance(body, dict) else _error(500, "InternalServerError", str(internal_error().body))
    told: Any = cast("dict[str, Any]", body)["error"]
    return _error(400, "BadRequestError", told if isinstance(told, str) else told["message"])


def _completion(answers: list[dict[str, Any]], batch: Batch, model: str) -> dict[str, Any]:
    """One body for all the answers to a request."""
    metas = [answer["meta_info"] for answer in answers]
    made = sum(meta["completion_tokens"] for meta in metas)
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer["text"], "reasoning_content": None},
            "logprobs": None,
            "finish_reason": answer["meta_info"]["finish_reason"]["type"],
            "matched_stop": answer["meta_info"]["finish_reason"].get("matched"),
            **({"token_ids": answer["output_ids"]} if batch.return_prompt_token_ids else {}),
        }
        for index, answer in enumerate(answers)
    ]
    ids = batch.prompts[0].input_ids
    return {
        "id": batch.prompts[0].rid, "object": "chat.completion", "created": int(time.time()), "model": model,
        "choices": choices,
        "usage": {
            "prompt_tokens": len(ids), "total_tokens": len(ids) + made, "completion_tokens": made,
            "prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None,
        },
        "metadata": {"weight_version": metas[0]["weight_version"], "weight_versions": metas[0]["weight_versions"]},
        **({"prompt_token_ids": ids} if batch.return_prompt_token_ids else {}),
    }  # fmt: skip


async def _stream(request: web.Request, whole: dict[str, Any], *, with_usage: bool) -> web.StreamResponse:
    """A finished answer in the events of a stream: this server does not spread them over time here."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    head = {name: whole[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in whole["choices"]:
        text = choice["message"]["content"]
        for delta, reason in (
            ({"reasoning_content": None, "role": "assistant", "content": ""}, None),
            ({"reasoning_content": None, "content": text}, None),
            ({"reasoning_content": None}, choice["finish_reason"]),
        ):
            one = {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": reason,
                   "matched_stop": choice["matched_stop"] if reason else None}  # fmt: skip
            await response.write(event({**head, "choices": [one]}))
    if with_usage:
        await response.write(event({**head, "choices": [], "usage": whole["usage"]}))
    await response.write(DONE)
    await response.write_eof()
    return response
