"""The model of speed, on a clock of its own: exact times, whatever the order of looking."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.simulator.engine import Engine, Job


def _engine(slots: int = 64, queue_limit: int | None = None, base_s: float = 1.0, per_request_s: float = 0.0) -> Engine:
    return Engine(slots=slots, queue_limit=queue_limit, base_s=base_s, per_request_s=per_request_s)


def test_one_request_alone_takes_its_length_times_the_step() -> None:
    engine = _engine(base_s=0.5, per_request_s=0.25)
    job = Job(10)
    engine.submit(job, now=2.0)
    assert engine.next_event() == pytest.approx(9.5)
    assert engine.advance(9.4) == []
    assert engine.tokens(job) == 9
    assert engine.advance(9.5) == [job]
    assert (job.state, job.tokens, job.ended_at) == ("finished", 10, pytest.approx(9.5))
    assert engine.advance(100.0) == []


def test_each_request_slows_the_others_down() -> None:
    engine = _engine(base_s=0.0001, per_request_s=1.0)
    first, second = Job(10), Job(10)
    engine.submit(first, now=0.0)
    engine.submit(second, now=5.0)  # the first has 5 tokens; from here a token takes two seconds
    assert engine.advance(15.0) == []
    assert engine.advance(15.1) == [first]
    # The second has 5 of its 10 by then, and goes on alone at a second each.
    assert engine.next_event() == pytest.approx(20.0, abs=0.01)


def test_a_late_look_replays_finishes_and_admissions_at_their_times() -> None:
    engine = _engine(slots=1)
    jobs = [Job(3), Job(2), Job(4)]
    for job in jobs:
        engine.submit(job, now=0.0)
    assert (engine.running, engine.waiting) == (1, 2)
    assert engine.advance(1000.0) == jobs
    assert [job.admitted_at for job in jobs] == [0.0, 3.0, 5.0]
    assert [job.ended_at for job in jobs] == [3.0, 5.0, 9.0]


def test_the_queue_is_first_in_first_out_and_limited() -> None:
    engine = _engine(slots=1, queue_limit=1)
    assert not engine.is_full()
    engine.submit(Job(5), now=0.0)
    assert not engine.is_full()
    engine.submit(Job(5), now=0.0)
    assert engine.is_full()
    engine.advance(5.0)
    assert not engine.is_full()
    # Requests that arrive together all pass the queue, even on an idle server.
    assert _engine(slots=1, queue_limit=1).is_full(4)
    assert not _engine(slots=1).is_full(4)


def test_an_abort_keeps_what_was_made_and_frees_the_slot() -> None:
    engine = _engine(slots=1)
    running, waiting, behind = Job(100), Job(100), Job(1)
    for job in (running, waiting, behind):
        engine.submit(job, now=0.0)
    assert engine.abort(waiting, now=1.0)
    assert engine.abort(running, now=7.5)
    assert (running.tokens, waiting.tokens) == (7, 0)
    assert (behind.state, behind.admitted_at) == ("running", 7.5)
    assert not engine.abort(running, now=8.0)
    assert engine.advance(8.5) == [behind]
    assert (engine.running, engine.waiting, engine.next_event()) == (0, 0, None)


def test_a_pause_stops_time_and_admission() -> None:
    engine = _engine(slots=2)
    first, second = Job(10), Job(1)
    engine.submit(first, now=0.0)
    engine.pause(now=4.0)
    engine.submit(second, now=5.0)
    assert engine.advance(50.0) == []
    assert (engine.tokens(first), second.state, engine.next_event()) == (4, "waiting", None)
    engine.resume(now=100.0)
    assert engine.advance(200.0) == [second, first]
    assert (second.ended_at, first.ended_at) == (101.0, 106.0)


def test_slowing_down_counts_from_now_on() -> None:
    engine = _engine()
    job = Job(10)
    engine.submit(job, now=0.0)
    engine.slow_down(1.0, now=5.0)
    assert engine.next_event() == pytest.approx(15.0)


def test_an_empty_answer_ends_when_it_is_admitted() -> None:
    engine = _engine(slots=1)
    job = Job(0)
    engine.submit(job, now=3.0)
    assert engine.advance(3.0) == [job]
    assert (job.tokens, job.ended_at) == (0, 3.0)


def test_a_job_cut_short_by_a_fault_ends_there() -> None:
    engine = _engine()
    job = Job(10, stop_at=4)
    engine.submit(job, now=0.0)
    assert engine.advance(4.0) == [job]
    assert job.tokens == 4


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    slots=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_the_outcome_does_not_depend_on_when_it_is_looked_at(lengths: list[int], slots: int, seed: int) -> None:
    rng = random.Random(seed)
    arrivals = sorted(rng.uniform(0, 50) for _ in lengths)
    ends: list[list[float]] = []
    for looks in (0, 200):
        engine = _engine(slots=slots, base_s=0.3, per_request_s=0.2)
        jobs = [Job(length) for length in lengths]
        times = [(at, job) for at, job in zip(arrivals, jobs, strict=True)]
        times += [(rng.uniform(0, 100), None) for _ in range(looks)]
        for at, job in sorted(times, key=lambda pair: pair[0]):
            if job is None:
                engine.advance(at)
            else:
                engine.submit(job, at)
            assert engine.running <= slots
        engine.advance(1e6)
        assert all(job.state == "finished" and job.tokens == job.length for job in jobs)
        ends.append([job.ended_at for job in jobs])
    assert ends[0] == pytest.approx(ends[1])
