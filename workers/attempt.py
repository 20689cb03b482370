"""One attempt at one prompt: its turns one after another on one server, its records all or none.

What kills servers is never sent: ids outside the vocabulary, an empty prompt, more tokens than the
context takes.
"""

import asyncio
import json
import time
import uuid
from typing import Any

import msgspec

from budget import failpoints
from budget.verbs import Lease
from workers import outcomes
from workers.chat import Unrenderable
from workers.contracts import NO_TOOLS, Message, Payload, Record
from workers.rendering import Turns
from workers.server import Server
from workers.sglang import Broken, Client
from workers.thinking import Thinking

# SGLang keeps so many tokens of the context for itself: the longest prompt is 2,041 of 2,048.
CONTEXT_MARGIN = 7


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """All turns of a prompt, accepted. `tokens` is what they cost together."""

    records: list[Record]
    tokens: int
    truncated: bool


class Attempt:
    """An attempt in flight. `rid` is the request that the server has now; `wasted` tokens were made in vain.

    Args:
        sampling: complete, as sent with every request and stored with every record.
        vocab_size: ids at or above it end a real server.
        thinking: the model's tags around its thoughts, if it has any.
    """

    def __init__(
        self,
        *,
        client: Client,
        server: Server,
        lease: Lease,
        payload: Payload,
        sampling: dict[str, Any],
        vocab_size: int,
        worker: str,
        turns: Turns,
        thinking: Thinking | None = None,
    ) -> None:
        self.server = server
        self.rid = ""
        self.done_tokens = 0
        self._turn_started: float | None = None
        self._client = client
        self._lease = lease
        self._payload = payload
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._worker = worker
        self._turns = turns
        self._thinking = thinking

    async def run(self) -> "Completion | outcomes.Outcome":
        """Generate all turns. An answer cut at its limit ends the conversation: a later turn would build on a torso."""
        payload = self._payload
        records: list[Record] = []
        ids, messages = payload.input_ids, payload.messages
        for turn in range(payload.turns):
            if turn:
                try:
                    ids, messages = await self._turns.render_next(payload, [record.text for record in records])
                except Unrenderable as error:
                    return self._with_waste(outcomes.Reject(error.reason, f"turn {turn + 1}: {error.detail}"))
            sampling = self._fitted(ids)
            if isinstance(sampling, outcomes.Reject):
                return self._with_waste(sampling)
            started = self._turn_started = time.monotonic()
            outcome = await self._request(ids, sampling)
            self._turn_started = None
            if not isinstance(outcome, outcomes.Accept):
                return self._with_waste(outcome)
            seconds = time.monotonic() - started
            record = self._record(turn, ids, messages, sampling, outcome.answer, seconds)
            self.server.finished(record.completion_tokens, seconds)
            self.done_tokens += record.completion_tokens
            records.append(record)
            if outcome.truncated:
                break
        return Completion(
            records=self._whole(records),
            tokens=self.done_tokens,
            truncated=records[-1].finish_reason == "length",
        )

    def _whole(self, records: list[Record]) -> list[Record]:
        """The records with what is known only now: how many turns there were, and which is the last."""
        last = msgspec.structs.replace(records[-1], reference=self._payload.reference)
        return [msgspec.structs.replace(record, turns=len(records)) for record in [*records[:-1], last]]

    @property
    def probable_tokens(self) -> int:
        """Tokens made so far: those of finished turns, and of the turn in flight its seconds at the server's speed."""
        return self.probable_tokens_at(time.monotonic())

    def probable_tokens_at(self, moment: float) -> int:
        """The same, had nothing been made since `moment` (of the monotonic clock)."""
        if self._turn_started is None:
            return self.done_tokens
        return self.done_tokens + int(max(0.0, moment - self._turn_started) * self.server.speed)

    async def give_up(self) -> None:
        """Tell the server to stop; for an attempt that was cancelled."""
        if self.rid:
            await self._client.abort(self.server.url, self.rid)

    def _fitted(self, ids: list[int]) -> "dict[str, Any] | outcomes.Reject":
        if not ids:
            return outcomes.Reject("empty_prompt", "the prompt has no tokens")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            wrong = next(i for i in ids if not 0 <= i < self._vocab_size)
            return outcomes.Reject(
                "outside_vocabulary", f"token id {wrong} is outside the vocabulary of {self._vocab_size}"
            )
        wanted = self._payload.max_new_tokens or int(self._sampling["max_new_tokens"])
        context = self.server.model.context_length if self.server.model else None
        if context is not None:
            wanted = min(wanted, context - len(ids))
            if wanted < 1 or len(ids) > context - CONTEXT_MARGIN:
                return outcomes.Reject("too_long", f"{len(ids)} prompt tokens do not fit a context of {context}")
        sampling = {**self._sampling, "max_new_tokens": wanted}
        if int(sampling.get("min_new_tokens") or 0) > wanted:
            sampling["min_new_tokens"] = wanted
        return sampling

    async def _request(self, ids: list[int], sampling: dict[str, Any]) -> outcomes.Outcome:
        self.rid = uuid.uuid4().hex  # of fixed width: SGLang aborts by prefix
        body = msgspec.json.encode({"rid": self.rid, "input_ids": ids, "sampling_params": sampling})
        if failpoints.ACTIVE:
            failpoints.hit("before_http", self._lease.job)
        try:
            status, answer = await self._client.generate(self.server.url, body, self._payload.dataset)
        except Broken as broken:
            if broken.kind == "timeout":
                await asyncio.shield(self.give_up())
            outcome = outcomes.sort_broken(broken)
        else:
            self.server.hear()
            if failpoints.ACTIVE:
                failpoints.hit("after_http", self._lease.job)
            outcome = outcomes.sort_answer(status, answer)
        self.rid = "" if not isinstance(outcome, outcomes.Accept) else self.rid
        return outcome

    def _record(
        self,
        turn: int,
        ids: list[int],
        messages: list[Message],
        sampling: dict[str, Any],
        answer: outcomes.Answer,
        seconds: float,
    ) -> Record:
        reason = answer.meta_info.finish_reason
        rid, self.rid = self.rid, ""
        matched = reason.matched if reason else None
        thoughts, visible = self._thinking.split(answer.text, ids) if self._thinking else ("", "")
        return Record(
            id=self._payload.id,
            dataset=self._payload.dataset,
            turn=turn + 1,
            turns=self._payload.turns,
            prompt_tokens=len(ids),
            completion_tokens=answer.meta_info.completion_tokens,
            finish_reason=reason.type if reason else "",
            matched="" if matched is None else str(matched),
            input_ids=ids,
            output_ids=answer.output_ids or [],
            text=answer.text,
            thinking=thoughts,
            visible=visible,
            messages=messages,
            tools=json.dumps(self._payload.tools, separators=(",", ":")) if self._payload.tools else NO_TOOLS,
            sampling=sampling,
            model=self.server.model.name if self.server.model else "",
            weight_version=answer.meta_info.weight_version or "",
            server=self.server.url,
            worker=self._worker,
            attempt=self._lease.attempt,
            rid=rid,
            latency_s=round(seconds, 4),
            created_at=round(time.time(), 3),
        )

    def _with_waste(self, outcome: outcomes.Outcome) -> outcomes.Outcome:
        """Earlier turns of a conversation that fails later were made in vain too."""
        if isinstance(outcome, outcomes.Reject | outcomes.Retry | outcomes.ServerFault):
            return msgspec.structs.replace(outcome, wasted=outcome.wasted + self.done_tokens)
        return outcome
