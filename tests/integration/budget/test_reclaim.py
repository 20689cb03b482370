"""What becomes of a dead worker's jobs: all of them come back, and only the guilty are charged."""

from budget import keys, rules, runbook, verbs
from budget.ledger import Ledger
from budget.sweep import sweep
from tests.ledgers import LEASE_MS, Rig
from tests.support import wait_until


def fill(rig: Rig, dataset: str, count: int) -> list[str]:
    jobs = [f"{dataset}-{number}" for number in range(count)]
    for start in range(0, count, verbs.ENQUEUE_BATCH):
        rig.enqueue(dataset, *jobs[start : start + verbs.ENQUEUE_BATCH])
    return jobs


def deaths(rig: Rig, job: str) -> str | None:
    return rig.hash(job).get("deaths")


def test_brings_a_dead_workers_jobs_back_to_the_front_of_all_queues(rig: Rig) -> None:
    fill(rig, "A", 3)
    fill(rig, "B", 3)
    rig.claim("w1", 4)
    rig.claim("w2", 1)
    assert rig.reclaim("w1") == [verbs.Death(worker="w1", requeued=4, rejected=0)]
    assert sorted(rig.queue("A")[:2]) == ["A-0", "A-1"]
    assert sorted(rig.queue("B")[:2]) == ["B-0", "B-1"]
    assert rig.hash("A-0")["status"] == "queued"
    assert deaths(rig, "A-0") == "1"
    rig.check()
    assert rig.reclaim("w1") == []
    rig.check()


