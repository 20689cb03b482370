"""sampling_params as SGLang checks them: unknown names and wrong types first, then the ranges.

The words are SGLang's own: a client that shows them to its user should be tested on the real ones.
"""

import json
import math
import re
from typing import Any, cast

import msgspec

from workers.simulator.errors import contract_error, request_error

_KINDS: dict[str, str] = {
    "max_new_tokens": "i64", "stop": "strings", "stop_token_ids": "ids", "stop_regex": "strings",
    "temperature": "f64", "top_p": "f64", "top_k": "i64", "min_p": "f64", "frequency_penalty": "f64",
    "presence_penalty": "f64", "repetition_penalty": "f64", "min_new_tokens": "i64", "n": "i64",
    "json_schema": "string", "regex": "string", "ebnf": "string", "structural_tag": "string",
    "ignore_eos": "bool", "skip_special_tokens": "bool", "spaces_between_special_tokens": "bool",
    "no_stop_trim": "bool", "stream_interval": "i64", "logit_bias": "map", "sampling_seed": "i64",
    "custom_params": "any", "beam_width": "i64", "watermark": "any", "choice": "any",
}  # fmt: skip
_EXPECTED = {"bool": "a boolean", "string": "a string", "map": "a map"}


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters that change a simulated answer, checked; the others are checked and ignored."""

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    n: int = 1
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: dict[int, float] | None = None


def describe(value: Any) -> str:
    """A value as the server's decoder names it in its errors."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f"string {json.dumps(value)}"
    return "sequence" if isinstance(value, list) else "map"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _check_type(kind: str, value: Any) -> None:
    if value is None or kind == "any":
        return
    if kind == "i64":
        good, expected = _is_int(value), "i64"
    elif kind == "f64":
        good, expected = isinstance(value, int | float) and not isinstance(value, bool), "f64"
    elif kind == "ids":
        if not isinstance(value, list):
            raise contract_error(f"invalid type: {describe(value)}, expected a sequence")
        for item in cast(list[Any], value):
            _check_type("i64", item)
        return
    elif kind == "strings":
        items = cast(list[Any], value) if isinstance(value, list) else [value]
        good = all(isinstance(item, str) for item in items)
        expected = "a value or an array of values for StringOrList"
    else:
        good = isinstance(value, {"bool": bool, "string": str, "map": dict}[kind])
        expected = _EXPECTED[kind]
    if not good:
        raise contract_error(f"invalid type: {describe(value)}, expected {expected}")


def _check_range(params: dict[str, Any], vocab_size: int) -> None:
    def given(name: str) -> Any:
        return params.get(name)

    def refuse(name: str, rule: str) -> None:
        raise request_error(f"{name} must be {rule}, got {given(name)}.")

    if (value := given("temperature")) is not None and not (value >= 0 and math.isfinite(value)):
        refuse("temperature", "a non-negative finite number")
    if (value := given("top_p")) is not None and not 0 < value <= 1:
        refuse("top_p", "in (0, 1]")
    if (value := given("min_p")) is not None and not 0 <= value <= 1:
        refuse("min_p", "in [0, 1]")
    for name in ("frequency_penalty", "presence_penalty"):
        if (value := given(name)) is not None and not -2 <= value <= 2:
            refuse(name, "in [-2, 2]")
    if (value := given("repetition_penalty")) is not None and not 0 < value <= 2:
        refuse("repetition_penalty", "in (0, 2] (1.0 = no penalty)")
    limit = params.get("max_new_tokens", 128)
    if limit is not None and limit < 0:
        refuse("max_new_tokens", "at least 0")
    least = given("min_new_tokens")
    if least is not None and (least < 0 or (limit is not None and least > limit)):
        refuse("min_new_tokens", f"in [0, max_new_tokens({limit})]" if limit is not None else "at least 0")
    if len(stops := _strings(given("stop"))) > 32:
        raise request_error(f"stop must have at most 32 strings, got {len(stops)}.")
    for key in cast(dict[str, Any], given("logit_bias") or {}):
        try:
            token = int(key)
        except ValueError as error:
            raise request_error(str(error)) from error
        if not 0 <= token < vocab_size:
            raise request_error(f"logit_bias must has keys in [0, {vocab_size - 1}], got {token}.")
    _check_grammar(params)


def _check_grammar(params: dict[str, Any]) -> None:
    grammars = [name for name in ("json_schema", "regex", "ebnf", "structural_tag") if params.get(name) is not None]
    if len(grammars) > 1:
        raise request_error("Only one of json_schema, regex, ebnf, or structural_tag can be set.")
    try:
        if "json_schema" in grammars:
            json.loads(params["json_schema"])
        if "regex" in grammars:
            re.compile(params["regex"])
        for expression in _strings(params.get("stop_regex")):
            re.compile(expression)
    except (ValueError, re.error) as error:
        kind = "json" if "json_schema" in grammars else "regex"
        raise request_error(f"Failed to compile {kind} grammar: {error}") from error


def _strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(cast(list[str], value))


def parse_sampling(params: dict[str, Any], vocab_size: int) -> Sampling:
    """One prompt's sampling parameters.

    Raises:
        ApiError: a name, type or range is wrong.
    """
    for name, value in params.items():
        kind = _KINDS.get(name)
        if kind is None:
            known = ", ".join(f"`{known}`" for known in _KINDS)
            raise contract_error(f"unknown field `{name}`, expected one of {known}")
        _check_type(kind, value)
    for value in cast(dict[str, Any], params.get("logit_bias") or {}).values():
        _check_type("f64", value)
    _check_range(params, vocab_size)
    bias = cast(dict[str, Any], params.get("logit_bias") or {})
    skip: Any = params.get("skip_special_tokens")
    return Sampling(
        max_new_tokens=params.get("max_new_tokens", 128),
        min_new_tokens=params.get("min_new_tokens") or 0,
        n=max(1, params.get("n") or 1),
        ignore_eos=bool(params.get("ignore_eos")),
        skip_special_tokens=True if skip is None else bool(skip),
        no_stop_trim=bool(params.get("no_stop_trim")),
        sampling_seed=params.get("sampling_seed"),
        stop=_strings(params.get("stop")),
        stop_regex=_strings(params.get("stop_regex")),
        stop_token_ids=tuple(cast(list[int], params.get("stop_token_ids") or [])),
        logit_bias={int(key): float(value) for key, value in bias.items()},
    )
