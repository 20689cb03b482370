"""The wire types: what the parts say to each other through Redis and in the result files.

All are frozen. They belong to `budget.protocol.PROTOCOL`, which the run's entry in Redis holds: a part
that meets another protocol refuses it rather than half-understanding it. What outlives a run, or waits
in a queue, names its own `schema` beside. JSON everywhere, never pickle. `JOB_FUNCTION` is wire format
too: it stands in every RQ job, and a worker runs nothing else.
"""

import hashlib
import json
import threading
import zlib
from typing import Any, Literal

import msgspec
import zstandard

from workers.thinking import Thinking

JOB_FUNCTION = "workers.jobs.generate"
PAYLOAD_SCHEMA = 1

Admission = Literal["forecast", "strict", "drain"]
History = Literal["turns", "keep"]
Message = dict[str, Any]


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every interval that recovery depends on, in milliseconds; down to 100 ms for tests.

    `stall_ms`: how long a server may answer none of the requests that it has, until it is asked for one token.
    """

    lease_ms: int = 30_000
    renew_ms: int = 10_000
    sweep_ms: int = 10_000
    retry_ms: int = 1_000
    stall_ms: int = 120_000


class DatasetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset as the run file has it; `sampling` is complete (the run's with the dataset's own on top).

    `fields` says where in a row the prompt stands, where that cannot be guessed. `history` says what
    becomes of the answers that a file's conversations hold: `turns` has them made anew, one after
    another; `keep` asks for the last one only, with the whole conversation before it as it stands.
    """

    name: str
    prompts: str
    max_tokens: int | None
    max_samples: int | None = None
    sampling: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    history: History = "turns"


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The run as all its parts know it: the run file, checked and resolved; stored in Redis as JSON.

    No secret is in it. Paths are resolved against `base`, the run file's folder; `servers` is empty
    only where the run file names none. `any_weights`: servers whose weight versions differ may take part.
    `answer_s` is the longest that a request may take, in seconds; None: a second for each token asked for, and
    never less than ten minutes.
    """

    name: str
    base: str = ""
    output: str
    tokenizer: str
    datasets: list[DatasetConfig]
    admission: Admission = "forecast"
    max_tokens_total: int | None = None
    max_hours: float | None = None
    seed: int | None = 0
    truncated: Literal["keep", "reject"] = "keep"
    chat_template_kwargs: dict[str, Any] = {}
    special_tokens_in_text: bool = False
    servers: list[str] = []
    any_weights: bool = False
    simulated: bool = False
    concurrency: int = 64
    answer_s: float | None = None
    max_waiting_results: int = 20_000
    timing: Timing = Timing()

    def dataset(self, name: str) -> DatasetConfig:
        """The dataset of that name.

        Raises:
            KeyError: no dataset is called so.
        """
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        raise KeyError(name)


def fingerprint(config: RunConfig, name: str) -> dict[str, str]:
    """What must not change under a dataset while its answers are collected: its tokenizer, template, sampling, prompts.

    Caps and servers are left out on purpose: those change in mid-run. Paths count from the run file's
    folder, so a run that was moved as a whole keeps its fingerprint.
    """
    dataset = config.dataset(name)
    prefix = config.base.rstrip("/") + "/"

    def compact(value: dict[str, Any]) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    held = {
        "tokenizer": config.tokenizer.removeprefix(prefix),
        "chat_template_kwargs": compact(config.chat_template_kwargs),
        "sampling": compact(dataset.sampling),
        "prompts": dataset.prompts.removeprefix(prefix),
        "truncated": config.truncated,
    }
    # Only where they are not the default: what was collected before they existed keeps its fingerprint.
    if dataset.fields:
        held["fields"] = compact(dataset.fields)
    if dataset.history != "turns":
        held["history"] = dataset.history
    if config.special_tokens_in_text:
        held["special_tokens_in_text"] = "true"
    return held


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job carries: the keyword arguments of `workers.jobs.generate`.

    `input_ids` is the first request, token for token. `messages` is what it was rendered from (empty
    for rows that came as ids). `followups` holds, for each later turn, the messages to add after the
    previous answer. `max_new_tokens` is set where it had to be cut to fit the context. `reference` is
    the answer that the prompt file has; it is never shown to the model. `schema` is always written, and one
    of another schema is no payload.
    """

    dataset: str
    id: str
    input_ids: list[int]
    messages: list[Message] = []
    followups: list[list[Message]] = []
    tools: list[Any] = []
    max_new_tokens: int | None = None
    reference: str = ""
    schema: int = PAYLOAD_SCHEMA

    def __post_init__(self) -> None:
        if self.schema != PAYLOAD_SCHEMA:
            raise ValueError(f"it is of schema {self.schema}, and this Tokenmill reads {PAYLOAD_SCHEMA}")

    @property
    def turns(self) -> int:
        return 1 + len(self.followups)