def test_takes_leases_that_ran_out_only_in_a_redis_that_was_heard_for_a_lease(rig: Rig) -> None:
    fill(rig, "A", 2)
    rig.claim("w1", 2)
    rig.expire("w1")
    rig.connection.delete(keys.SEEN)
    assert rig.reclaim() == []
    assert rig.connection.exists(keys.SEEN)
    seconds = rig.connection.time()[0]
    rig.connection.set(keys.SEEN, (seconds * 1000) - LEASE_MS // 2)
    assert rig.reclaim() == []
    rig.listen()
    assert rig.reclaim() == [verbs.Death(worker="w1", requeued=2, rejected=0)]
    rig.check()


def test_a_live_lease_stays(rig: Rig) -> None:
    fill(rig, "A", 2)
    rig.claim("w1", 2)
    rig.listen()
    assert rig.reclaim() == []
    assert rig.connection.hlen(keys.leases("A")) == 2


def test_the_death_is_the_suspects_alone(rig: Rig) -> None:
    fill(rig, "A", 4)
    rig.connection.hset(keys.rq_job("A-2"), "deaths", 2)
    rig.claim("w1", 4)
    rig.reclaim("w1")
    assert [deaths(rig, f"A-{number}") for number in range(4)] == ["0", "0", "3", "0"]


def test_the_third_death_goes_to_the_back_and_the_fourth_is_the_end(rig: Rig) -> None:
    fill(rig, "A", 2)
    seen: list[list[str]] = []
    for _ in range(2):
        rig.claim("w1", 1)
        rig.reclaim("w1")
        seen.append(rig.queue("A"))
    rig.claim("w1", 1)
    rig.reclaim("w1")
    seen.append(rig.queue("A"))
    assert seen == [["A-0", "A-1"], ["A-0", "A-1"], ["A-1", "A-0"]]
    rig.commit(rig.lease("w2"), 5)
    rig.claim("w1", 1)
    assert rig.reclaim("w1") == [verbs.Death(worker="w1", requeued=0, rejected=1)]
    entry = rig.connection.xrange(keys.results("A"))[-1][1]
    assert entry == {b"kind": b"poison", b"job": b"A-0", b"data": b"data of A-0", b"deaths": b"4", b"attempts": b"4"}
    assert rig.hash("A-0") == {}
    rig.check()


def test_who_dies_beside_a_suspect_again_is_charged_too(rig: Rig) -> None:
    """One that ends workers must not ride beside innocent suspects for ever."""
    fill(rig, "A", 3)
    rig.connection.hset(keys.rq_job("A-2"), "deaths", 2)
    seen: list[tuple[str | None, str | None]] = []
    for _ in range(3):
        rig.claim("w1", 3)
        rig.reclaim("w1")
        seen.append((deaths(rig, "A-0"), rig.hash("A-2").get("deaths")))
    assert seen == [("0", "3"), ("1", None), ("2", None)], "the suspect died twice more, and is rejected"
    rig.check()


def test_a_clock_that_was_put_back_since_the_collector_began_hides_no_death(rig: Rig) -> None:
    fill(rig, "A", 1)
    rig.connection.hset(keys.RUN, "began", (rig.connection.time()[0] + 3600) * 1000)
    rig.claim("w1", 1)
    rig.reclaim("w1")
    assert deaths(rig, "A-0") == "1"


def test_where_others_die_too_four_deaths_prove_nothing(rig: Rig) -> None:
    """Each death but one that it had no part in asks for one more of its own; eight are enough whatever the others."""
    fill(rig, "A", 1)
    for count in range(1, rules.MOST_DEATHS + 1):
        rig.claim("w1", 1)
        (death,) = rig.reclaim("w1")
        assert death.rejected == (count == rules.MOST_DEATHS), f"at its death {count}"
        rig.count_deaths(3)
    rig.check()


def test_those_that_died_before_it_was_a_suspect_do_not_matter(rig: Rig) -> None:
    fill(rig, "A", 1)
    rig.count_deaths(50)
    for _ in range(2):
        rig.claim("w1", 1)
        rig.reclaim("w1")
        rig.count_deaths(50)
    rig.connection.hincrby(keys.RUN, "deaths", -50)
    lost = [rig.reclaim("w1")[0].rejected for _ in range(2) if rig.claim("w1", 1)]
    assert lost == [0, 1]


def test_a_run_that_went_down_as_a_whole_charges_nobody(rig: Rig) -> None:
    """A reboot kills workers and collector: whoever took no job since the collector began died with the last one."""
    jobs = fill(rig, "A", 3)

    def begin() -> None:
        """In another millisecond than what was claimed before."""
        before = rig.connection.time()
        wait_until(lambda: rig.connection.time() > (before[0], before[1] + 1000))
        runbook.note_beginning(rig.connection)

    for _ in range(9):
        rig.claim("w1", 3)
        begin()
        assert rig.reclaim("w1") == [verbs.Death(worker="w1", requeued=3, rejected=0)]
    assert {deaths(rig, job) for job in jobs} == {"0"}
    rig.claim("w1", 2)
    begin()
    rig.claim("w1", 1)
    rig.reclaim("w1")
    assert {deaths(rig, job) for job in jobs} == {"1"}, "it lived when the collector began"
    assert rig.connection.hget(keys.RUN, "deaths") == b"1"
    rig.check()


def test_of_a_crowd_killed_at_once_nobody_held_the_poison(rig: Rig) -> None:
    """Half of 64 workers are killed three times, and their jobs are in flight again at once."""
    fill(rig, "A", 64)
    for _ in range(3):
        crowd = [f"w{number}" for number in range(32)]
        for worker in crowd:
            rig.claim(worker, 2)
        swept = [death for start in range(0, 32, 8) for death in rig.reclaim(*crowd[start : start + 8])]
        assert not any(death.rejected for death in swept)
    rig.check()


def test_a_server_that_died_is_charged_by_the_same_rule(rig: Rig) -> None:
    fill(rig, "A", 1)
    answers: list[str] = []
    while rig.queue("A"):
        lease = rig.lease()
        rig.count_deaths(1 if len(answers) != 2 else 4)  # its own server's, and once three more beside
        answers.append(rig.release(lease, "deaths"))
    assert answers == ["released"] * 5 + ["poison"]
    assert rig.connection.xrange(keys.results("A"))[-1][1][b"deaths"] == b"6"
    rig.check()


def test_a_hollow_hash_only_loses_its_lease(rig: Rig) -> None:
    fill(rig, "A", 1)
    rig.claim("w1", 1)
    rig.connection.delete(keys.rq_job("A-0"))
    rig.reclaim("w1")
    assert (rig.hash("A-0"), rig.queue("A")) == ({}, [])
    rig.check()


def test_a_worker_with_more_jobs_than_the_limit_is_taken_as_one(rig: Rig) -> None:
    jobs = fill(rig, "A", verbs.RECLAIM_LIMIT + 50)
    rig.connection.hset(keys.rq_job("A-7"), "deaths", 2)
    assert sum(len(rig.claim("w1", 525).leases) for _ in range(2)) == len(jobs)
    assert rig.reclaim("w1") == [verbs.Death(worker="w1", requeued=len(jobs), rejected=0)]
    assert deaths(rig, "A-7") == "3"
    assert {deaths(rig, job) for job in jobs if job != "A-7"} == {"0"}
    rig.check()


def test_more_dead_workers_than_one_call_takes_are_all_swept(rig: Rig) -> None:
    fill(rig, "A", 1500)
    rig.listen()
    for worker in ("w1", "w2", "w3"):
        rig.claim(worker, 500)
    rig.expire("w1", "w2", "w3")
    swept = sweep(Ledger(rig.connection), rig.datasets, LEASE_MS)
    assert {death.worker: death.requeued for death in swept} == {"w1": 500, "w2": 500, "w3": 500}
    rig.check()


def test_a_lease_that_its_worker_never_heard_of_is_not_the_workers_death(rig: Rig) -> None:
    # The answer of a claim was lost for good: the worker renews all that it knows, and this one runs out.
    fill(rig, "A", 3)
    lost = rig.lease()
    known = rig.claim("w1", 2).leases
    rig.renew(*known)
    rig.listen()
    rig.connection.zadd(keys.expiry("A"), {lost.job: 1})
    rig.reclaim()
    assert rig.queue("A") == [lost.job]
    assert deaths(rig, lost.job) == "0"
    assert rig.renew(*known) == ["held", "held"]
    rig.check()


def test_a_dying_workers_leases_are_taken_together_when_the_last_has_run_out(rig: Rig) -> None:
    # Claimed after the last renewal: these run out a little later than the others, and are charged with them.
    fill(rig, "A", 2)
    rig.claim("w1", 1)
    rig.expire("w1", by_ms=LEASE_MS // 3)
    rig.claim("w1", 1)
    rig.listen()
    assert rig.reclaim() == []
    rig.expire("w1")
    assert rig.reclaim() == [verbs.Death(worker="w1", requeued=2, rejected=0)]
    assert (deaths(rig, "A-0"), deaths(rig, "A-1")) == ("1", "1")


def test_what_rqs_own_worker_popped_too_late_holds_nobody_up(rig: Rig) -> None:
    """RQ passes over an id without a hash, and leaves it in its intermediate list for good."""
    fill(rig, "A", 2)
    lease = rig.lease()
    rig.commit(lease, 5)
    (waiting,) = rig.queue("A")
    rig.connection.rpush(keys.rq_intermediate("A"), lease.job, lease.job, waiting)
    rig.reclaim()
    assert rig.connection.lrange(keys.rq_intermediate("A"), 0, -1) == [waiting.encode()]
