"""What a dataset's prompt files are understood to be, before a token is paid for: counted, rendered, judged.

It goes the way of the producer itself (the same source, the same payloads), so what it shows is what will
be sent; it needs neither Redis nor a server.
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from producer.defects import Defect
from producer.files import PromptSource, Row
from producer.ids import HashSet, own_id
from producer.prompts import to_payload
from producer.rows import Prompt, to_prompt
from workers.chat import ChatTokenizer
from workers.contracts import DatasetConfig, Message

SAMPLES = 5
CONTENT = "their content"


class FileSeen(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    format: str
    rows: int


class Reject(msgspec.Struct, kw_only=True):
    """One reason for which rows can never work, with the first of them."""

    reason: str
    count: int
    where: str
    detail: str


class SpecialSeen(msgspec.Struct, kw_only=True):
    """A text in users' messages that looks like a special token: in how many prompts, and the first of them."""

    text: str
    prompts: int
    where: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it will be sent; `text` shows special tokens, and is only the messages without a tokenizer."""

    id: str
    where: str
    shape: str
    turns: int
    tokens: int | None
    text: str


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Of first turns; in tokens, or in characters where there is no tokenizer."""

    unit: str
    total: int
    mean: float
    least: int
    p50: int
    p90: int
    p99: int
    most: int


class Inspection(msgspec.Struct, kw_only=True):
    """One dataset. All counts but `rows` are of the rows that were `looked_at`."""

    dataset: str
    source: str
    files: list[FileSeen]
    rows: int
    looked_at: int = 0
    prompts: int = 0
    rejected: int = 0
    shapes: dict[str, int] = {}
    ids: dict[str, int] = {}
    repeated_ids: int = 0
    distinct: int = 0
    distinct_openings: int = 0
    several_turns: int = 0
    most_turns: int = 0
    with_tools: int = 0
    with_system: int = 0
    with_reference: int = 0
    template_system: str = ""
    special: list[SpecialSeen] = []
    special_becomes_tokens: bool = False
    lengths: Lengths | None = None
    context_length: int | None = None
    over_context: int = 0
    rejects: list[Reject] = []
    samples: list[Sample] = []
    notes: list[str] = []


def inspect(
    dataset: DatasetConfig,
    tokenizer: ChatTokenizer | None,
    *,
    seed: int | None = 0,
    rows: int | None = None,
    samples: int = SAMPLES,
    context_length: int | None = None,
) -> Inspection:
    """Look at a dataset's prompts, in the order in which they would be queued.

    Args:
        dataset: As the run file has it.
        tokenizer: Renders them; without one they are counted in characters.
        seed: The run's: it decides which rows are looked at first.
        rows: How many are looked at; None: all of them.
        samples: How many are shown as they will be sent.
        context_length: The server's; None: what the tokenizer's model says.

    Raises:
        PromptsProblem: there are no such files, or they hold no prompts.
        ChatProblem: the tokenizer has no chat template, or a broken one, and a row needs it.
    """
    source = PromptSource.open(dataset.prompts, seed, dataset.fields)
    look = _Look(dataset, tokenizer, source, samples, context_length)
    for row in source:
        if rows is not None and look.seen.looked_at >= rows:
            break
        look.at(row)
    return look.finished()


