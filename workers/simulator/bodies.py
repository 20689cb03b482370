"""Bodies of POST requests: decoding, and the checks of /generate in the order in which SGLang makes them.

Types of the envelope come first (FastAPI), then the sampling contract, then what the tokenizer process
finds; the order decides which of several faults a client is told.
"""

import re
import uuid
from array import array
from typing import Any, cast

import msgspec

from workers.simulator.answers import digest
from workers.simulator.errors import ApiError, Poison, contract_error, internal_error, request_error, validation_error
from workers.simulator.sampling import Sampling, describe, parse_sampling
from workers.simulator.vocabulary import Vocabulary

# The scheduler keeps this many positions of the context for itself.
RESERVED_POSITIONS = 6
_GENERATE = ("POST /generate", "generate_request")


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One sample to generate."""

    rid: str
    input_ids: list[int]
    digest: bytes
    sampling: Sampling
    index: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One call of /generate. `as_list`: it is answered with a JSON array."""

    prompts: list[Prompt]
    as_list: bool
    stream: bool
    return_prompt_token_ids: bool


def decode_body(raw: bytes, content_type: str, route: str, function: str, class_name: str) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        ApiError: there is none.
    """
    if not raw:
        raise validation_error(
            route, function, {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        )
    body: Any = raw
    if content_type.endswith("json"):
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            at = re.search(r"byte (\d+)", str(error))
            detail = {
                "type": "json_invalid", "loc": ("body", int(at.group(1)) if at else len(raw)),
                "msg": "JSON decode error", "input": {}, "ctx": {"error": str(error)},
            }  # fmt: skip
            raise validation_error(route, function, detail) from error
    if not isinstance(body, dict):
        detail = {
            "type": "dataclass_type", "loc": ("body",),
            "msg": f"Input should be a dictionary or an instance of {class_name}", "input": body,
            "ctx": {"class_name": class_name},
        }  # fmt: skip
        raise validation_error(route, function, detail)
    return cast(dict[str, Any], body)


def _union_error(field: str, value: Any) -> ApiError:
    return validation_error(
        *_GENERATE,
        {"type": "string_type", "loc": ("body", field, "str"), "msg": "Input should be a valid string", "input": value},
        {
            "type": "list_type",
            "loc": ("body", field, "list[str]"),
            "msg": "Input should be a valid list",
            "input": value,
        },
    )


def _ids_error(value: Any, message: str) -> ApiError:
    detail = {
        "type": "value_error", "loc": ("body", "input_ids"), "msg": f"Value error, {message}", "input": value,
        "ctx": {"error": ValueError(message)},
    }  # fmt: skip
    return validation_error(*_GENERATE, detail)


def _check_ids(ids: list[Any], whole: Any) -> None:
    try:
        array("q", ids)
    except OverflowError as error:
        # The real server's JSON parser makes a float of what does not fit 64 bits.
        shown = [item if abs(item) < 2**63 else float(item) for item in whole] if whole is ids else whole
        raise _ids_error(shown, "elements must be int or list; got float") from error
    except TypeError as error:
        raise _ids_error(whole, f"contains non-int64 element: {error}") from error


def _read_ids(value: Any) -> tuple[list[list[int]], bool]:
    """The prompts in `input_ids`, and whether they came as a list of lists."""
    if not isinstance(value, list):
        raise _ids_error(value, f"must be list or null; got {type(value).__name__}")
    items = cast(list[Any], value)
    if not items:
        raise request_error("input_ids cannot be empty.")
    first = items[0]
    if isinstance(first, bool):
        raise contract_error(f"invalid type: {describe(first)}, expected a sequence")
    if isinstance(first, list):
        for item in items:
            if not isinstance(item, list):
                raise _ids_error(value, f"elements must be int or list; got {type(item).__name__}")
            _check_ids(cast(list[Any], item), value)
        return cast(list[list[int]], items), True
    if not isinstance(first, int):
        raise _ids_error(value, f"elements must be int or list; got {type(first).__name__}")
    _check_ids(items, value)
    return [cast(list[int], items)], False


def _read_text(value: Any) -> tuple[list[str], bool]:
    if isinstance(value, str):
        return [value], False
    items = cast(list[Any], value) if isinstance(value, list) else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise _union_error("text", value)
    if not items:
        raise request_error("text cannot be empty.")
    return cast(list[str], items), True


def _read_params(value: Any, count: int, is_list: bool) -> list[dict[str, Any]]:
    if value is None:
        return [{}] * count
    if isinstance(value, dict):
        return [cast(dict[str, Any], value)] * count
    items = cast(list[Any], value) if isinstance(value, list) else None
    if items is not None and all(isinstance(item, dict) for item in items):
        params = cast(list[dict[str, Any]], items)
        if not is_list or len(params) != count:
            raise internal_error()  # the real server trips over its own index here
        return params
    details = [
        {"type": f"{kind}_type", "loc": ("body", "sampling_params", name), "msg": f"Input should be a valid {word}"}
        for kind, name, word in (("list", "list[dict[str,any]]", "list"), ("dict", "dict[str,any]", "dictionary"))
    ]
    shown = cast(Any, value)
    raise validation_error(*_GENERATE, *({**detail, "input": shown} for detail in details))


def _read_rids(value: Any, count: int, is_list: bool) -> list[str]:
    if value is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(value, str):
        return [f"{value}_{i}" for i in range(count)] if is_list else [value]
    rids = cast(list[Any], value) if isinstance(value, list) else None
    if rids is None or not all(isinstance(rid, str) for rid in rids):
        raise _union_error("rid", value)
    if len(rids) != count:
        raise request_error("The specified rids length mismatch with the batch_size for batch processing.")
    repeated = sorted({rid for rid in rids if rids.count(rid) > 1})
    if repeated:
        raise request_error(f"Duplicate request IDs detected within the request: {repeated}")
    return cast(list[str], rids)


def check_length(tokens: int, sampling: Sampling, context: int) -> None:
    if tokens >= context:
        raise request_error(
            f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        )
    new = sampling.max_new_tokens
    if new is not None and tokens + new > context:
        raise request_error(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. "
            f"You requested a total of {tokens + new} tokens: {tokens} tokens from the input messages and "
            f"{new} tokens for the completion. Please reduce the number of tokens in the input messages or "
            "the completion to fit within the limit."
        )
    most = context - RESERVED_POSITIONS
    if tokens >= most:
        raise request_error(
            f"Input length ({tokens} tokens) exceeds the maximum allowed length ({most} tokens). "
            "Use a shorter input or enable --allow-auto-truncate."
        )


def samples(rid: str, ids: list[int], sampling: Sampling) -> list[Prompt]:
    """One prompt as often as it is to be answered."""
    mark = digest(ids)
    rids = [rid] if sampling.n == 1 else [uuid.uuid4().hex for _ in range(sampling.n)]
    return [
        Prompt(rid=own, input_ids=ids, digest=mark, sampling=sampling, index=index) for index, own in enumerate(rids)
    ]


def _refuse_unsupported(body: dict[str, Any]) -> None:
    """What this server was not launched for, in the words of one that could have been."""
    if body.get("return_hidden_states"):
        raise request_error(
            "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, "
            "`--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
        )
    if body.get("custom_logit_processor"):
        raise request_error(
            "The server is not configured to enable custom logit processor. Please set "
            "`--enable-custom-logit-processor` to enable this feature."
        )
    if body.get("lora_path"):
        raise request_error(
            f"LoRA adapter '{body['lora_path']}' was requested, but LoRA is not enabled. Please launch the server with "
            "--enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
        )


def parse_generate(raw: bytes, content_type: str, vocabulary: Vocabulary, context: int) -> Batch:
    """The prompts in a body of /generate.

    Raises:
        ApiError: SGLang would refuse it.
        Poison: it would kill the server.
    """
    body = decode_body(raw, content_type, *_GENERATE, "GenerateReqInput")
    stream: Any = body.get("stream") or False
    if not isinstance(stream, bool):
        raise contract_error(f"invalid type: {describe(stream)}, expected a boolean")
    try:
        return _parse(body, stream, vocabulary, context)
    except ApiError as error:
        error.streamable = error.streamable and stream
        raise


def _parse(body: dict[str, Any], stream: bool, vocabulary: Vocabulary, context: int) -> Batch:
    texts: list[str] | None = None
    ids: list[list[int]] | None = None
    is_list = False
    if body.get("text") is not None:
        texts, is_list = _read_text(body["text"])
    if body.get("input_ids") is not None:
        # With both, the ids win.
        ids, is_list = _read_ids(body["input_ids"])
    elif texts is not None:
        ids = [vocabulary.encode(text) for text in texts]
    if ids is None:
        raise request_error("Either text, input_ids or input_embeds should be provided.")
    rids = _read_rids(body.get("rid"), len(ids), is_list)
    raw_params = _read_params(body.get("sampling_params"), len(ids), is_list)
    _refuse_unsupported(body)
    params: list[Sampling] = []
    for item, settings in zip(ids, raw_params, strict=True):
        shared = params and settings is raw_params[0]
        params.append(params[0] if shared else parse_sampling(settings, vocabulary.size))
        check_length(len(item), params[-1], context)
    for item in ids:
        if item and not (min(item) >= 0 and max(item) < vocabulary.size):
            raise Poison
    if len(ids) == 1 and not ids[0]:
        raise Poison
    prompts = [
        prompt for rid, item, sampling in zip(rids, ids, params, strict=True) for prompt in samples(rid, item, sampling)
    ]
    return Batch(
        prompts=prompts,
        as_list=is_list or len(prompts) > 1,
        stream=stream,
        return_prompt_token_ids=bool(body.get("return_prompt_token_ids")),
    )
