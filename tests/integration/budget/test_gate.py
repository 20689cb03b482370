"""When a dataset's gate is open: the three admissions, the caps, and what `full` and a raised cap do."""

import pytest

from budget import keys, runbook
from budget.protocol import PROTOCOL
from tests.ledgers import Rig


def state(rig: Rig, dataset: str = "A", k: int = 1, **more: int) -> str:
    return rig.claim("probe", k, **more).gates[dataset].state


def fill(rig: Rig, dataset: str, count: int, worst: int = 100) -> None:
    rig.enqueue(dataset, *[f"{dataset}-{number}" for number in range(count)], worst=worst)


class TestForecast:
    def test_takes_jobs_until_what_is_reserved_reaches_the_cap(self, rig: Rig) -> None:
        rig.cap("A", 100)
        fill(rig, "A", 20)
        claimed = rig.claim("w1", 20, reserve=30)
        assert len(claimed.leases) == 4
        assert claimed.gates["A"].state == "gated"

    def test_one_job_may_always_run_below_the_cap(self, rig: Rig) -> None:
        rig.cap("A", 100)
        fill(rig, "A", 3)
        assert len(rig.claim("w1", 3, reserve=5000).leases) == 1

    def test_an_answer_shorter_than_reserved_opens_it_again(self, rig: Rig) -> None:
        rig.cap("A", 100)
        fill(rig, "A", 9)
        first, _ = rig.claim("w1", 9, reserve=60).leases
        rig.commit(first, 10)
        assert len(rig.claim("w1", 9, reserve=60).leases) == 1

    def test_is_complete_at_the_cap(self, rig: Rig) -> None:
        rig.cap("A", 100)
        fill(rig, "A", 3)
        lease = rig.lease()
        rig.commit(lease, 100)
        assert state(rig) == "complete"

    def test_the_total_cap_counts_datasets_that_this_worker_does_not_serve(self, rig: Rig) -> None:
        rig.connection.hset(keys.RUN, "max_tokens_total", 100)
        fill(rig, "A", 9)
        fill(rig, "B", 9)
        rig.claim("w1", 2, reserve=45, datasets=["B"])
        claimed = rig.claim("w2", 9, reserve=45, datasets=["A"])
        assert len(claimed.leases) == 1
        assert claimed.gates["A"].state == "gated"

    def test_the_total_cap_completes_all(self, rig: Rig) -> None:
        rig.connection.hset(keys.RUN, "max_tokens_total", 100)
        fill(rig, "A", 2)
        fill(rig, "B", 2)
        rig.commit(rig.lease(datasets=["A"]), 100)
        assert {gate.state for gate in rig.claim().gates.values()} == {"complete"}
        assert rig.drop("B") == (2, 0)

    def test_samples_are_counted_with_those_in_flight(self, rig: Rig) -> None:
        rig.connection.hset(keys.budget("A"), "max_samples", 3)
        fill(rig, "A", 9)
        leases = rig.claim("w1", 9, datasets=["A"]).leases
        assert len(leases) == 3
        rig.release(leases[0])
        assert len(rig.claim("w1", 9, datasets=["A"]).leases) == 1
        for lease in leases[1:]:
            rig.commit(lease, 5)
        assert state(rig) == "gated"

    def test_a_cap_of_nothing_is_complete_and_none_is_never(self, rig: Rig) -> None:
        fill(rig, "A", 2)
        rig.cap("A", 0)
        assert state(rig) == "complete"
        rig.cap("A", None)
        rig.commit(rig.lease(reserve=10**9), 10**9)
        assert state(rig, reserve=10**9) == "open"


class TestDrain:
    def test_goes_on_until_the_counter_passes_the_cap(self, rig: Rig) -> None:
        rig.admission = "drain"
        rig.cap("A", 100)
        fill(rig, "A", 50)
        leases = rig.claim("w1", 40, reserve=0).leases
        assert len(leases) == 40
        for lease in leases[:3]:
            rig.commit(lease, 40)
        assert state(rig, reserve=0) == "complete"
        rig.check()


