"""A row's value into a prompt, whatever shape it has; pure, and total: a prompt or a defect, never an error.

One function per shape. Where a row fits several, the first of this order that it has a value for wins:

    input_ids · messages · conversations · turns · prompt · question · query · problem ·
    problem_statement · instruction (+ input, history) · text · input · history

From exact to loose: ids are final; a conversation says who speaks; `text` and `input` mean something
else where a better name stands beside them. A row's `system` (or `system_prompt`) goes first unless its
conversation has a system message of its own; `tools` (or `function`) go with it. Nothing is stripped or
re-encoded: a prompt that ends with a newline asks for something else than one that does not.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from producer.conversation import split, text_of, tools_of
from producer.defects import Defect, Unusable, is_list, is_object, kind
from workers.contracts import Message

__all__ = ["SHAPES", "Defect", "Prompt", "to_prompt"]

# An image or a sound that a text alone refers to: its answer would be a guess.
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask: `messages` and, after each answer, the next of `followups`; or ready `input_ids`."""

    messages: list[Message] = []
    followups: list[list[Message]] = []
    input_ids: list[int] = []
    tools: list[Any] = []


def to_prompt(value: Any) -> Prompt | Defect:
    """The prompt of a row, or why it has none."""
    try:
        if not is_object(value):
            raise Unusable("not_an_object", f"the row is {kind(value)}; a row is a JSON object")
        held = [name for name in SHAPES if value.get(name) is not None]
        # Column formats fill what a row lacks with empty lists; they count only where there is nothing else.
        for name in [name for name in held if value[name] != []] or held:
            return SHAPES[name](value)
        raise Unusable("no_prompt", f"the row has none of the keys {', '.join(SHAPES)}{_has(value)}")
    except Unusable as unusable:
        return unusable.defect


def from_input_ids(row: dict[str, Any]) -> Prompt:
    """Token ids, sent as they are; a list that holds one list is that list."""
    ids: Any = row["input_ids"]
    if is_list(ids) and len(ids) == 1 and is_list(ids[0]):
        ids = ids[0]
    if not is_list(ids):
        raise Unusable("bad_ids", f"input_ids is {kind(ids)}, not a list of integers")
    if not ids:
        raise Unusable("empty_prompt", "input_ids is empty")
    for at, held in enumerate(ids):
        if type(held) is not int:
            raise Unusable("bad_ids", f"input_ids[{at}] is {kind(held)}, not an integer")
        if held < 0:
            raise Unusable("bad_ids", f"input_ids[{at}] is {held}; no token id is negative")
    return Prompt(input_ids=ids)


def from_messages(row: dict[str, Any]) -> Prompt:
    """OpenAI's shape: role and content."""
    return _conversation(row, "messages")


def from_conversations(row: dict[str, Any]) -> Prompt:
    """ShareGPT's shape: from and value, or role and content under its name."""
    return _conversation(row, "conversations")


def from_turns(row: dict[str, Any]) -> Prompt:
    """User texts, one after another, as MT-Bench has them; messages without a role are the user's."""
    turns: list[list[Message]] = []
    for at, turn in enumerate(_list(row, "turns")):
        if is_object(turn) and ("role" in turn or "from" in turn):
            return _conversation(row, "turns")
        content: Any = turn.get("content") if is_object(turn) else turn
        turns.append([_user(text_of(content, f"turn {at + 1}"))])
    return _prompt(row, turns)


def from_prompt(row: dict[str, Any]) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "prompt")


def from_question(row: dict[str, Any]) -> Prompt:
    """A text, a list of messages, or (BFCL) a list of turns, each a list of messages."""
    question: Any = row["question"]
    if not (is_list(question) and question and is_list(question[0])):
        return _loose(row, "question")
    turns: list[list[Message]] = []
    for at, items in enumerate(question):
        if not is_list(items):
            raise Unusable("wrong_type", f"turn {at + 1} of question is {kind(items)}, not a list of messages")
        inner = split(items)
        if len(inner) > 1 or any(message["role"] in ("tool", "assistant") for message in inner[0]):
            # Answers or results stand in it: then it is one conversation, cut by its own rules.
            return _prompt(row, split([item for held in question if is_list(held) for item in held]))
        turns.extend(inner)
    return _prompt(row, turns)


