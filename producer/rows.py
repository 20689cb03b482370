"""A row's value into a prompt, whatever shape it has; pure, and total: a prompt or a defect, never an error.

One function per shape. Where a row fits several, the first of this order that it has a value for wins:

    input_ids · messages · conversations · turns · prompt · question · query · problem ·
    problem_statement · instruction (+ input, history) · text · input · history

From exact to loose: ids are final; a conversation says who speaks; `text` and `input` mean something
else where a better name stands beside them. A row's `system` (or `system_prompt`) goes first unless its
conversation has a system message of its own; `tools` (or `function`) go with it. Nothing is stripped or
re-encoded: a prompt that ends with a newline asks for something else than one that does not. A list of
messages may also be its own JSON text, as tables hold it. A dataset's `fields` go before all this.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from producer.conversation import split, text_of, tools_of
from producer.defects import Defect, Unusable, is_list, is_object, kind
from producer.fields import SOURCES, is_conversation, mapped, unspelled
from workers.contracts import History, Message

__all__ = ["SHAPES", "Defect", "Prompt", "to_prompt"]

# An image or a sound that a text alone refers to: its answer would be a guess.
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_Ids = list[Annotated[int, msgspec.Meta(ge=0)]]
# Shapes whose value is a list and nothing else.
_LISTS = ("input_ids", "messages", "conversations", "turns", "history")


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask: `messages` and, after each answer, the next of `followups`; or ready `input_ids`.

    `shape` is the name that the row was read by, `reference` the answer that the file has, if any.
    """

    messages: list[Message] = []
    followups: list[list[Message]] = []
    input_ids: list[int] = []
    tools: list[Any] = []
    reference: str = ""
    shape: str = ""


def to_prompt(value: Any, fields: dict[str, Any] | None = None, history: History = "turns") -> Prompt | Defect:
    """The prompt of a row, or why it has none; `fields` and `history` are the dataset's."""
    try:
        if not is_object(value):
            raise Unusable("not_an_object", f"the row is {kind(value)}; a row is a JSON object")
        row = mapped(value, fields) if fields else value
        held = [name for name in SHAPES if row.get(name) is not None]
        # Tables and column formats fill what a row lacks; that counts only where there is nothing else.
        full = [name for name in held if row[name] != [] and not (row[name] == "" and name in _LISTS)]
        for name in full or held:
            prompt = SHAPES[name](row, history == "keep")
            reference = prompt.reference
            if fields and ("reference" in fields or "answer" in fields):
                reference = _reference(row["reference"])
            return msgspec.structs.replace(prompt, shape=name, reference=reference)
        for name in SOURCES:
            if fields and name in fields:
                raise Unusable("no_prompt", f"the row has nothing at {fields[name]}, its prompt{_has(value)}")
        raise Unusable("no_prompt", f"the row has none of the keys {', '.join(SHAPES)}{_has(value)}")
    except Unusable as unusable:
        return unusable.defect


def from_input_ids(row: dict[str, Any], keep: bool) -> Prompt:
    """Token ids, sent as they are; a list that holds one list is that list."""
    ids: Any = unspelled(row["input_ids"])
    if is_list(ids) and len(ids) == 1 and is_list(ids[0]):
        ids = ids[0]
    if not is_list(ids):
        raise Unusable("bad_ids", f"input_ids is {kind(ids)}, not a list of integers")
    if not ids:
        raise Unusable("empty_prompt", "input_ids is empty")
    try:
        # One by one in Python would cost more than all else that is done to such a row.
        msgspec.convert(ids, _Ids)
    except msgspec.ValidationError:
        _refuse_id(ids)
    return Prompt(input_ids=ids)


def _refuse_id(ids: list[Any]) -> None:
    for at, held in enumerate(ids):
        if type(held) is not int:
            raise Unusable("bad_ids", f"input_ids[{at}] is {kind(held)}, not an integer")
        if held < 0:
            raise Unusable("bad_ids", f"input_ids[{at}] is {held}; no token id is negative")


def from_messages(row: dict[str, Any], keep: bool) -> Prompt:
    """OpenAI's shape: role and content."""
    return _conversation(row, "messages", keep)


def from_conversations(row: dict[str, Any], keep: bool) -> Prompt:
    """ShareGPT's shape: from and value, or role and content under its name."""
    return _conversation(row, "conversations", keep)


def from_turns(row: dict[str, Any], keep: bool) -> Prompt:
    """User texts, one after another, as MT-Bench has them; messages without a role are the user's."""
    turns: list[list[Message]] = []
    for at, turn in enumerate(_list(row, "turns")):
        if is_object(turn) and ("role" in turn or "from" in turn):
            return _conversation(row, "turns", keep)
        content: Any = turn.get("content") if is_object(turn) else turn
        turns.append([_user(text_of(content, f"turn {at + 1}"))])
    return _prompt(row, turns)


