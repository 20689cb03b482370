"""One answer as a row of training data: its columns, its mask, its cut.

`loss_mask` is 1 exactly where the target model generated the token, the end token included, and 0 on
what it was asked. The ids are those that were sent and received; nothing is encoded again. Columns have
one type in every row and are never null, because loaders infer one schema for a whole file.
"""

import json
import re
from typing import Any, cast

import msgspec

from results.turns import Answer, Ids

# Arrow takes a column of texts that all look so for dates, and fails at the first that does not.
_DATE = re.compile(r"\d{4}-\d\d(-\d\d.*)?", re.ASCII | re.DOTALL)


class TokenRow(msgspec.Struct, kw_only=True):
    """A row of token ids: `columns` hold all but the ids and the mask, which is `unsupervised` zeros, then ones."""

    columns: dict[str, Any]
    ids: Ids
    unsupervised: int

    @property
    def tokens(self) -> int:
        return self.ids.count

    @property
    def supervised(self) -> int:
        return self.ids.count - self.unsupervised

    def encode(self) -> bytes:
        """One line of JSON, ASCII only."""
        return b'%b,"input_ids":%b,"loss_mask":[%b]}\n' % (
            _json(self.columns)[:-1],
            self.ids.data,
            (b"0," * self.unsupervised + b"1," * self.supervised)[:-1],
        )


class ChatRow(msgspec.Struct, kw_only=True):
    """A conversation: its id, its messages, its tools as JSON text; no more, since that would reach a chat template."""

    id: str
    conversations: list[dict[str, str]]
    tools: str
    tokens: int
    supervised: int

    def encode(self) -> bytes:
        return _json({"id": self.id, "conversations": self.conversations, "tools": self.tools}) + b"\n"


Row = TokenRow | ChatRow


def primary_id(answer: Answer, dataset: str) -> str:
    """The prompt's id among those of all datasets; a dataset's name holds no slash."""
    return f"{dataset}/{answer.id}"


def continues(before: Answer, now: Answer) -> bool:
    """Whether a turn was asked with the turn before it and its answer as its history."""
    known = [*before.messages, {"role": "assistant", "content": before.text}]
    return now.messages[: len(known)] == known


def token_row(
    answer: Answer, dataset: str, generation: int, *, history_matches: bool, max_length: int | None
) -> TokenRow:
    """The row of the `generation`-th answer of its prompt (from 0), cut to `max_length`."""
    asked, ids = answer.asked, answer.asked + answer.said
    is_cut = max_length is not None and ids.count > max_length
    if is_cut:
        ids = Ids.of(ids.numbers()[:max_length])
    own = primary_id(answer, dataset)
    columns: dict[str, Any] = {
        "id": f"{own}_gen{generation}",
        "primary_id": own,
        "dataset": dataset,
        "turn": answer.turn,
        "turns": answer.turns,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": asked.count,
        "completion_tokens": answer.completion_tokens,
        "cut": is_cut,
        "history_matches": history_matches,
        "model": answer.model,
        "weight_version": answer.weight_version,
        "sampling_params_json": json.dumps(answer.sampling, sort_keys=True, separators=(",", ":")),
        "worker": answer.worker,
        "created_at": float(answer.created_at),
        "text": answer.text,
    }
    return TokenRow(columns=columns, ids=ids, unsupervised=min(asked.count, ids.count))


def no_date(text: str) -> str:
    """The text, with a newline after it where a loader would take it for a date."""
    return text + "\n" if _DATE.fullmatch(text) else text


def chat_row(turns: list[Answer], dataset: str) -> ChatRow | str:
    """The conversation of a prompt with all its answers, as the last turn was asked; or why it cannot be one."""
    last = turns[-1]
    if not last.messages:
        return "no_messages"
    said: list[dict[str, str]] = []
    for message in last.messages:
        role, content = cast("Any", message.get("role")), cast("Any", message.get("content"))
        if message.get("tool_calls") or role == "tool":
            return "tool_calls"
        if not isinstance(role, str) or not isinstance(content, str):
            return "not_text"
        said.append({"role": role, "content": content})
    said.append({"role": "assistant", "content": last.text})
    generated = sum(turn.completion_tokens for turn in turns)
    return ChatRow(
        id=primary_id(last, dataset),
        conversations=said,
        tools=last.tools,
        tokens=last.asked.count + last.said.count,
        supervised=generated,
    )


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