def from_query(row: dict[str, Any]) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "query")


def from_problem(row: dict[str, Any]) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "problem")


def from_problem_statement(row: dict[str, Any]) -> Prompt:
    """A repository's issue, as SWE-bench has it."""
    return _loose(row, "problem_statement")


def from_instruction(row: dict[str, Any]) -> Prompt:
    """Alpaca's shape: the input, if any, a blank line below; earlier questions in `history` come first.

    Self-Instruct keeps the input in the first of its `instances`.
    """
    instruction = text_of(row["instruction"], "instruction")
    given: Any = row.get("input")
    if given is None and is_list(instances := row.get("instances")) and instances and is_object(instances[0]):
        given = instances[0].get("input")
    extra = "" if given is None else text_of(given, "input")
    asked = f"{instruction}\n\n{extra}" if extra.strip() and instruction.strip() else instruction or extra
    earlier: list[list[Message]] = []
    if is_list(history := row.get("history")):
        for at, pair in enumerate(history):
            if not (is_list(pair) and pair):
                raise Unusable("wrong_type", f"history {at + 1} is {kind(pair)}, not a question and its answer")
            earlier.append([_user(text_of(pair[0], f"history {at + 1}"))])
    return _prompt(row, [*earlier, [_user(asked)]])


def from_text(row: dict[str, Any]) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "text")


def from_input(row: dict[str, Any]) -> Prompt:
    """A text, or a list of messages, where no better name stands beside it."""
    return _loose(row, "input")


def from_history(row: dict[str, Any]) -> Prompt:
    """An agent's trajectory: one turn, because the user's side answers what the file's agent did."""
    return _prompt(row, split(_list(row, "history"), trajectory=True))


SHAPES: dict[str, Callable[[dict[str, Any]], Prompt]] = {
    "input_ids": from_input_ids,
    "messages": from_messages,
    "conversations": from_conversations,
    "turns": from_turns,
    "prompt": from_prompt,
    "question": from_question,
    "query": from_query,
    "problem": from_problem,
    "problem_statement": from_problem_statement,
    "instruction": from_instruction,
    "text": from_text,
    "input": from_input,
    "history": from_history,
}


def _loose(row: dict[str, Any], name: str) -> Prompt:
    value: Any = row[name]
    if is_list(value):
        return _conversation(row, name)
    if not isinstance(value, str):
        raise Unusable("wrong_type", f"{name} is {kind(value)}; it must be text or a list of messages")
    return _prompt(row, [[_user(value)]])


def _conversation(row: dict[str, Any], name: str) -> Prompt:
    return _prompt(row, split(_list(row, name)))


def _prompt(row: dict[str, Any], turns: list[list[Message]]) -> Prompt:
    if not turns:
        raise Unusable("no_prompt", "the row has no turns")
    for name in _MEDIA:
        if row.get(name):
            raise Unusable("not_text", f"the row has {name}; only text can be sent")
    for turn in turns:
        if turn[-1]["role"] == "user" and not turn[-1]["content"].strip():
            raise Unusable("empty_prompt", "the prompt is empty")
    first, *followups = turns
    system: Any = row.get("system")
    if system is None:
        system = row.get("system_prompt")
    if system is not None and not isinstance(system, str):
        raise Unusable("wrong_type", f"system is {kind(system)}; it must be text")
    if system and first[0]["role"] != "system":
        first = [{"role": "system", "content": system}, *first]
    tools: Any = row.get("tools")
    return Prompt(
        messages=first,
        followups=followups,
        tools=tools_of(row.get("function") if tools is None else tools),
    )


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _list(row: dict[str, Any], name: str) -> list[Any]:
    value: Any = row[name]
    if not is_list(value):
        raise Unusable("wrong_type", f"{name} is {kind(value)}, not a list of messages")
    return value


def _has(value: dict[str, Any]) -> str:
    return f"; it has {', '.join(str(name)[:40] for name in list(value)[:8])}" if value else "; it is empty"
