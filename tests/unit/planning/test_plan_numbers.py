"""`tokenmill plan`: what is still needed, by how much that may be wrong, and what runs out first."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.planning import (
    Holdings,
    Lengths,
    ages_of,
    answers_needed,
    lengths_from_ages,
    lengths_of,
    plan,
    plan_dataset,
)

MEAN_1000 = Lengths(answers=400, mean=1000.0, error=30.0)


def _dataset(
    name: str = "A",
    *,
    cap: int | None = 1_000_000,
    spent: int = 400_000,
    lengths: Lengths | None = MEAN_1000,
    prompts_left: int | None = 5000,
    max_samples: int | None = None,
) -> Holdings:
    return Holdings(
        name=name,
        cap=cap,
        spent=spent,
        lengths=lengths,
        prompts_left=prompts_left,
        max_samples=max_samples,
        committed=400,
    )


def test_the_lengths_of_files() -> None:
    lengths = lengths_of([900, 1000, 1100])
    assert lengths is not None
    assert (lengths.answers, lengths.mean) == (3, 1000)
    assert lengths.error == pytest.approx(100 / 3**0.5)
    assert lengths_of([]) is None


def test_one_answer_tells_next_to_nothing() -> None:
    lengths = lengths_of([1000])
    assert lengths is not None
    assert (lengths.lowest, lengths.highest) == (100, 10_000)


def test_ages_tell_the_mean_within_a_bucket_and_with_spent_exactly() -> None:
    rng = random.Random(1)
    tokens = [rng.randint(500, 3000) for _ in range(2000)]
    exact, counted = lengths_of(tokens), lengths_from_ages(ages_of(tokens))
    assert exact is not None
    assert counted is not None
    assert counted.mean == pytest.approx(exact.mean, rel=0.01)
    assert counted.error == pytest.approx(exact.error, rel=0.05)
    told = lengths_from_ages(ages_of(tokens), sum(tokens))
    assert told is not None
    assert told.mean == exact.mean
    assert lengths_from_ages({}) is None
    assert lengths_from_ages({3: 0}) is None


def test_the_range_holds_the_truth() -> None:
    rng, inside = random.Random(2), 0
    for _ in range(200):
        lengths = lengths_of(int(rng.lognormvariate(7, 0.65)) for _ in range(100))
        assert lengths is not None
        inside += lengths.lowest <= 1354 <= lengths.highest
    assert inside >= 180


def test_answers_that_fill_what_is_left() -> None:
    needed = answers_needed(600_000, MEAN_1000)
    assert needed.expected == 600
    assert needed.least == 567  # of 1,060 tokens each
    assert needed.most == 639  # of 940


def test_a_dataset_that_will_reach_its_budget() -> None:
    dataset = plan_dataset(_dataset(), 7000)
    assert (dataset.ends, dataset.tokens, dataset.missing, dataset.may_fall_short) == ("budget", 600_000, 0, False)
    assert dataset.sample_cap_tokens == 5_400_000  # of all its prompts, which are fewer than the samples
    assert plan_dataset(_dataset(prompts_left=9000), 7000).sample_cap_tokens == 7_000_000
    assert plan_dataset(_dataset(prompts_left=None), 7000).sample_cap_tokens == 7_000_000


def test_a_dataset_whose_prompts_run_out() -> None:
    dataset = plan_dataset(_dataset(prompts_left=500), 7000)
    assert (dataset.ends, dataset.tokens, dataset.missing) == ("prompts", 500_000, 100_000)


def test_prompts_that_suffice_only_if_the_mean_is_right() -> None:
    assert plan_dataset(_dataset(prompts_left=620), 7000).may_fall_short
    assert not plan_dataset(_dataset(prompts_left=640), 7000).may_fall_short


def test_a_sample_cap_ends_it_like_prompts_do() -> None:
    dataset = plan_dataset(_dataset(max_samples=700), 7000)
    assert (dataset.ends, dataset.tokens, dataset.missing) == ("prompts", 300_000, 300_000)


def test_nothing_is_left_to_do() -> None:
    dataset = plan_dataset(_dataset(spent=1_000_001), 7000)
    assert (dataset.ends, dataset.tokens) == ("complete", 0)
    dataset = plan_dataset(_dataset(prompts_left=0), 7000)
    assert (dataset.ends, dataset.tokens, dataset.missing) == ("prompts", 0, 600_000)


def test_without_answers_it_says_that_it_does_not_know() -> None:
    dataset = plan_dataset(_dataset(spent=0, lengths=None), 7000)
    assert (dataset.ends, dataset.tokens, dataset.answers, dataset.sample_cap_tokens) == (
        "unknown", 1_000_000, None, None,
    )  # fmt: skip
    dataset = plan_dataset(_dataset(cap=None, lengths=None), 7000)
    assert (dataset.ends, dataset.tokens) == ("no cap", None)


def test_a_dataset_without_a_cap_uses_all_its_prompts() -> None:
    dataset = plan_dataset(_dataset(cap=None), 7000)
    assert (dataset.ends, dataset.tokens, dataset.answers) == ("no cap", 5_000_000, None)


def test_a_whole_run() -> None:
    whole = plan([_dataset("A"), _dataset("B", prompts_left=500)], tokens_per_s=1000)
    assert whole.tokens == 1_100_000
    assert whole.hours == pytest.approx(1100 / 3600)
    assert whole.short_of_prompts == ["B"]
    assert (whole.sample_cap_tokens, whole.capped_tokens) == (6_300_000, 2_000_000)


def test_the_cap_over_all_ends_it_sooner() -> None:
    whole = plan([_dataset("A"), _dataset("B")], tokens_per_s=1000, total_cap=1_000_000)
    assert whole.tokens == 200_000


def test_no_hours_without_a_speed_or_with_a_dataset_of_unknown_size() -> None:
    assert plan([_dataset()]).hours is None
    unknown = plan([_dataset(), _dataset("B", cap=None, lengths=None)], tokens_per_s=1000)
    assert (unknown.hours, unknown.uncertain) == (None, ["B"])


@given(
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.integers(0, 10**9),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.lists(st.integers(1, 100_000), max_size=30),
)
def test_what_will_be_made_and_what_is_missing_are_what_the_cap_leaves(
    cap: int | None, spent: int, prompts_left: int | None, tokens: list[int]
) -> None:
    lengths = lengths_of(tokens)
    dataset = plan_dataset(_dataset(cap=cap, spent=spent, lengths=lengths, prompts_left=prompts_left), 7000)
    if cap is not None:
        assert dataset.tokens is not None
        assert dataset.tokens + dataset.missing == max(0, cap - spent)
    if dataset.answers is not None:
        assert 0 <= dataset.answers.least <= dataset.answers.expected <= dataset.answers.most