def job_id(dataset: str, prompt_id: str) -> str:
    """The RQ job's id of a prompt: RQ refuses ids such as `HumanEval/0`, and job hashes are shared by all queues."""
    digest = hashlib.blake2b(prompt_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{dataset}-{digest}"


# Some 500 token ids.
PLAIN_JOB_BYTES = 4096


def encode_job_data(payload: Payload) -> bytes:
    """The `data` field of an RQ job hash: RQ's JSON serializer's call tuple, plain or compressed, as RQ reads both.

    A queue holds a bounded number of jobs, so small ones are no burden to Redis, and compressing them would
    cost more than all else that makes a job of a row.
    """
    plain = {**msgspec.to_builtins(payload), "schema": payload.schema}
    # The ids are most of a job, and msgspec writes them ten times faster than json does.
    ids = msgspec.json.encode({"input_ids": plain.pop("input_ids")})
    # json where a prompt holds lone surrogates, which only escaped ASCII can carry.
    rest = _ascii_by_msgspec(plain) or json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    data = b'["%b",null,[],%b,%b]' % (JOB_FUNCTION.encode(), rest[:-1], ids[1:])
    return data if len(data) <= PLAIN_JOB_BYTES else zlib.compress(data, 1)


class HostileJob(ValueError):
    """A job hash whose data is not one of our jobs: another function, a broken or foreign payload."""


_usual_call = msgspec.json.Decoder(tuple[str, None, list[Any], Payload])
# More than any prompt needs, and little enough that a decompression bomb in Redis cannot fill a worker's memory.
MAX_JOB_BYTES = 256 * 1024 * 1024


def decode_job_data(data: bytes) -> Payload:
    """The payload in an RQ job's `data`, compressed or plain.

    Raises:
        HostileJob: the data names another function or is not a payload; nothing of it was run or imported.
    """
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(data, MAX_JOB_BYTES)
        if inflater.unconsumed_tail:
            raise HostileJob(f"its data is larger than {MAX_JOB_BYTES} bytes")
    except zlib.error:
        text = data
    try:
        function, _, args, payload = _usual_call.decode(text)
        if function == JOB_FUNCTION and not args:
            return payload
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # lone surrogates, which only json reads, or what is told apart below
    try:
        call: Any = json.loads(text)
        function, instance, args, kwargs = call
    except (ValueError, TypeError, RecursionError) as error:
        raise HostileJob(f"its data is not a JSON call: {error}") from error
    if function != JOB_FUNCTION or instance is not None or args:
        raise HostileJob(f"it names the function {_short(function)}; only {JOB_FUNCTION} is run")
    try:
        return msgspec.convert(kwargs, Payload)
    except msgspec.ValidationError as error:
        raise HostileJob(f"its payload is malformed: {str(error)[:200]}") from error


def _short(value: Any) -> str:
    """As Python writes it, and no longer than a line of rejected.jsonl should be."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


NO_TOOLS = "[]"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of raw_responses.jsonl: one turn's completion with its exact token ids.

    Flat and type-stable: every field has one type in every line. `matched` is the stop token's id or the
    stop string as text, "" where the answer was cut. `completion_tokens` counts the end token, as SGLang
    does, and equals `len(output_ids)`. `turn` counts from 1 to `turns`. `tools` are those that the prompt
    declared, as JSON text, because functions have no schema in common; `reference` is the answer that the
    prompt file has, in the record of the last turn, else "". Where a reasoning model thought first,
    `thinking` and `visible` are the two parts of `text`, without the tags; else both are "".
    """

    id: str
    dataset: str
    turn: int
    turns: int
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    matched: str
    input_ids: list[int]
    output_ids: list[int]
    text: str
    thinking: str = ""
    visible: str = ""
    messages: list[Message]
    tools: str = NO_TOOLS
    reference: str = ""
    sampling: dict[str, Any]
    model: str
    weight_version: str
    server: str
    worker: str
    attempt: int
    rid: str
    latency_s: float
    created_at: float
    schema: int = 1


class RejectLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of rejected.jsonl. `row` is the prompt as it was read, or what is left of it."""

    id: str
    dataset: str
    reason: str
    detail: str
    attempts: int
    row: Any


def encode_line(line: Record | RejectLine | dict[str, Any]) -> bytes:
    """One JSON line: ASCII only, no NaN, ended by one newline, whatever the text holds.

    Raises:
        ValueError: a number in it is NaN or infinite.
    """
    plain = line if isinstance(line, dict) else {name: getattr(line, name) for name in line.__struct_fields__}
    if isinstance(line, Record):
        # The ids are most of a line, and msgspec writes them ten times faster than json does.
        ids = msgspec.json.encode({name: plain.pop(name) for name in _ID_FIELDS})
        return (_ascii_by_msgspec(plain) or _ascii(plain))[:-1] + b"," + ids[1:] + b"\n"
    return _ascii(plain) + b"\n"


_ID_FIELDS = ("input_ids", "output_ids")


def _ascii(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def _ascii_by_msgspec(plain: dict[str, Any]) -> bytes | None:
    """The same several times faster; None where it would not be the same."""
    try:
        encoded = msgspec.json.encode(plain)
    except (UnicodeEncodeError, OverflowError, TypeError):  # lone surrogates, integers of more than 64 bits
        return None
    return encoded if encoded.isascii() and b"null" not in encoded else None  # it writes NaN as null


_thread = threading.local()


def pack_lines(lines: list[bytes]) -> bytes:
    """Lines as they travel through Redis: joined and compressed; zstd's first level costs a tenth of zlib's sixth."""
    # Kept, since making one costs as much as compressing; one a thread, since threads must not share one.
    if not hasattr(_thread, "compressor"):
        _thread.compressor = zstandard.ZstdCompressor(level=1)
    return _thread.compressor.compress(b"".join(lines))


def unpack_lines(packed: bytes) -> bytes:
    """The lines of a stream entry.

    Raises:
        ValueError: they are not what `pack_lines` made.
    """
    try:
        # Where a frame says how large it is, zstandard heeds no limit.
        if zstandard.frame_content_size(packed) > MAX_JOB_BYTES:
            raise ValueError(f"a result is larger than {MAX_JOB_BYTES} bytes")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_JOB_BYTES)
    except zstandard.ZstdError as error:
        raise ValueError(f"a result is damaged: {error}") from error


def worst_case(payload: Payload, sampling: dict[str, Any]) -> int:
    """The most tokens that a job's answers can cost: max_new_tokens for each of its turns."""
    return (payload.max_new_tokens or int(sampling["max_new_tokens"])) * payload.turns


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the producer tells of the tokenizer, so that workers need not load it.

    `probe_text` has the ids `probe_ids`, with the special tokens that stand in it and none added: a server
    that tokenizes it otherwise serves another model. `thinking` are the tags of a reasoning model.
    """

    vocab_size: int
    eos_ids: list[int] = []
    tokenizer_hash: str = ""
    template_hash: str = ""
    generation_config: dict[str, Any] = {}
    context_length: int | None = None
    probe_text: str = ""
    probe_ids: list[int] = []
    thinking: Thinking | None = None