class _Look:
    def __init__(
        self,
        dataset: DatasetConfig,
        tokenizer: ChatTokenizer | None,
        source: PromptSource,
        samples: int,
        context_length: int | None,
    ) -> None:
        self._dataset = dataset
        self._tokenizer = tokenizer
        self._wanted = samples
        files = [
            FileSeen(name=shard.name, format=shard.format, rows=count)
            for shard, count in zip(source.shards, source.counts, strict=True)
        ]
        self.seen = Inspection(
            dataset=dataset.name,
            source=dataset.prompts,
            files=files,
            rows=len(source),
            repeated_ids=source.repeated,
            notes=[source.note] if source.note else [],
        )
        if tokenizer is not None:
            self.seen.context_length = context_length or tokenizer.context_length
            self.seen.template_system = tokenizer.default_system() if tokenizer.has_template else ""
            self.seen.special_becomes_tokens = tokenizer.special_tokens_in_text
        self._shapes: Counter[str] = Counter()
        self._ids: Counter[str] = Counter()
        self._rejects: dict[str, Reject] = {}
        self._special: dict[str, SpecialSeen] = {}
        self._lengths = array("Q")
        self._distinct, self._openings = HashSet(), HashSet()

    def at(self, row: Row) -> None:
        seen = self.seen
        seen.looked_at += 1
        if row.defect is not None:
            self._reject(row, row.defect)
            return
        self._ids[own_id(row.value, str(self._dataset.fields.get("id", "")))[0] or CONTENT] += 1
        prompt = to_prompt(row.value, self._dataset.fields, self._dataset.history)
        if isinstance(prompt, Defect):
            self._reject(row, prompt)
            return
        self._shapes[prompt.shape] += 1
        text, length = self._rendered(row, prompt)
        if length is None:
            return
        seen.prompts += 1
        self._lengths.append(length)
        turns = 1 + len(prompt.followups)
        seen.several_turns += turns > 1
        seen.most_turns = max(seen.most_turns, turns)
        seen.with_tools += bool(prompt.tools)
        seen.with_system += any(message["role"] == "system" for message in prompt.messages)
        seen.with_reference += bool(prompt.reference)
        seen.distinct += self._distinct.add(_hash([prompt.messages, prompt.followups, prompt.tools, prompt.input_ids]))
        seen.distinct_openings += self._openings.add(_hash([_opening(prompt.messages), prompt.tools, prompt.input_ids]))
        self._look_for_special(row, prompt)
        if len(seen.samples) < self._wanted:
            tokens = length if self._tokenizer is not None else None
            seen.samples = [
                *seen.samples,
                Sample(id=row.id, where=row.where, shape=prompt.shape, turns=turns, tokens=tokens, text=text),
            ]

    def _rendered(self, row: Row, prompt: Prompt) -> tuple[str, int | None]:
        """The prompt's text, where it may still be shown, and its length; no length if it is rejected."""
        shows = len(self.seen.samples) < self._wanted
        if self._tokenizer is None:
            return (_plain(prompt) if shows else ""), _characters(prompt)
        payload = to_payload(self._dataset, row.id, row.value, self._tokenizer, self.seen.context_length)
        if isinstance(payload, Defect):
            self.seen.over_context += payload.reason == "too_long"
            self._reject(row, payload)
            return "", None
        return (self._tokenizer.decode(payload.input_ids) if shows else ""), len(payload.input_ids)

    def _look_for_special(self, row: Row, prompt: Prompt) -> None:
        if self._tokenizer is None:
            return
        messages = [*prompt.messages, *(message for turn in prompt.followups for message in turn)]
        for text in set(self._tokenizer.special_text.found(messages)):
            held = self._special.setdefault(text, SpecialSeen(text=text, prompts=0, where=row.where))
            held.prompts += 1

    def _reject(self, row: Row, defect: Defect) -> None:
        self.seen.rejected += 1
        held = self._rejects.setdefault(
            defect.reason, Reject(reason=defect.reason, count=0, where=row.where, detail=defect.detail)
        )
        held.count += 1

    def finished(self) -> Inspection:
        seen = self.seen
        seen.shapes = dict(self._shapes.most_common())
        seen.ids = dict(self._ids.most_common())
        seen.rejects = sorted(self._rejects.values(), key=lambda held: -held.count)
        seen.special = sorted(self._special.values(), key=lambda held: (-held.prompts, held.text))
        seen.lengths = _lengths(self._lengths, "characters" if self._tokenizer is None else "tokens")
        if seen.looked_at < seen.rows:
            seen.notes = [*seen.notes, f"looked at {seen.looked_at:,} of {seen.rows:,} rows"]
        if self._tokenizer is None:
            seen.notes = [*seen.notes, "without a tokenizer nothing is rendered: lengths are characters"]
        elif seen.special and not seen.special_becomes_tokens and (note := self._tokenizer.special_text.note):
            seen.special_becomes_tokens = True
            seen.notes = [*seen.notes, f"the tokenizer cannot keep text apart from special tokens: {note}"]
        return seen


def _lengths(held: "array[int]", unit: str) -> Lengths | None:
    if not held:
        return None
    ordered = sorted(held)

    def at(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    total = sum(ordered)
    return Lengths(
        unit=unit,
        total=total,
        mean=round(total / len(ordered), 1),
        least=ordered[0],
        p50=at(0.5),
        p90=at(0.9),
        p99=at(0.99),
        most=ordered[-1],
    )


def _opening(messages: list[Message]) -> list[Message]:
    """What is asked before the first answer in it."""
    answered = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return messages[:answered] if any(message["role"] == "user" for message in messages[:answered]) else messages


def _characters(prompt: Prompt) -> int:
    return sum(len(message["content"]) for message in prompt.messages) + len(prompt.input_ids)


def _plain(prompt: Prompt) -> str:
    said: Iterable[str] = (f"{message['role']}: {message['content']}" for message in prompt.messages)
    return "\n".join(said) if prompt.messages else f"{len(prompt.input_ids):,} token ids"


def _hash(value: list[Any]) -> int:
    digest = hashlib.blake2b(json.dumps(value).encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
