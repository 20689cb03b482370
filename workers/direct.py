"""The compiled chat template and the Rust tokenizer, called without what transformers does around them.

Half of the time that a short prompt costs goes into transformers' checks of what it is given. The promise:
the texts and ids are transformers' own. Both ways are tried on probes when a tokenizer is loaded, and a
direct way that differs in anything, or is not to be found in another version, is not used. Messages that
hold more than JSON's own types or than the keys below always go the long way, where transformers changes
them.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from workers.contracts import Message

_U, _A = {"role": "user", "content": " Why?\n"}, {"role": "assistant", "content": "So. "}
_ARGUMENTS = {"x": [1, 2.5, None, True, "é<"], "y": {"z": ""}}
_CALL: Message = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "c", "type": "function", "function": {"name": "add", "arguments": _ARGUMENTS}}
]}  # fmt: skip
_RESULT = {"role": "tool", "content": "4", "name": "add", "tool_call_id": "c"}
_TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "description": "", "parameters": _ARGUMENTS}}]
_PROBES: tuple[tuple[list[Message], list[Any]], ...] = (
    ([_U], []),
    ([{"role": "system", "content": "Be brief. é"}, _U], []),
    ([_U, _A, _U], []),
    ([_A, _U], []),
    ([_U, _U], []),
    ([_U], _TOOLS),
    ([_U, _CALL, _RESULT], _TOOLS),
    ([_U, _CALL, _RESULT, _A, _U], []),
)
# What a message may hold to be shown to a template as it is.
_KEYS = frozenset({"role", "content", "name", "tool_call_id", "tool_calls"})
_TEXTS = ("", " a  b\n", "Aé 你好\r\n\t🙂 x=f('y')", "word " * 3000)


class Direct:
    """Renders and encodes where that is known to be what transformers does; None where it is not."""

    def __init__(self, tokenizer: Any, compiled: Any, kwargs: dict[str, Any]) -> None:
        self._variables = {**tokenizer.special_tokens_map, **kwargs}
        self._compiled = compiled
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        marks = list(tokenizer.special_tokens_map.values())
        texts = [*_TEXTS, *(f"{mark}a {mark}\n{mark}" for mark in marks if isinstance(mark, str))]
        self._encodes = hasattr(self._backend, "encode_batch_fast") and all(
            self._ids(text) == list(tokenizer.encode(text, add_special_tokens=False)) for text in texts
        )
        self._renders = compiled is not None and all(
            _outcome(lambda held=held, tools=tools: self._text(held, tools))
            == _outcome(
                lambda held=held, tools=tools: tokenizer.apply_chat_template(
                    held, tools=tools or None, tokenize=False, add_generation_prompt=True, **kwargs
                )
            )
            for held, tools in _PROBES
        )

    def encode(self, text: str) -> list[int] | None:
        return self._ids(text) if self._encodes else None

    def text(self, messages: list[Message], tools: list[Any]) -> str | None:
        if not (self._renders and messages and all(map(_is_plain, messages)) and all(type(t) is dict for t in tools)):
            return None
        try:
            return self._text(messages, tools)
        except Exception:
            # Whatever a template raises, transformers' own way raises it too, and is asked next.
            return None

    def _text(self, messages: list[Message], tools: list[Any]) -> str:
        return str(
            self._compiled.render(
                messages=messages, tools=tools or None, documents=None, add_generation_prompt=True, **self._variables
            )
        )

    def _ids(self, text: str) -> list[int]:
        # A batch of one, because only for batches does the library leave out where in the text each token
        # stands: a quarter less.
        return cast("list[int]", self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def for_template(message: Message) -> Message:
    """A message as templates expect it: content always a text, arguments of calls as objects."""
    shown = {**message, "content": "" if message.get("content") is None else message["content"]}
    calls: Any = shown.get("tool_calls")
    if isinstance(calls, list):
        shown["tool_calls"] = [_call(call) for call in cast("list[Any]", calls)]
    return shown


def history(
    messages: Sequence[Message], answers: Sequence[str], followups: Sequence[Sequence[Message]]
) -> list[Message]:
    """The conversation as asked in the turn after `answers`: each answer, then the user's next messages."""
    asked = list(messages)
    for answer, following in zip(answers, followups, strict=False):
        asked.append({"role": "assistant", "content": answer})
        asked.extend(following)
    return asked


def _call(call: Any) -> Any:
    try:
        function = dict(call["function"])
        function["arguments"] = json.loads(function["arguments"])
    except (TypeError, KeyError, ValueError):
        return call
    return {**call, "function": function}


def _is_plain(message: Message) -> bool:
    return message.keys() <= _KEYS and None not in message.values()


def _outcome(render: Callable[[], Any]) -> Any:
    try:
        return render()
    except Exception as error:
        # Templates raise anything; two ways agree where they raise the same.
        return repr(error)
