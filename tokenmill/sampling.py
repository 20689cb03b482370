"""The sampling parameters of a run file, checked as SGLang checks them before anything is queued.

The names and ranges are those of the simulated server, which are held to a real one's answers: what a server
would refuse for every prompt is told here, once.
"""

from collections.abc import Mapping
from typing import Any, cast

from tokenmill import runvalues
from workers.simulator.errors import ApiError
from workers.simulator.sampling import parse_sampling

DEFAULT_MAX_NEW_TOKENS = 16_384
# SGLang's own sampling parameters (0.5.23); any other name is answered with HTTP 400.
KEYS = frozenset(
    {"max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty"}
    | {"presence_penalty", "repetition_penalty", "stop", "stop_token_ids", "stop_regex", "ignore_eos"}
    | {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "json_schema", "regex", "ebnf"}
    | {"structural_tag", "logit_bias", "sampling_seed", "custom_params", "stream_interval"}
)
OTHER_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed", "n": "nothing: one answer per prompt"}
# No model has as many ids; which of them there are, is known only with the tokenizer.
ANY_VOCABULARY = 2**31


def mistake(table: Mapping[str, Any], where: str) -> str:
    """A sentence on the first parameter that SGLang would refuse; nothing where it takes them all."""
    for key in table:
        if key in OTHER_NAMES:
            return f"unknown key {key} in {where}: SGLang's name for it is {OTHER_NAMES[key]}"
    if found := runvalues.unknown(table, KEYS, where):
        return found
    for key in ("max_new_tokens", "min_new_tokens"):
        number = table.get(key, 1)
        if not isinstance(number, int) or isinstance(number, bool) or number < (key == "max_new_tokens"):
            return f"{key} in {where} must be a whole number above 0, not {number!r}"
        if found := runvalues.out_of_range({f"{key} in {where}": (number, -1, runvalues.LONGEST_ANSWER)}):
            return found
    for key, value in table.items():
        if (said := _refusal({key: value}, types_only=True)) is not None:
            return f"{key} in {where}: {said}"
    said = _refusal({"max_new_tokens": runvalues.LONGEST_ANSWER, **table})
    return "" if said is None else f"{where}: {said}"


def _refusal(params: dict[str, Any], *, types_only: bool = False) -> str | None:
    """What SGLang says to such parameters, None where it takes them."""
    try:
        parse_sampling(params, ANY_VOCABULARY)
    except ApiError as error:
        said: Any = error.body["error"]
        if isinstance(said, str):  # a wrong type; a wrong range has its own table
            return said
        return None if types_only else cast(str, said["message"]).rstrip(".")
    return None
