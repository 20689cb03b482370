"""Values in Redis that no part of Tokenmill writes: read in one place, refused with the key and the mend."""

import re
from typing import TypeVar

import msgspec

from budget.connections import RedisDamaged

T = TypeVar("T")

_WHOLE = re.compile(rb"-?[0-9]{1,16}")


def damaged(place: str, value: object) -> RedisDamaged:
    """The refusal of a value; `place` names its key, and its field where it has one."""
    shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return RedisDamaged(f"Redis holds something else in {place} ({shown!r}) than Tokenmill writes there")


def whole(value: bytes | None, key: str, field: str = "") -> int:
    """A whole number; 0 where there is none.

    Raises:
        RedisDamaged: it is something else.
    """
    if value is None:
        return 0
    if not _WHOLE.fullmatch(value):
        raise damaged(f"field {field} of {key}" if field else key, value)
    return int(value)


def optional(value: bytes | None, key: str, field: str = "") -> int | None:
    """A whole number, or None where there is none or the word none (a cap).

    Raises:
        RedisDamaged: it is something else.
    """
    return None if value in (None, b"none") else whole(value, key, field)


def shown_number(value: bytes | None) -> float:
    """A number that is only looked at; 0 where it is none."""
    try:
        number = float(value or 0)
    except ValueError:
        return 0.0
    return number if abs(number) < 1e15 else 0.0


def decoded(text: str, kind: type[T], key: str, field: str) -> T:
    """A value that is JSON.

    Raises:
        RedisDamaged: it is not, or is something else than a `kind`.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise damaged(f"field {field} of {key}", text) from error
