"""A prompt's own id: the one thing that ties a row to its completion across runs, machines and orders.

It comes from the row alone (its own id, else its content), never from its place, so that shuffling,
sorting or saving the file in another format pays for nothing twice. The place decides only between rows
that say the same: the second of them in file order is `<id>~2`.
"""

import hashlib
import json
from array import array
from typing import Any

from producer.defects import is_list, is_object

# In this order; the first that holds a non-empty string or an integer is the row's own id.
OWN_IDS = ("id", "uuid", "task_id", "question_id", "prompt_id", "conversation_id", "instance_id", "uid", "key")
# A longer one is a text that somebody keeps under such a name, not an id to put into every record.
LONGEST_OWN_ID = 512


def prompt_id(value: Any) -> str:
    """The id of a row's value: its own, else `h-` and a hash of its content."""
    if is_object(value):
        for name in OWN_IDS:
            own = value.get(name)
            if isinstance(own, str) and 0 < len(own) <= LONGEST_OWN_ID:
                return own
            if isinstance(own, int) and not isinstance(own, bool):
                return str(own)
    return f"h-{_digest(canonical(value))}"


def damaged_id(raw: bytes) -> str:
    """The id of a row that is not JSON: `bad-` and a hash of its bytes."""
    return f"bad-{_digest(raw)}"


def with_ordinal(own: str, ordinal: int) -> str:
    """`own` as the ordinal-th row of that id carries it."""
    return own if ordinal < 2 else f"{own}~{ordinal}"


def canonical(value: Any) -> bytes:
    """One spelling for all the ways to save the same row.

    Keys are sorted, and keys without a value are left out: column formats fill every row with all keys.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if "null" in text:
        text = json.dumps(_without_nulls(value), sort_keys=True, separators=(",", ":"))
    return text.encode("ascii")


def _without_nulls(value: Any) -> Any:
    if is_object(value):
        return {name: _without_nulls(held) for name, held in value.items() if held is not None}
    if is_list(value):
        return [_without_nulls(held) for held in value]
    return value


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


class Ordinals:
    """Numbers the rows that share an id, in file order, in about 16 bytes a row.

    It remembers 64-bit hashes, not ids. Two ids with one hash (one chance in 300,000 among ten million
    rows) cost nothing but a needless `~2`, the same in every run.
    """

    def __init__(self) -> None:
        self._seen = _HashSet()
        self._last: dict[int, int] = {}

    def next(self, own: str) -> int:
        """1 for an id met for the first time, else the number that makes it unlike any id met so far."""
        hashed = _hash64(own)
        if self._seen.add(hashed):
            return 1
        ordinal = self._last.get(hashed, 1) + 1
        while not self._seen.add(_hash64(f"{own}~{ordinal}")):
            ordinal += 1
        self._last[hashed] = ordinal
        return ordinal


def _hash64(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


class _HashSet:
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
