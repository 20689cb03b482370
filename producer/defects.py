"""Why one row cannot become a job: a value that ends as a line of rejected.jsonl.

Every row of a prompt file becomes exactly one prompt or one defect, so that the counts of a dataset add
up whatever its files hold. Rows that are not JSON are judged here, where bytes become values.
"""

import json
from typing import Any, NoReturn, TypeGuard

import msgspec

BOM = b"\xef\xbb\xbf"


class Defect(msgspec.Struct, frozen=True):
    """`reason` is a stable slug to count and to retry by; `detail` says what was met, for this row."""

    reason: str
    detail: str


class Unusable(Exception):
    """A `Defect` on its way out of nested parsing; never leaves the package."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.defect = Defect(reason, detail)


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def kind(value: object) -> str:
    """What a value is, in the words of a sentence about JSON."""
    kinds = ((bool, "a boolean"), (str, "a text"), ((int, float), "a number"), (list, "a list"), (dict, "an object"))
    return next((name for held, name in kinds if isinstance(value, held)), "null")


def decode(raw: bytes) -> Any:
    """The value of one row's bytes, or the `Defect` that they are not JSON.

    msgspec is three times faster than the standard library and agrees with it on all that both accept;
    what it refuses gets a second look, because escaped lone surrogates are good JSON for the tools that
    write such files. NaN and infinities are refused: no JSON line that we write may hold them.
    """
    raw = raw.removeprefix(BOM)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except Unusable as unusable:
        return unusable.defect
    except UnicodeDecodeError as error:
        return Defect("malformed", f"byte {error.start + 1} of the row is not UTF-8")
    except RecursionError:
        return Defect("malformed", "the row is nested too deeply")
    except ValueError as error:
        return Defect("malformed", f"the row is not JSON: {error}")


def _refuse_constant(name: str) -> NoReturn:
    raise Unusable("nan", f"the row holds {name}, which is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Unusable("nan", f"the row holds {text[:40]}, which is too large for a number")
    return number