def from_prompt(row: dict[str, Any], keep: bool) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "prompt", keep)


def from_question(row: dict[str, Any], keep: bool) -> Prompt:
    """A text, a list of messages, or (BFCL) a list of turns, each a list of messages."""
    question: Any = row["question"]
    if isinstance(question, str):
        return _loose(row, "question", keep)
    if not (is_list(question) and question and is_list(question[0])):
        return _loose(row, "question", keep)
    turns: list[list[Message]] = []
    for at, items in enumerate(question):
        if not is_list(items):
            raise Unusable("wrong_type", f"turn {at + 1} of question is {kind(items)}, not a list of messages")
        inner, _ = split(items)
        if len(inner) > 1 or any(message["role"] in ("tool", "assistant") for message in inner[0]):
            # Answers or results stand in it: then it is one conversation, cut by its own rules.
            whole = [item for held in question if is_list(held) for item in held]
            return _prompt(row, *split(whole, keep=keep))
        turns.extend(inner)
    return _prompt(row, turns)


def from_query(row: dict[str, Any], keep: bool) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "query", keep)


def from_problem(row: dict[str, Any], keep: bool) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "problem", keep)


def from_problem_statement(row: dict[str, Any], keep: bool) -> Prompt:
    """A repository's issue, as SWE-bench has it."""
    return _loose(row, "problem_statement", keep)


def from_instruction(row: dict[str, Any], keep: bool) -> Prompt:
    """Alpaca's shape: the input, if any, a blank line below; earlier questions in `history` come first.

    Their answers come with them only where the history is kept. Self-Instruct keeps the input in the first
    of its `instances`.
    """
    instruction = text_of(row["instruction"], "instruction")
    given: Any = row.get("input")
    instances = unspelled(row.get("instances"))
    if given is None and is_list(instances) and instances and is_object(instances[0]):
        given = instances[0].get("input")
    extra = "" if given is None else text_of(given, "input")
    asked = f"{instruction}\n\n{extra}" if extra.strip() and instruction.strip() else instruction or extra
    earlier: list[list[Message]] = []
    if is_list(history := unspelled(row.get("history"))):
        for at, pair in enumerate(history):
            if not (is_list(pair) and pair):
                raise Unusable("wrong_type", f"history {at + 1} is {kind(pair)}, not a question and its answer")
            earlier.append([_user(text_of(pair[0], f"history {at + 1}"))])
            if keep and len(pair) > 1:
                earlier[-1].append({"role": "assistant", "content": text_of(pair[1], f"answer {at + 1} of history")})
    if keep and earlier:
        return _prompt(row, [[message for turn in earlier for message in turn] + [_user(asked)]])
    return _prompt(row, [*earlier, [_user(asked)]])


def from_text(row: dict[str, Any], keep: bool) -> Prompt:
    """A text, or a list of messages."""
    return _loose(row, "text", keep)


def from_input(row: dict[str, Any], keep: bool) -> Prompt:
    """A text, or a list of messages, where no better name stands beside it."""
    return _loose(row, "input", keep)


def from_history(row: dict[str, Any], keep: bool) -> Prompt:
    """An agent's trajectory: one turn, because the user's side answers what the file's agent did."""
    return _prompt(row, *split(_list(row, "history"), keep=True))


SHAPES: dict[str, Callable[[dict[str, Any], bool], Prompt]] = {
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


def _loose(row: dict[str, Any], name: str, keep: bool) -> Prompt:
    value: Any = row[name]
    if isinstance(value, str):
        held = unspelled(value)
        if not is_conversation(held):
            return _prompt(row, [[_user(value)]])
        value = held
    if not is_list(value):
        raise Unusable("wrong_type", f"{name} is {kind(value)}; it must be text or a list of messages")
    return _prompt(row, *split(value, keep=keep))


def _conversation(row: dict[str, Any], name: str, keep: bool) -> Prompt:
    return _prompt(row, *split(_list(row, name), keep=keep))


def _prompt(row: dict[str, Any], turns: list[list[Message]], reference: str = "") -> Prompt:
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
        reference=reference,
    )


def _reference(value: Any) -> str:
    """An answer as text: what is no text is given as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _list(row: dict[str, Any], name: str) -> list[Any]:
    value = unspelled(row[name])
    if not is_list(value):
        raise Unusable("wrong_type", f"{name} is {kind(value)}, not a list of messages")
    return value


def _has(value: dict[str, Any]) -> str:
    return f"; it has {', '.join(str(name)[:40] for name in list(value)[:8])}" if value else "; it is empty"
