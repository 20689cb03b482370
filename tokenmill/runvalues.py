"""Which values a run file may hold: what no key can take, and the limits of those that are numbers.

TOML knows nan, inf and whole numbers of any size. None of them is ever meant, and all of them end
somewhere far away from the run file: in a timer, in Redis, in JSON.
"""

import datetime
import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

# Redis' Lua counts in doubles: beyond this a sum of tokens is no longer exact.
LARGEST_WHOLE = 2**53
LONGEST_TEXT = 1_000
SHOWN = 60
LONGEST_DATASET_NAME = 100
# What SGLang and its kernels keep in 32 bits.
LONGEST_ANSWER = 2**31 - 1
LONGEST_HOURS = 87_600
LONGEST_MS = 24 * 3600 * 1000
_WANTED: Mapping[Any, str] = {
    int: "a whole number (without quotes, point or exponent)",
    float: "a number",
    bool: "true or false",
    str: "a text in quotes",
    list[str]: "a list of texts",
    dict[str, Any]: "a table",
}


def unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> str:
    """A sentence on the first key that nobody reads, which names the nearest one; nothing where all are known."""
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(names))}"
            return f"unknown key {key} in {where}: {hint}"
    return ""


def wanted(hint: Any) -> str:
    """What a key of this type may hold, in words; nothing where the type is none of a few simple ones."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [_WANTED[part] for part in parts if part in _WANTED]
    words += [f'"{word}"' for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def short(value: object) -> str:
    """A value as it may stand in a sentence; what looks like a URL with a password in it may not."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    if "@" in text:
        return "a value that may hold a password"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def strange(value: Any, place: str = "") -> str:
    """A sentence on the first value below that no key can take; nothing where all are good.

    Args:
        place: where the value stands, its keys joined by dots.
    """
    if isinstance(value, Mapping):
        for key, held in cast(Mapping[str, Any], value).items():
            if found := _strange_text(key, f"a key in {place or 'the file'}") or strange(held, f"{place}.{key}"):
                return found
        return ""
    if isinstance(value, list):
        entries = enumerate(cast(list[Any], value), 1)
        return next((found for number, held in entries if (found := strange(held, f"{place}.{number}"))), "")
    return _strange_scalar(value, place.removeprefix("."))


def _strange_scalar(value: Any, place: str) -> str:
    if isinstance(value, str):
        return _strange_text(value, place)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value}: give a finite number"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        shown = value if abs(value) < 10**30 else "a number of many digits"
        return f"{place} is {shown}: a whole number can be at most {LARGEST_WHOLE:,} (2^53)"
    if isinstance(value, datetime.date | datetime.time):
        return f"{place} is a date or time: write it in quotes, as a text"
    return ""


def _strange_text(value: str, place: str) -> str:
    if "\0" in value:
        return f"{place} has a NUL character in it: take it out"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{place} is no text in UTF-8: write it so"
    return ""


def bad_words(named: Mapping[str, str]) -> str:
    """A sentence on the first of these names and paths that can be none; nothing where all are good."""
    for place, value in named.items():
        if not value.strip():
            return f"{place} is empty: give one, or leave the key out"
        if not value.isprintable():
            return f"{place} has unprintable characters in it ({value!r}): take them out"
        if len(value) > LONGEST_TEXT:
            return f"{place} has {len(value):,} characters: at most {LONGEST_TEXT:,} are taken"
    return ""


def out_of_range(limits: Mapping[str, "tuple[float | None, float, float]"]) -> str:
    """A sentence on the first value that is outside its limits; nothing where all are within.

    Args:
        limits: for each place the value (None: not given), the least and the most that it can be; a least of 0
            must be exceeded.
    """
    for place, (value, least, most) in limits.items():
        if value is None:
            continue
        if value < least or (least == 0 and value == 0):
            return f"{place} is {value}: it must be " + ("above 0" if least == 0 else f"{least:,} or more")
        if value > most:
            return f"{place} is {value}: it must be at most {most:,}"
    return ""


def bad_output(path: Path) -> str:
    """Why no folder can ever be made there, as a sentence; nothing where one can, or where only a right is missing."""
    try:
        for place in (path, *path.parents):
            if place.exists():
                if place.is_dir():
                    return ""
                what = "a file" if place.is_file() else "no folder"
                return f"output in [run] is {path}, but {place} is {what}: give the path of a folder"
    except PermissionError:
        return ""
    except OSError as error:
        return f"output in [run] cannot be a folder ({error.strerror}): give another path"
    return ""