class TestStrict:
    @pytest.fixture
    def strict(self, rig: Rig) -> Rig:
        rig.admission = "strict"
        return rig

    def test_reserves_the_worst_case_and_never_passes_the_cap(self, strict: Rig) -> None:
        strict.cap("A", 350)
        fill(strict, "A", 9, worst=100)
        leases = strict.claim("w1", 9, reserve=1).leases
        assert len(leases) == 3
        assert strict.field("A", "reserved") == "300"
        for lease in leases:
            strict.commit(lease, 100)
        assert strict.spent("A") == 300
        assert state(strict) == "complete"
        assert strict.field("A", "full") == "1"

    def test_is_full_only_when_nothing_in_flight_could_make_room(self, strict: Rig) -> None:
        strict.cap("A", 150)
        fill(strict, "A", 9, worst=100)
        lease = strict.lease()
        assert state(strict) == "gated"
        strict.commit(lease, 10)
        assert len(strict.claim("w1", 1, datasets=["A"]).leases) == 1

    def test_a_raised_cap_ends_full_and_a_lowered_one_does_not(self, strict: Rig) -> None:
        strict.cap("A", 150)
        fill(strict, "A", 9, worst=100)
        strict.commit(strict.lease(), 100)
        assert state(strict) == "complete"
        strict.cap("A", 140)
        assert strict.field("A", "full") == "1"
        strict.cap("A", 250)
        assert strict.field("A", "full") is None
        assert len(strict.claim("w1", 1, datasets=["A"]).leases) == 1

    def test_less_spent_ends_full(self, strict: Rig) -> None:
        strict.cap("A", 150)
        fill(strict, "A", 9, worst=100)
        strict.commit(strict.lease(), 100)
        assert state(strict) == "complete"
        strict.forget("A", "A-0")
        assert strict.field("A", "full") is None

    def test_the_total_cap_does_not_fill_a_dataset_while_another_is_in_flight(self, strict: Rig) -> None:
        strict.connection.hset(keys.RUN, "max_tokens_total", 150)
        fill(strict, "A", 9, worst=100)
        fill(strict, "B", 9, worst=100)
        lease = strict.lease(datasets=["A"])
        assert state(strict, "B") == "gated"
        assert strict.adopt("B", "B-0").status == "wait"
        assert strict.field("B", "full") is None
        strict.commit(lease, 10)
        assert strict.lease(datasets=["B"]).job == "B-0"

    def test_the_total_cap_fills_all_when_nothing_is_in_flight(self, strict: Rig) -> None:
        strict.connection.hset(keys.RUN, "max_tokens_total", 150)
        fill(strict, "A", 9, worst=100)
        fill(strict, "B", 9, worst=100)
        strict.commit(strict.lease(datasets=["A"]), 100)
        assert {gate.state for gate in strict.claim().gates.values()} == {"complete"}
        publish(strict, 300)
        assert (strict.field("A", "full"), strict.field("B", "full")) == (None, None)
        assert len(strict.claim("w1", 2).leases) == 2

    def test_a_job_that_does_not_say_its_worst_case_reserves_the_datasets(self, strict: Rig) -> None:
        strict.cap("A", 150)
        fill(strict, "A", 2, worst=100)
        for job in ("A-0", "A-1"):
            strict.connection.hdel(keys.rq_job(job), "worst")
        assert len(strict.claim("w1", 2, datasets=["A"]).leases) == 1
        assert strict.field("A", "reserved") == "100"
        assert strict.adopt("A", "A-1").status == "wait"

    def test_a_stock_workers_job_fills_too(self, strict: Rig) -> None:
        strict.cap("A", 99)
        fill(strict, "A", 1, worst=100)
        strict.connection.lpop(keys.rq_queue("A"))
        assert strict.adopt("A", "A-0").status == "complete"
        assert strict.field("A", "full") == "1"
        assert strict.connection.smembers(keys.dropped("A")) == {b"A-0"}


def publish(rig: Rig, total: int | None) -> None:
    runbook.publish(
        rig.connection,
        config=b"{}",
        name="run",
        output_id="folder",
        protocol=PROTOCOL,
        fingerprints={},
        max_tokens_total=total,
        max_samples=dict.fromkeys(rig.datasets),
    )


def test_suspects_do_not_keep_others_from_their_turn(rig: Rig) -> None:
    fill(rig, "A", 6)
    for number in range(5):
        rig.connection.hset(keys.rq_job(f"A-{number}"), "deaths", 2)
    claimed = rig.claim("w1", 6, datasets=["A"])
    assert [lease.job for lease in claimed.leases] == ["A-0", "A-5"]
    assert claimed.leases[0].suspect
    assert rig.queue("A") == ["A-1", "A-2", "A-3", "A-4"]
    assert rig.claim("w1", 6, datasets=["A"], holds_suspect=True).leases == []
    assert [lease.job for lease in rig.claim("w2", 6, datasets=["A"]).leases] == ["A-1"]
    rig.check()


def test_a_suspect_counts_over_all_datasets_of_a_claim(rig: Rig) -> None:
    fill(rig, "A", 1)
    fill(rig, "B", 1)
    for job in ("A-0", "B-0"):
        rig.connection.hset(keys.rq_job(job), "deaths", 3)
    assert len(rig.claim("w1", 4).leases) == 1


def test_a_job_of_somebody_else_leaves_the_queue_and_is_no_prompt_of_ours(rig: Rig) -> None:
    rig.cap("A", 0)
    rig.connection.rpush(keys.rq_queue("A"), "a-job-of-somebody-else", "B-1")
    assert rig.drop("A") == (0, 0)
    assert rig.connection.scard(keys.dropped("A")) == 0
