"""`tokenmill plan`: what a run still needs, before anything is spent on it.

Numbers in, numbers out. The mean length of a dataset's answers comes from those that it has (the
ledger's ages, or the lengths in the files); its range is twice the standard error of that mean to either
side (about 95 %). Fewer than `FEW` answers tell next to nothing: then it is from a tenth to ten times it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from budget.forecast import EDGES, STARTS, bucket

FEW = 5
SIGMAS = 2.0

Ends = Literal["complete", "budget", "prompts", "unknown", "no cap"]


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Answers by length: how many, their mean in tokens, and its standard error."""

    answers: int
    mean: float
    error: float

    @property
    def lowest(self) -> float:
        """The shortest that the mean may well be."""
        return max(1.0, self.mean - SIGMAS * self.error) if self.answers >= FEW else self.mean / 10

    @property
    def highest(self) -> float:
        return self.mean + SIGMAS * self.error if self.answers >= FEW else self.mean * 10


def lengths_from_ages(finished: Mapping[int, int], spent: int | None = None) -> "Lengths | None":
    """The lengths that the ledger's `ages` count (bucket -> answers); None where there are none.

    Args:
        spent: the tokens of those answers together, which makes the mean exact; a bucket is 12 % wide.
    """
    answers = sum(count for count in finished.values() if count > 0)
    if answers <= 0:
        return None
    middles = {b: (STARTS[b] + STARTS[min(b + 1, len(EDGES))]) / 2 for b in finished}
    total = sum(middles[b] * count for b, count in finished.items() if count > 0)
    squares = sum(middles[b] ** 2 * count for b, count in finished.items() if count > 0)
    mean = spent / answers if spent else total / answers
    return Lengths(answers=answers, mean=mean, error=_error(answers, total, squares))


def lengths_of(tokens: Iterable[int]) -> "Lengths | None":
    """The lengths of answers in the files; None where there are none."""
    answers = total = squares = 0
    for length in tokens:
        answers, total, squares = answers + 1, total + length, squares + length * length
    if not answers:
        return None
    return Lengths(answers=answers, mean=total / answers, error=_error(answers, total, squares))


def ages_of(tokens: Iterable[int]) -> dict[int, int]:
    """Answers in the files by the buckets of the ledger's `ages`."""
    counts: dict[int, int] = {}
    for length in tokens:
        counts[bucket(length)] = counts.get(bucket(length), 0) + 1
    return counts


