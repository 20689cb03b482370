"""A dataset's `fields`: where in a row the prompt stands, said by the user instead of guessed from names.

The row itself stays as it was read (rejected rows and their places are shown as the file has them); what
is read from it is a view in which the mapped names stand for the user's.
"""

import ast
import difflib
import json
import warnings
from typing import Any

from producer.defects import is_list, is_object

# Where a prompt may stand; `fields` names at most one of them.
SOURCES = ("prompt", "messages", "turns", "instruction", "input_ids")
NAMES = (*SOURCES, "input", "id", "system", "tools", "reference", "answer")
# What `fields` says of a table's file rather than of a row.
TABLE_NAMES = ("header", "columns")
# What a row is read by under other names; where `fields` speaks, these say nothing.
GUESSED = ("conversations", "question", "query", "problem", "problem_statement", "text", "history", "instances")
# A longer text is a text, whatever it begins with.
LONGEST_SPELLED = 16 << 20
# What is deeper is a text too. Where the parsers give up differs between Python's releases, and is deeper.
DEEPEST_SPELLED = 500


def mistake(fields: dict[str, Any]) -> str:
    """What is wrong with a `fields` table, as the end of a sentence; nothing if it is good."""
    known = (*NAMES, *TABLE_NAMES)
    for name, value in fields.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            return f"unknown key {name}: " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")
        if name == "header":
            good, wanted = isinstance(value, bool), "true or false"
        elif name == "columns":
            good = is_list(value) and bool(value) and all(isinstance(held, str) for held in value)
            wanted = 'a list of names, such as ["question", "answer"]'
        else:
            good, wanted = isinstance(value, str) and value != "", 'the row\'s own name for it, such as "question_text"'
        if not good:
            return f"{name} must be {wanted}"
    named = [name for name in SOURCES if name in fields]
    if len(named) > 1:
        return f"{named[0]} and {named[1]} are both named: keep one of them"
    return ""


def mapped(value: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The row under our names. A path that leads nowhere gives None; what is not mapped is read as ever."""
    named = {name: path for name, path in fields.items() if name in NAMES}
    if not named:
        return value
    seen = dict(value)
    if any(name in named for name in SOURCES):
        for name in (*SOURCES, *GUESSED, "input"):
            seen.pop(name, None)
    for name, path in named.items():
        seen["reference" if name == "answer" else name] = at_path(value, path)
    return seen


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path: keys of objects and indexes of lists. A name with dots in it goes first."""
    if is_object(value) and path in value:
        return value[path]
    name, dot, rest = path.partition(".")
    held: Any = None
    value = unspelled(value)
    if is_object(value):
        held = value.get(name)
    elif is_list(value) and name.lstrip("-").isdecimal() and -len(value) <= int(name) < len(value):
        held = value[int(name)]
    return at_path(held, rest) if dot else held


def unspelled(value: Any) -> Any:
    """A list or object that a table's cell holds as text, in JSON or as Python writes it; else the value itself."""
    if not isinstance(value, str) or len(value) > LONGEST_SPELLED:
        return value
    text = value.strip()
    if (text[:1], text[-1:]) not in (("[", "]"), ("{", "}")):
        return value
    try:
        spelled = json.loads(text, parse_constant=_refuse)
        return value if _is_deep(spelled) else spelled
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held: Any = ast.literal_eval(text)
        if _is_deep(held):
            return value
        # Only what JSON can hold: no sets, no bytes, no NaN, and names that are texts.
        return json.loads(json.dumps(held, allow_nan=False)) if is_list(held) or is_object(held) else value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value


def _is_deep(value: Any) -> bool:
    """Whether lists and objects lie in one another deeper than `DEEPEST_SPELLED`."""
    level = [value]
    for _ in range(DEEPEST_SPELLED):
        lists = [child for held in level if is_list(held) for child in held]
        level = lists + [child for held in level if is_object(held) for child in held.values()]
        if not level:
            return False
    return True


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def is_conversation(value: Any) -> bool:
    """A list of objects, each with a role and what was said."""
    return (
        is_list(value)
        and bool(value)
        and all(is_object(held) and ("role" in held or "from" in held) for held in value)
        and any("content" in held or "value" in held for held in value)
    )
