"""The forecast against lengths whose truth is known, seen as a run sees them: some ended, the long ones still running.

`watch` runs one dataset through a number of slots, a token a tick, and stops the clock. The pessimism of
the 100 pseudo-answers is bounded by 100 / (answers + 100) of the most, and allowed for.
"""

import heapq
import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from budget.forecast import PSEUDO_ANSWERS, Curve, bucket
from workers.simulator.lengths import LengthSpec

MOST = 16_384


@dataclass
class Seen:
    """The moment at which the clock was stopped."""

    ended: list[int]
    running: list[tuple[int, int]]  # age, and the length it will have

    @property
    def curve(self) -> Curve:
        return self.curve_with(PSEUDO_ANSWERS)

    def curve_with(self, pseudo_answers: float) -> Curve:
        ended, running = Counter(map(bucket, self.ended)), Counter(bucket(age) for age, _ in self.running)
        return Curve(ended, running, MOST, pseudo_answers)

    def reserved_over_truth(self, curve: Curve) -> float:
        return sum(curve.reserved(age) for age, _ in self.running) / sum(length for _, length in self.running)

    @property
    def pessimism(self) -> float:
        return PSEUDO_ANSWERS / (len(self.ended) + PSEUDO_ANSWERS) * MOST


def watch(lengths: Iterator[int], slots: int, ended: int) -> Seen:
    """Keep `slots` full until so many answers have ended."""
    lengths = (min(length, MOST) for length in lengths)
    heap = [(length, 0, length) for length in itertools.islice(lengths, slots)]
    heapq.heapify(heap)
    done: list[int] = []
    now = 0
    while len(done) < ended:
        now, _, length = heapq.heappop(heap)
        done.append(length)
        fresh = next(lengths)
        heapq.heappush(heap, (now + fresh, now, fresh))
    return Seen(done, [(now - start, length) for _, start, length in heap])


def spec(spec: LengthSpec, seed: int = 0) -> Iterator[int]:
    return (spec.draw(seed * 1_000_003 + n) for n in itertools.count())


def pareto(seed: int) -> Iterator[int]:
    """A heavy tail: exponent 1.2 from 500 tokens on, so that a tenth of the answers hold half of the tokens."""
    rng = random.Random(seed)
    return (int(500 * rng.paretovariate(1.2)) for _ in itertools.count())


SHAPES: dict[str, Callable[[int], Iterator[int]]] = {
    "lognormal": lambda seed: spec(LengthSpec(mean=1500, sigma=0.65), seed),
    "constant": lambda seed: spec(LengthSpec(shape="constant", mean=1500), seed),
    "bimodal": lambda seed: spec(LengthSpec(shape="bimodal", mean=2000, sigma=0.2), seed),
    "heavy-tailed": pareto,
    "cut at the most": lambda seed: spec(LengthSpec(mean=14_000, sigma=1.0), seed),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ended", [2_100, 9_000])
def test_a_new_job_reserves_the_mean_length(shape: str, ended: int) -> None:
    seen = watch(SHAPES[shape](1), 150, ended)
    truth = statistics.fmean(min(length, MOST) for length in itertools.islice(SHAPES[shape](2), 20_000))
    expected = seen.curve.reserved(0)
    assert 0.93 * truth <= expected <= 1.07 * truth + seen.pessimism


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_in_flight_adds_up_to_what_it_will_cost(shape: str) -> None:
    seen = [watch(SHAPES[shape](seed), 1024, 10 * 1024) for seed in range(5)]
    unbiased = [one.reserved_over_truth(one.curve_with(1)) for one in seen]
    assert statistics.median(unbiased) == pytest.approx(1.0, abs=0.05)
    assert statistics.median(one.reserved_over_truth(one.curve) for one in seen) >= 1.0


def test_a_running_mean_is_fooled_by_what_ends_first_and_the_life_table_is_not() -> None:
    # A fifth of the answers is ten times as long: none of those has ended when a thousand of the others have.
    lengths = spec(LengthSpec(shape="bimodal", mean=2000, sigma=0.1))
    seen = watch(lengths, 1024, 900)
    assert statistics.fmean(seen.ended) < 1000
    assert seen.curve.reserved(0) > 2000


@pytest.mark.parametrize("age", [0, 1000, 4000])
def test_the_remaining_life_of_a_job_of_any_age(age: int) -> None:
    seen = watch(SHAPES["lognormal"](1), 150, 20_000)
    older = [length for length in itertools.islice(SHAPES["lognormal"](2), 20_000) if length > age]
    truth = statistics.fmean(min(length, MOST) for length in older)
    share_of_pseudo = PSEUDO_ANSWERS / (len(seen.ended) * len(older) / 20_000 + PSEUDO_ANSWERS)
    assert 0.95 * truth <= seen.curve.reserved(age) <= 1.05 * truth + share_of_pseudo * MOST


def test_lengths_that_grow_in_mid_run_are_noticed_in_flight_before_they_end() -> None:
    # From one moment to the next answers are eight times as long: the old ones still outweigh them, but a job
    # that outlives them is known at once for what it is, and all that is in flight reserves more than the old mean.
    old = spec(LengthSpec(mean=1000, sigma=0.3), 1)
    new = spec(LengthSpec(mean=8000, sigma=0.2), 2)
    seen = watch(itertools.chain(itertools.islice(old, 5_000), new), 150, 4_990)
    later = Seen(seen.ended, [(4000, 8000)] * 150)
    assert later.curve.reserved(4000) > 7000
    assert later.curve.reserved(0) > seen.curve.reserved(0)


def test_lengths_that_shrink_in_mid_run_are_followed() -> None:
    old, new = spec(LengthSpec(mean=4000, sigma=0.5), 1), spec(LengthSpec(mean=1000, sigma=0.5), 2)
    before = watch(itertools.islice(old, 3_000), 150, 2_000).curve.reserved(0)
    after = watch(itertools.chain(itertools.islice(old, 3_000), new), 150, 12_000).curve.reserved(0)
    assert after < 0.7 * before


def test_a_first_hundred_that_is_not_typical_does_not_open_the_gate() -> None:
    # The first hundred are short. With as many pseudo-answers a job still reserves half of the worst case.
    first, rest = spec(LengthSpec(mean=300, sigma=0.2), 1), spec(LengthSpec(mean=5000, sigma=0.5), 2)
    seen = watch(itertools.chain(itertools.islice(first, 100), rest), 150, 100)
    assert seen.curve.reserved(0) > MOST / 2
    later = watch(itertools.chain(itertools.islice(first, 100), rest), 150, 5_000)
    assert later.curve.reserved(0) == pytest.approx(5000, rel=0.12)