def _error(answers: int, total: float, squares: float) -> float:
    if answers < 2:
        return total / answers
    variance = max(0.0, squares - total * total / answers) / (answers - 1)
    return math.sqrt(variance / answers)


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What is there of one dataset. `cap` is None where there is none.

    `prompts_left` are neither answered nor rejected, None where nobody has counted them.
    """

    name: str
    cap: int | None
    spent: int = 0
    lengths: Lengths | None = None
    prompts_left: int | None = None
    max_samples: int | None = None
    committed: int = 0


class Range(msgspec.Struct, frozen=True):
    """A number with the range in which it probably lies."""

    expected: int
    least: int
    most: int


class DatasetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset still needs.

    `ends` is by what it will end; "unknown" where no answer tells how far the prompts reach. `tokens` are
    those that will be made until then (None: no cap, and no answer known). `answers` are those still needed
    to fill the cap. `missing` are the tokens by which the prompts, or a sample cap, will fall short of it;
    they `may_fall_short` where they suffice for the expected mean and not for the whole range.
    `sample_cap_tokens` is what a cap of `Plan.sample_cap` samples would have cost.
    """

    name: str
    cap: int | None
    spent: int
    ends: Ends
    mean: float | None
    tokens: int | None
    answers: Range | None
    prompts_left: int | None
    missing: int
    may_fall_short: bool
    sample_cap_tokens: int | None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run still needs.

    `hours` is None where no speed has been measured, or where it is `uncertain` how many tokens some datasets
    will make. `sample_cap_tokens` beside `capped_tokens`: what a cap in samples would have cost, over the
    datasets that have a cap and answers to tell by.
    """

    datasets: list[DatasetPlan]
    tokens: int
    hours: float | None
    uncertain: list[str]
    short_of_prompts: list[str]
    sample_cap: int
    sample_cap_tokens: int | None
    capped_tokens: int | None


def answers_needed(left: int, lengths: Lengths) -> Range:
    """How many answers fill `left` tokens."""
    return Range(
        math.ceil(left / lengths.mean), math.ceil(left / lengths.highest), math.ceil(left / max(1.0, lengths.lowest))
    )


def plan_dataset(holdings: Holdings, sample_cap: int) -> DatasetPlan:
    """What one dataset still needs."""
    lengths, cap, prompts = holdings.lengths, holdings.cap, holdings.prompts_left
    if holdings.max_samples is not None:
        samples = max(0, holdings.max_samples - holdings.committed)
        prompts = samples if prompts is None else min(prompts, samples)
    left = None if cap is None else max(0, cap - holdings.spent)
    # No cap makes more samples than there are prompts.
    known = holdings.prompts_left is not None
    prompts_in_all = holdings.committed + (holdings.prompts_left or 0) if known else sample_cap
    can_make = None if prompts is None or lengths is None else round(prompts * lengths.mean)
    ends, tokens, missing = _end(left, prompts, can_make)
    answers = None if left is None or lengths is None else answers_needed(left, lengths)
    return DatasetPlan(
        name=holdings.name,
        cap=cap,
        spent=holdings.spent,
        ends=ends,
        mean=None if lengths is None else lengths.mean,
        tokens=tokens,
        answers=answers,
        prompts_left=holdings.prompts_left,
        missing=missing,
        may_fall_short=ends == "budget" and answers is not None and prompts is not None and answers.most > prompts,
        sample_cap_tokens=None if lengths is None else round(min(sample_cap, prompts_in_all) * lengths.mean),
    )


def _end(left: int | None, prompts: int | None, can_make: int | None) -> tuple[Ends, int | None, int]:
    """How a dataset will end, the tokens that will be made until then, and those that its cap will miss."""
    if left == 0:
        return "complete", 0, 0
    if prompts == 0:
        return "prompts", 0, left or 0
    if left is None:
        return "no cap", can_make, 0
    if can_make is None:
        return "unknown", left, 0
    if can_make < left:
        return "prompts", can_make, left - can_make
    return "budget", left, 0


def plan(
    holdings: Sequence[Holdings], *, tokens_per_s: float = 0.0, total_cap: int | None = None, sample_cap: int = 7000
) -> Plan:
    """What a run still needs.

    Args:
        tokens_per_s: the measured speed over all servers; 0 where none has been measured.
        total_cap: the run's cap over all datasets, in tokens.
        sample_cap: the cap in samples per dataset to compare with.
    """
    plans = [plan_dataset(dataset, sample_cap) for dataset in holdings]
    tokens = sum(dataset.tokens or 0 for dataset in plans)
    if total_cap is not None:
        tokens = min(tokens, max(0, total_cap - sum(dataset.spent for dataset in plans)))
    uncertain = [dataset.name for dataset in plans if dataset.tokens is None]
    compared = [dataset for dataset in plans if dataset.sample_cap_tokens is not None and dataset.cap is not None]
    return Plan(
        datasets=plans,
        tokens=tokens,
        hours=tokens / tokens_per_s / 3600 if tokens_per_s > 0 and (not uncertain or total_cap is not None) else None,
        uncertain=uncertain,
        short_of_prompts=[dataset.name for dataset in plans if dataset.missing > 0],
        sample_cap=sample_cap,
        sample_cap_tokens=sum(dataset.sample_cap_tokens or 0 for dataset in compared) if compared else None,
        capped_tokens=sum(dataset.cap or 0 for dataset in compared) if compared else None,
    )
