"""The life table: what must hold for any counts, and for numbers that can be worked out by hand."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget.forecast import EDGES, STARTS, Curve, bucket, mean_length

counts = st.dictionaries(st.integers(0, len(EDGES)), st.integers(0, 20_000), max_size=40)
most_tokens = st.integers(1, 3_000_000)
ages = st.integers(0, 4_000_000)


@given(counts, counts, most_tokens, ages)
def test_a_reservation_is_at_least_the_age_and_never_above_the_most(
    finished: dict[int, int], in_flight: dict[int, int], most: int, age: int
) -> None:
    reserved = Curve(finished, in_flight, most).reserved(age)
    assert 0 < reserved <= most
    assert reserved >= min(age, most)


@given(counts, counts, most_tokens, ages, ages)
def test_an_older_job_is_never_expected_to_end_shorter(
    finished: dict[int, int], in_flight: dict[int, int], most: int, one: int, other: int
) -> None:
    curve = Curve(finished, in_flight, most)
    assert curve.reserved(min(one, other)) <= curve.reserved(max(one, other))


@given(most_tokens, ages)
def test_without_data_every_job_reserves_exactly_the_most(most: int, age: int) -> None:
    assert Curve({}, {}, most).reserved(age) == most


@given(counts, most_tokens, ages)
def test_jobs_in_flight_alone_leave_it_at_the_most(in_flight: dict[int, int], most: int, age: int) -> None:
    assert Curve({}, in_flight, most).reserved(age) == most


@given(counts, counts, most_tokens)
def test_the_share_that_is_left_falls_from_one_and_is_never_used_up_before_the_most(
    finished: dict[int, int], in_flight: dict[int, int], most: int
) -> None:
    curve = Curve(finished, in_flight, most)
    shares = [curve.share(start) for start in STARTS if start < most]
    assert shares[0] == 1.0
    assert all(0 < there <= here for here, there in itertools.pairwise(shares))
    assert curve.share(most) == 0.0


@given(counts, most_tokens, st.integers(0, len(EDGES)), st.integers(1, 10_000))
def test_more_known_to_be_still_running_never_lowers_a_reservation(
    finished: dict[int, int], most: int, oldest: int, running: int
) -> None:
    assert Curve(finished, {oldest: running}, most).reserved(0) >= Curve(finished, {}, most).reserved(0)


@given(st.integers(1, 60_000), st.integers(200, 100_000))
def test_answers_of_one_length_are_expected_within_a_bucket_of_it(length: int, answers: int) -> None:
    most = 65_536
    expected = Curve({bucket(length): answers}, {}, most).reserved(0)
    b = bucket(length)
    pessimism = 100 / (answers + 100) * most
    assert STARTS[b] * answers / (answers + 100) <= expected <= EDGES[b] + pessimism + 1


def test_the_table_by_hand() -> None:
    # 300 answers ended in [0, 32), 200 jobs are in flight in [32, 36), nothing costs more than 100.
    curve = Curve({0: 300}, {1: 200}, 100)
    after_first = 1 - 300 / (300 + 200 + 100)
    assert curve.share(32) == pytest.approx(after_first)
    assert curve.share(16) == pytest.approx((1 + after_first) / 2)
    assert curve.share(99) == pytest.approx(after_first)
    area = 32 * (1 + after_first) / 2 + (100 - 32) * after_first
    assert curve.reserved(0) == math.ceil(area)
    assert curve.reserved(40) == 100


def test_jobs_in_flight_count_as_half_a_case_in_their_own_bucket() -> None:
    # 50 answers ended in [36, 40) while 20 were last seen in it: 10 of those count as at risk there.
    curve = Curve({2: 50}, {2: 20}, 1000, pseudo_answers=100)
    assert curve.share(40) == pytest.approx(1 - 50 / (50 + 20 - 10 + 100))


def test_answers_that_are_cut_at_the_most_are_not_taken_as_shorter() -> None:
    most = 18_000  # in the bucket from 16,384 to 18,390
    curve = Curve({bucket(most): 1000}, {}, most)
    assert curve.reserved(0) == most


def test_lines_longer_than_the_most_count_as_reaching_it() -> None:
    assert Curve({bucket(50_000): 1000}, {}, 4096).reserved(0) == 4096


def test_rounding_never_loses_the_fraction_of_a_token() -> None:
    curve = Curve({0: 1000}, {}, 64)
    mean = 32 * (1 + curve.share(32)) / 2 + 32 * curve.share(32)
    assert curve.reserved(0) == math.ceil(mean) > mean


@pytest.mark.parametrize("tokens", [0, 1, 31, 32, 33, 16_383, 16_384, 2_097_151, 2_097_152, 10**9])
def test_a_bucket_starts_at_its_edge(tokens: int) -> None:
    b = bucket(tokens)
    assert STARTS[b] <= tokens
    assert b == len(EDGES) or tokens < EDGES[b]


def test_the_mean_of_what_is_finished() -> None:
    assert mean_length({}) is None
    assert mean_length({0: 0}) is None
    assert mean_length({0: 3, 1: 1}) == pytest.approx((3 * 16 + 34) / 4)
