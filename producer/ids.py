"""A prompt's own id: the one thing that ties a row to its completion across runs, machines and orders.

It comes from the row alone (its own id, else its content), never from its place, so that shuffling,
sorting or saving the file in another format pays for nothing twice. The place decides only between rows
that say the same: the second of them in file order is `<id>~2`.
"""

import hashlib
import json
import re
from array import array
from typing import Any

from producer.defects import is_list, is_object
from producer.fields import at_path, unspelled

# In this order; the first that holds a non-empty string or an integer is the row's own id.
OWN_IDS = ("id", "uuid", "task_id", "question_id", "prompt_id", "conversation_id", "instance_id", "uid", "key")
# A number with a fraction or an exponent, as every writer of tables spells it.
_FLOAT = re.compile(r"-?\d{1,400}(?=[.eE])(?:\.\d{1,400})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
# A longer one is a text that somebody keeps under such a name, not an id to put into every record.
LONGEST_OWN_ID = 512


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def prompt_id(value: Any, path: str = "") -> str:
    """The id of a row's value: its own (at `path`, if the dataset's `fields` names one), else its content's."""
    return own_id(value, path)[1] or f"h-{_digest(canonical(value))}"


def own_id(value: Any, path: str = "") -> tuple[str, str]:
    """Where a row's own id stands and what it is; two empty texts if it has none."""
    if path:
        own = _id_text(at_path(value, path))
        return (path, own) if own else ("", "")
    if is_object(value):
        for name in OWN_IDS:
            if name in value and (own := _id_text(value[name])):
                return name, own
    return "", ""


def _id_text(own: Any) -> str:
    if isinstance(own, str):
        return own if len(own) <= LONGEST_OWN_ID else ""
    if isinstance(own, float) and own.is_integer():
        own = int(own)  # a column of integers in which one is missing
    return str(own) if isinstance(own, int) and not isinstance(own, bool) else ""


def damaged_id(raw: bytes) -> str:
    """The id of a row that is not JSON: `bad-` and a hash of its bytes."""
    return f"bad-{_digest(raw)}"


def with_ordinal(own: str, ordinal: int) -> str:
    """`own` as the ordinal-th row of that id carries it."""
    return own if ordinal < 2 else f"{own}~{ordinal}"


def canonical(value: Any) -> bytes:
    """One spelling for all the ways to save the same row.

    Keys are sorted, and those without a value are left out: column formats fill every row with all keys.
    A cell counts by what it spells, because a table knows nothing but texts: 1 is "1" and a list is its
    JSON.
    """
    if is_object(value):
        cells = {name: _cell(held) for name, held in value.items()}
        value = {name: held for name, held in cells.items() if not _is_nothing(held)}
    else:
        value = _without_nulls(value)
    return _encode(value).encode("ascii")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        held = unspelled(value)
        if held is value:
            if value.lower() in ("true", "false"):
                return value.lower()
            return str(_whole(float(value))) if _FLOAT.fullmatch(value) else value
        value = held
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(_whole(value))
    return _without_nulls(value)


def _is_nothing(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _whole(number: float) -> float:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _without_nulls(value: Any) -> Any:
    if is_object(value):
        return {name: _without_nulls(held) for name, held in value.items() if held is not None}
    if is_list(value):
        return [_without_nulls(held) for held in value]
    return _whole(value) if isinstance(value, float) else value


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


class Ordinals:
    """Numbers the rows that share an id, in file order, in about 16 bytes a row.

    It remembers 64-bit hashes, not ids. Two ids with one hash (one chance in 300,000 among ten million
    rows) cost nothing but a needless `~2`, the same in every run.
    """

    def __init__(self) -> None:
        self._seen = HashSet()
        self._last: dict[int, int] = {}

    def next(self, own: str) -> int:
        """1 for an id met for the first time, else the number that makes it unlike any id met so far."""
        hashed = hash64(own)
        if self._seen.add(hashed):
            return 1
        ordinal = self._last.get(hashed, 1) + 1
        while not self._seen.add(hash64(f"{own}~{ordinal}")):
            ordinal += 1
        self._last[hashed] = ordinal
        return ordinal


def hash64(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


class HashSet:
    """Open addressing over an array: a Python set of integers takes six times the memory."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._used = 0

    def add(self, hashed: int) -> bool:
        """False if it was there."""
        if not self._put(self._slots, hashed):
            return False
        self._used += 1
        if self._used * 5 > len(self._slots) * 3:
            larger = array("Q", bytes(8 * 2 * len(self._slots)))
            for held in self._slots:
                if held:
                    self._put(larger, held)
            self._slots = larger
        return True

    @staticmethod
    def _put(slots: "array[int]", hashed: int) -> bool:
        mask = len(slots) - 1
        slot = hashed & mask
        while held := slots[slot]:
            if held == hashed:
                return False
            slot = (slot + 1) & mask
        slots[slot] = hashed
        return True
