"""Messages of any dialect into OpenAI's, and a conversation into the turns that the model is to answer.

The aim is on-policy data: what the file's assistant said is another model's, so it is neither asked for
nor, where that can be helped, put into the context.
"""

import json
from typing import Any

from producer.defects import Unusable, is_list, is_object, kind
from workers.contracts import Message

CALL = "call"
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "ipython": "tool",
    "function_call": CALL,
    "tool_call": CALL,
}
# What chat templates know of a message beside its role and content.
_CARRIED = ("name", "tool_call_id", "reasoning_content")


def split(items: list[Any], *, keep: bool = False) -> tuple[list[list[Message]], str]:
    """The turns of a conversation (lists of messages, each of which the model answers), and its last answer.

    - A last assistant message is left out, because that answer is made anew, and returned beside the turns.
    - Several user turns are one job. The file's answers between them are dropped, because the model
      answers each turn and goes on from its own answers. Messages between two answers are one turn; a
      system message goes with the turn that follows it, a greeting before the first user message stays.
    - With tool results or function calls in it, or where `keep` asks for it, it is one turn: the whole
      history up to the last user or tool message. Results belong to the calls that the file's assistant made,
      and would make no sense after others.

    Raises:
        Unusable: nothing to answer, or a message that cannot be shown to a model as it is.
    """
    if not items:
        raise Unusable("no_prompt", "the conversation has no messages")
    roles = [_role(item, at) for at, item in enumerate(items)]
    if "user" not in roles and "tool" not in roles:
        raise Unusable("no_user_turn", "the conversation has no user message")
    asked = [at for at, role in enumerate(roles) if role in ("user", "tool")]
    if "system" in roles[asked[-1] + 1 :]:
        raise Unusable("ends_wrong_side", "the conversation ends with a system message, which asks for no answer")
    reference = _said(items[asked[-1] + 1 :])
    whole = keep or any(
        role in ("tool", CALL) or bool(item.get("tool_calls")) for role, item in zip(roles, items, strict=True)
    )
    if whole:
        turn = [_message(items[at], roles[at], at) for at in range(asked[-1] + 1)]
        if turn[-1]["role"] == "user":
            _not_blank(turn[-1])
        return [turn], reference
    turns: list[list[Message]] = [[]]
    answerable = False
    for at in range(asked[-1] + 1):
        role = roles[at]
        if role == "assistant":
            if answerable:
                turns.append([])
                answerable = False
            elif len(turns) == 1:
                turns[-1].append(_message(items[at], role, at))
            continue
        message = _message(items[at], role, at)
        if role == "user":
            _not_blank(message)
            answerable = True
        turns[-1].append(message)
    return turns, reference


def _said(answers: list[dict[str, Any]]) -> str:
    """What the file's assistant said last: its text, else its calls as JSON, as far as that can be told."""
    for item in reversed(answers):
        content: Any = item["content"] if "content" in item else item.get("value")
        try:
            said = text_of(content, "the answer")
        except Unusable:
            said = ""
        if said or item.get("tool_calls"):
            return said or json.dumps(item["tool_calls"])
    return ""


def text_of(content: Any, what: str) -> str:
    """Content as one text: a string as it is, text parts joined.

    Raises:
        Unusable: it is missing, holds more than text, or is no content at all.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise Unusable("content_null", f"{what} has no content")
    if not is_list(content):
        raise Unusable("wrong_type", f"{what} has {kind(content)} as content; it must be text")
    parts: list[str] = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif is_object(part) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            met = f"of type {part.get('type')!s:.40}" if is_object(part) else f"that is {kind(part)}"
            raise Unusable("not_text", f"{what} has a part {met}; only text can be sent")
    return "".join(parts)


def tools_of(value: Any) -> list[Any]:
    """A row's tools, each as `{"type": "function", "function": {…}}`, which chat templates expect.

    Raises:
        Unusable: it is no list of objects, nor JSON text of one.
    """
    parsed = _json(value)
    if parsed is None or parsed == "":
        return []
    if is_object(parsed):
        parsed = [parsed]
    if not is_list(parsed):
        raise Unusable("bad_tools", "the row's tools are no list of functions")
    tools: list[Any] = []
    for held in parsed:
        tool = _json(held)
        if not is_object(tool):
            raise Unusable("bad_tools", f"the row has a tool that is {kind(tool)}, not an object")
        tools.append(tool if "function" in tool else {"type": "function", "function": tool})
    return tools


def _role(item: Any, at: int) -> str:
    if not is_object(item):
        raise Unusable("wrong_type", f"message {at + 1} is {kind(item)}, not an object")
    named: Any = item.get("role")
    if named is None:
        named = item.get("from")
    if not isinstance(named, str):
        raise Unusable("wrong_type", f"message {at + 1} has no role")
    role = ROLES.get(named.lower())
    if role is None:
        raise Unusable("unknown_role", f"message {at + 1} has the unknown role {named[:40]!r}")
    return role


def _message(item: dict[str, Any], role: str, at: int) -> Message:
    what = f"message {at + 1}"
    content: Any = item["content"] if "content" in item else item.get("value")
    calls: Any = item.get("tool_calls")
    if role == CALL:
        calls = _calls(content)
        role = "assistant"
        content = "" if calls else content
    if content is None and calls:
        content = ""
    message: Message = {"role": role, "content": text_of(content, what)}
    if calls:
        if not is_list(calls):
            raise Unusable("wrong_type", f"{what} has tool_calls that are no list")
        message["tool_calls"] = calls
    for name in _CARRIED:
        if isinstance(item.get(name), str):
            message[name] = item[name]
    return message


def _calls(content: Any) -> list[Any]:
    """Function calls written as JSON text; none where it is not that, and then the text itself is kept."""
    parsed = _json(content)
    held = parsed if is_list(parsed) else [parsed]
    if not all(is_object(call) and isinstance(call.get("name"), str) for call in held):
        return []
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in held
    ]


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _not_blank(message: Message) -> None:
    if not message["content"].strip():
        raise Unusable("empty_prompt", "a user message is empty")
