"""The wire types: what the parts say to each other through Redis and in the result files.

All are frozen. They belong to `budget.protocol.PROTOCOL`, which the run's entry in Redis holds: a part
that meets another protocol refuses it rather than half-understanding it. What outlives a run, or waits
in a queue, names its own `schema` beside. JSON everywhere, never pickle. `JOB_FUNCTION` is wire format
too: it stands in every RQ job, and a worker runs nothing else.
"""

import hashlib
import json
from typing import Any, Literal

import msgspec

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


def worst_case(payload: Payload, sampling: dict[str, Any]) -> int:
    """The most tokens that a job's answers can cost: max_new_tokens for each of its turns."""
    return (payload.max_new_tokens or int(sampling["max_new_tokens"])) * payload.turns


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the producer tells of the tokenizer, so that workers need not load it.

    `probe_text` has the ids `probe_ids`, with the special tokens that stand in it and none added: a server
    that tokenizes it otherwise serves another model. `thinking` are the tags of a reasoning model. `pieces_digest`
    names what the producer laid down of the vocabulary (`workers/pieces.py`), if anything.
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
    pieces_digest: str = ""
