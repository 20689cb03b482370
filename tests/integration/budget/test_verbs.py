"""Each verb: what it does, that a repetition does nothing more, and that a lease of another is not touched."""

import pytest
import redis

from budget import keys, verbs
from budget.verbs import Lease
from tests.ledgers import LEASE_MS, NOW, Rig, dump


def other(lease: Lease) -> Lease:
    return Lease(
        dataset=lease.dataset, job=lease.job, token="foreign-1", data=lease.data, attempt=1, failures=0, deaths=0
    )


class TestEnqueue:
    def test_queues_whole_jobs_in_order(self, rig: Rig) -> None:
        answer = rig.enqueue("A", "A-1", "A-2", worst=512, inputs=9)
        assert (answer.status, answer.added, answer.queued) == ("ok", 2, 2)
        assert rig.queue("A") == ["A-1", "A-2"]
        job = rig.hash("A-1")
        assert job["data"] == "data of A-1"
        assert (job["status"], job["origin"], job["worst"]) == ("queued", "A", "512")
        assert (job["attempt"], job["failures"], job["deaths"]) == ("0", "0", "0")
        assert rig.field("A", "inputs") == "9"
        assert rig.field("A", "worst") == "512"
        assert rig.connection.smembers(keys.RQ_QUEUES) == {b"rq:queue:A"}

    def test_a_repetition_queues_nothing_twice(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2", "A-1")
        before = dump(rig.connection)
        assert rig.enqueue("A", "A-1", "A-2").added == 0
        assert dump(rig.connection) == before

    def test_skips_done_and_leased_ids(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        rig.commit(rig.lease(), 5)
        rig.lease()
        assert rig.enqueue("A", "A-1", "A-2", everything=True).added == 0

    def test_overwrites_a_hash_that_is_not_waiting(self, rig: Rig) -> None:
        rig.connection.hset(keys.rq_job("A-1"), mapping={"status": "failed", "data": "x", "exc_info": "y", "deaths": 2})
        rig.connection.hset(keys.rq_job("A-2"), mapping={"status": "queued"})
        assert rig.enqueue("A", "A-1", "A-2").added == 2
        assert rig.hash("A-1")["data"] == "data of A-1"
        assert rig.hash("A-1")["deaths"] == "2"
        assert "exc_info" not in rig.hash("A-1")

    def test_what_rq_called_failed_or_cancelled_is_so_no_more(self, rig: Rig) -> None:
        rig.connection.zadd(keys.rq_failed("A"), {"A-1": 1, "A-9": 1})
        rig.connection.zadd(keys.rq_canceled("A"), {"A-2": 1})
        assert rig.enqueue("A", "A-1", "A-2").added == 2
        assert rig.connection.zrange(keys.rq_failed("A"), 0, -1) == [b"A-9"], "`rq requeue --all` would queue it twice"
        assert not rig.connection.exists(keys.rq_canceled("A"))

    def test_everything_finds_lost_jobs_only_when_nothing_is_on_its_way(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        assert rig.enqueue("A", "A-1", "A-2", everything=True).added == 0
        rig.connection.delete(keys.rq_queue("A"))
        assert rig.enqueue("A", "A-1", "A-2").added == 0
        rig.connection.rpush(keys.rq_intermediate("A"), "A-1")
        assert rig.enqueue("A", "A-1", "A-2", everything=True).added == 0
        rig.connection.delete(keys.rq_intermediate("A"))
        assert rig.enqueue("A", "A-1", "A-2", everything=True).added == 2

    def test_the_end_of_an_empty_pass_exhausts_and_more_prompts_end_that(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        assert rig.enqueue("A", pass_ends_with=0).status == "ok"
        lease = rig.lease()
        assert rig.enqueue("A", pass_ends_with=0).status == "ok"
        rig.commit(lease, 5)
        assert rig.enqueue("A", pass_ends_with=1).status == "ok"
        assert rig.enqueue("A", pass_ends_with=0, everything=True).status == "exhausted"
        assert rig.enqueue("A", pass_ends_with=0, everything=True).status == "exhausted"
        assert rig.claim().gates["A"].state == "complete"
        assert rig.enqueue("A", "A-2").status == "ok"
        assert rig.field("A", "exhausted") is None

    def test_takes_dropped_ids_back_under_a_raised_cap(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        rig.cap("A", 0)
        assert rig.drop("A") == (2, 0)
        assert rig.enqueue("A", "A-1").status == "complete"
        rig.cap("A", 10)
        assert rig.enqueue("A", "A-1").added == 1
        assert rig.connection.smembers(keys.dropped("A")) == {b"A-2"}

    def test_waits_until_the_files_are_seeded_into_this_very_redis(self, rig: Rig) -> None:
        rig.connection.set(keys.READY, "0" * 40)
        assert rig.enqueue("A", "A-1").status == "notready"
        rig.connection.delete(keys.READY)
        assert rig.enqueue("A", "A-1").status == "notready"
        assert not rig.connection.exists(keys.rq_job("A-1"))


class TestClaim:
    def test_leases_in_turn_and_reserves(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2", "A-3")
        rig.enqueue("B", "B-1")
        claimed = rig.claim("w1", 3, nonce="n", reserve=7)
        assert [lease.job for lease in claimed.leases] == ["A-1", "A-2", "B-1"]
        assert [lease.token for lease in claimed.leases] == ["n-1", "n-3", "n-2"]
        assert claimed.leases[0].data == b"data of A-1"
        assert {lease.attempt for lease in claimed.leases} == {1}
        assert claimed.gates["A"].queued == 1
        assert rig.field("A", "reserved") == "14"
        assert rig.hash("A-1")["status"] == "started"
        assert rig.hash("A-1")["worker_name"] == "w1"
        rig.check()

    def test_a_repeated_nonce_is_answered_with_the_same_jobs(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2", "A-3")
        call = rig.claim_call("w1", 2)
        first = rig.run(call)
        before = dump(rig.connection)
        assert rig.run(call) == first
        assert dump(rig.connection) == before
        assert [lease.job for lease in rig.claim("w2", 2).leases] == ["A-3"]

    def test_a_repetition_leaves_out_what_is_held_no_more(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2", "A-3")
        call = rig.claim_call("w1", 3)
        first, second, third = rig.run(call).leases
        rig.commit(first, 5)
        rig.release(second)
        again = rig.lease("w2")
        assert again.job == "A-2"
        assert rig.run(call).leases == [third]

    def test_passes_over_done_leased_and_hollow_ids(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2", "A-3", "A-4")
        rig.seed("A", ("A-1", 5))
        lease = rig.lease()
        assert lease.job == "A-2"
        rig.connection.lpush(keys.rq_queue("A"), "A-2", "A-9")
        rig.connection.hset(keys.rq_job("A-3"), "status", "queued")
        rig.connection.hdel(keys.rq_job("A-3"), "data")
        assert [lease.job for lease in rig.claim("w2", 5).leases] == ["A-4"]
        assert rig.hash("A-1") == {}
        assert "attempt" in rig.hash("A-3")
        assert rig.hash("A-3")["status"] == "queued"
        assert rig.hash("A-9") == {}
        assert rig.queue("A") == []

    def test_an_id_that_is_queued_twice_is_taken_once(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        rig.connection.rpush(keys.rq_queue("A"), "A-1", "A-2", "A-1")
        assert [lease.job for lease in rig.claim("w1", 5).leases] == ["A-1", "A-2"]
        rig.check()

    def test_looks_at_no_more_than_a_thousand_ids(self, rig: Rig) -> None:
        rig.connection.rpush(keys.rq_queue("A"), *[f"A-gone{number}" for number in range(2500)])
        rig.enqueue("A", "A-1")
        states = [rig.claim("w1", 1) for _ in range(3)]
        assert [len(claimed.leases) for claimed in states] == [0, 0, 1]
        assert [claimed.gates["A"].state for claimed in states] == ["open", "open", "open"]
        assert [claimed.gates["A"].queued for claimed in states] == [1501, 501, 0]

    def test_says_why_there_is_nothing(self, rig: Rig) -> None:
        rig.connection.hdel(keys.budget("B"), "cap")
        assert {name: gate.state for name, gate in rig.claim().gates.items()} == {"A": "empty", "B": "closed"}
        rig.enqueue("A", "A-1")
        rig.run(verbs.commit(lease=rig.lease(), worker="w1", tokens=5, truncated=False, line=b""))
        rig.enqueue("A", "A-2")
        refused = rig.claim(max_waiting=1, nonce="n")
        assert (refused.gates["A"].state, refused.waiting) == ("backlog", 1)
        assert rig.claim(max_waiting=1, nonce="n") == refused
        rig.connection.set(keys.RQ_SUSPENDED, 1)
        assert rig.claim().status == "suspended"
        rig.connection.delete(keys.READY)
        assert rig.claim().status == "notready"


class TestRenew:
    def test_prolongs_and_revises(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease(lease_ms=LEASE_MS // 2)
        before = rig.connection.zscore(keys.expiry("A"), "A-1")
        for _ in range(2):
            assert rig.renew(lease, reserved=99, age=1000) == ["held"]
            assert rig.field("A", "reserved") == "99"
            assert rig.connection.zscore(keys.expiry("A"), "A-1") > before
            rig.check()

    def test_tells_what_is_done_or_taken_and_leaves_it_alone(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        first, second = rig.claim("w1", 2).leases
        rig.commit(first, 5)
        before = dump(rig.connection)
        assert rig.renew(first, other(second), reserved=99) == ["done", "taken"]
        before[keys.SEEN] = rig.connection.get(keys.SEEN)
        assert dump(rig.connection) == before

    def test_leases_anew_what_a_lost_redis_forgot(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.connection.flushall()
        assert rig.renew(lease, reserved=20, age=100) == ["held"]
        assert rig.hash("A-1") == {}
        rig.check()
        assert rig.commit(lease, 7) == (True, 7)
        rig.check()

    def test_a_job_named_twice_is_leased_once(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.connection.flushall()
        for reserved in (20, 30):
            assert rig.renew(lease, lease, reserved=reserved, age=reserved * 10) == ["held", "held"]
            rig.check()

    def test_what_was_dropped_meanwhile_is_not_dropped_any_more(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.reclaim("w1")
        rig.cap("A", 0)
        assert rig.drop("A") == (1, 0)
        assert rig.renew(lease) == ["held"]
        rig.check()
        rig.commit(lease, 3)
        rig.check()


class TestCommit:
    def test_a_record_without_its_texts_is_stored_beside_what_tells_them(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        call = verbs.commit(lease=lease, worker="w1", tokens=5, truncated=False, line=b"told", told_by="d" * 32)
        before = dump(rig.connection)
        with pytest.raises(verbs.Untold):
            rig.run(call)
        assert dump(rig.connection) == before
        rig.connection.set(keys.pieces("d" * 32), b"pieces")
        assert rig.run(call) == (True, 5)
        rig.connection.delete(keys.pieces("d" * 32))
        assert rig.run(call) == (False, 5), "what is stored already is a success"

    def test_stores_spends_and_settles(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        rig.connection.hset(keys.rq_worker("w1"), "successful_job_count", 4)
        rig.connection.zadd(keys.rq_failed("A"), {"A-1": 1})
        rig.connection.zadd(keys.rq_canceled("A"), {"A-1": 1})
        assert rig.commit(rig.lease(), 321, truncated=True) == (True, 321)
        assert rig.spent("A") == 321
        assert (rig.field("A", "committed"), rig.field("A", "truncated")) == ("1", "1")
        ((_, entry),) = rig.connection.xrange(keys.results("A"))
        assert entry == {b"kind": b"commit", b"job": b"A-1", b"tokens": b"321", b"truncated": b"1", b"line": b"line"}
        assert rig.hash("A-1") == {}
        assert rig.connection.hget(keys.rq_worker("w1"), "successful_job_count") == b"5"
        assert not rig.connection.exists(keys.rq_failed("A"), keys.rq_canceled("A"), keys.rq_started("A"))
        rig.check()

    def test_a_repetition_is_a_success_that_changes_nothing(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.commit(lease, 5)
        before = dump(rig.connection)
        assert rig.commit(lease, 5) == (False, 5)
        assert rig.commit(other(lease), 6) == (False, 5)
        assert dump(rig.connection) == before

    def test_a_late_answer_is_used_and_settles_the_lease_of_now(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        late = rig.lease("w1")
        rig.reclaim("w1")
        rig.lease("w2", reserve=50)
        assert rig.commit(late, 5) == (True, 5)
        assert rig.field("A", "reserved") == "0"
        rig.check()

    def test_a_job_that_reserves_nothing(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        rig.commit(rig.lease(reserve=0), 5)
        rig.check()
        assert rig.release(rig.lease(reserve=0)) == "released"
        rig.check()

    def test_counters_beyond_what_a_float_can_hold_are_exact(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        rig.seed("A", ("A-big", 2**53))
        rig.commit(rig.lease(), 1)
        assert rig.spent("A") == 2**53 + 1

    def test_reservations_of_many_digits(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease(reserve=10**15 + 1)
        assert rig.field("A", "reserved") == str(10**15 + 1)
        rig.renew(lease, reserved=10**15 + 3)
        assert rig.field("A", "reserved") == str(10**15 + 3)
        rig.commit(lease, 10**15 + 7)
        assert rig.spent("A") == 10**15 + 7
        rig.check()

    def test_needs_no_seeded_redis(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.connection.flushall()
        assert rig.commit(lease, 5) == (True, 5)
        assert rig.commit(lease, 5) == (False, 5)
        rig.check()


class TestReject:
    def test_ends_the_prompt_with_its_reason(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        assert rig.reject(lease) == "rejected"
        before = dump(rig.connection)
        assert rig.reject(lease) == "done"
        assert dump(rig.connection) == before
        assert rig.spent("A") == 0
        assert rig.field("A", "rejected") == "1"
        assert rig.hash("A-1") == {}
        ((_, entry),) = rig.connection.xrange(keys.results("A"))
        assert entry == {b"kind": b"reject", b"job": b"A-1", b"line": b"rejected"}
        rig.check()

    def test_leaves_another_attempt_alone(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        before = dump(rig.connection)
        assert rig.reject(other(lease)) == "taken"
        assert dump(rig.connection) == before

    def test_the_producer_needs_no_lease(self, rig: Rig) -> None:
        assert rig.run(verbs.reject(dataset="A", job="A-1", line=b"")) == "rejected"
        rig.check()

    def test_an_answer_that_comes_after_it_is_not_counted(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.reject(lease)
        assert rig.commit(lease, 5) == (False, 0)
        rig.check()


class TestRelease:
    def test_gives_back_to_the_end_with_what_is_charged(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        lease = rig.lease()
        assert rig.release(lease, "failures") == "released"
        assert rig.queue("A") == ["A-2", "A-1"]
        assert rig.hash("A-1")["failures"] == "1"
        assert rig.hash("A-1")["status"] == "queued"
        before = dump(rig.connection)
        assert rig.release(lease, "failures") == "lost"
        assert dump(rig.connection) == before
        rig.check()

    def test_leaves_another_attempt_alone(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        before = dump(rig.connection)
        assert rig.release(other(lease), "deaths") == "lost"
        assert dump(rig.connection) == before

    def test_a_hollow_hash_is_not_written_to_nor_queued(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.connection.delete(keys.rq_job("A-1"))
        assert rig.release(lease, "failures") == "released"
        assert (rig.hash("A-1"), rig.queue("A")) == ({}, [])
        rig.check()
        assert rig.enqueue("A", "A-1").added == 1

    def test_a_stock_workers_job_is_left_to_rq(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        rig.connection.lpop(keys.rq_queue("A"))
        rig.adopt("A", "A-1")
        adopted = Lease(
            dataset="A", job="A-1", token="stock-1", data=b"", attempt=1, failures=0, deaths=0, adopted=True
        )
        before = rig.hash("A-1")
        assert rig.release(adopted, "failures") == "released"
        assert (rig.hash("A-1"), rig.queue("A")) == (before, [])


class TestAdopt:
    def test_leases_once(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        rig.connection.lpop(keys.rq_queue("A"))
        assert rig.adopt("A", "A-1") == verbs.Adopted(status="ok", attempt=1, failures=0)
        before = dump(rig.connection)
        assert rig.adopt("A", "A-1") == verbs.Adopted(status="ok", attempt=1, failures=0)
        assert rig.adopt("A", "A-1", token="other-1").status == "taken"
        assert dump(rig.connection) == before
        rig.check()

    def test_waits_and_ends_with_the_gate(self, rig: Rig) -> None:
        rig.cap("A", 20)
        rig.enqueue("A", "A-1", "A-2", "A-3")
        first = rig.lease(reserve=20)
        assert rig.adopt("A", "A-2").status == "wait"
        rig.commit(first, 20)
        assert rig.adopt("A", "A-2").status == "complete"
        assert rig.adopt("A", "A-1").status == "done"
        assert rig.connection.smembers(keys.dropped("A")) == {b"A-2"}
        rig.connection.delete(keys.READY)
        assert rig.adopt("A", "A-3").status == "notready"

    def test_a_hollow_hash_stays_hollow(self, rig: Rig) -> None:
        assert rig.adopt("A", "A-1").status == "ok"
        assert rig.hash("A-1") == {}

    def test_a_commit_leaves_its_hash_to_rq(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        rig.connection.lpop(keys.rq_queue("A"))
        rig.adopt("A", "A-1")
        lease = Lease(dataset="A", job="A-1", token="stock-1", data=b"", attempt=1, failures=0, deaths=0, adopted=True)
        assert rig.commit(lease, 5) == (True, 5)
        assert rig.hash("A-1")["data"] == "data of A-1"
        rig.check()


class TestDrop:
    def test_only_what_is_complete_and_in_chunks(self, rig: Rig) -> None:
        rig.enqueue("A", *[f"A-{number}" for number in range(5)])
        assert rig.drop("A") == (-1, 5)
        rig.cap("A", 0)
        assert rig.drop("A", limit=3) == (3, 2)
        assert rig.drop("A", limit=3) == (2, 0)
        assert rig.drop("A", limit=3) == (0, 0)
        assert len(rig.connection.smembers(keys.dropped("A"))) == 5
        assert rig.connection.keys("rq:job:*") == []

    def test_done_and_leased_ids_are_not_dropped(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2", "A-3")
        first = rig.lease()
        rig.commit(first, 5)
        rig.lease()
        rig.connection.lpush(keys.rq_queue("A"), "A-1", "A-2")
        rig.cap("A", 5)
        assert rig.drop("A") == (1, 0)
        assert rig.connection.smembers(keys.dropped("A")) == {b"A-3"}
        rig.check()


class TestRetry:
    def test_brings_back_what_was_rejected_and_nothing_else(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        first, second = rig.claim("w1", 2).leases
        rig.reject(first)
        rig.commit(second, 5)
        rig.enqueue("A", pass_ends_with=0)
        assert rig.field("A", "exhausted") == "1"
        assert rig.retry("A", "A-1", "A-2", "A-3") == 1
        assert rig.field("A", "exhausted") is None
        rig.check()
        assert rig.retry("A", "A-1", "A-2", "A-3") == 0
        kinds = [entry[b"kind"] for _, entry in rig.connection.xrange(keys.results("A"))]
        assert kinds == [b"reject", b"commit", b"retry"]
        assert rig.enqueue("A", "A-1", "A-2").added == 1


class TestSeed:
    def test_the_files_number_wins(self, rig: Rig) -> None:
        assert rig.seed("A", ("A-1", 5), ("A-2", 0)) == (2, 5)
        rig.check()
        before = dump(rig.connection)
        assert rig.seed("A", ("A-1", 5), ("A-2", 0)) == (0, 5)
        assert dump(rig.connection) == before
        assert rig.seed("A", ("A-1", 3), ("A-2", 9)) == (2, 12)
        rig.check()
        assert rig.field("A", "rejected") == "0"

    def test_ends_leases_and_what_rq_holds_of_them(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1", "A-2")
        lease = rig.lease()
        rig.cap("A", 0)
        rig.drop("A")
        rig.seed("A", ("A-1", 5), ("A-2", 6))
        rig.check()
        assert rig.field("A", "reserved") == "0"
        assert rig.connection.keys("rq:job:*") == []
        assert not rig.connection.exists(keys.dropped("A"))
        assert rig.commit(lease, 5) == (False, 11)
        assert rig.renew(lease) == ["done"]
        assert rig.release(lease) == "lost"

    def test_forget_takes_back(self, rig: Rig) -> None:
        rig.seed("A", ("A-1", 5), ("A-2", 0), ("A-3", 7))
        rig.enqueue("A", pass_ends_with=0)
        assert rig.forget("A", "A-1", "A-2", "A-9") == (2, 7)
        assert rig.field("A", "exhausted") is None
        rig.check()
        assert rig.forget("A", "A-1", "A-2") == (0, 7)

    def test_recount_sets_every_counter_to_what_it_counts(self, rig: Rig) -> None:
        rig.seed("A", ("A-1", 5), ("A-2", 0), ("A-3", 700))
        rig.enqueue("A", "A-4", "A-5")
        rig.claim("A", k=1)
        rig.connection.incrby(keys.spent("A"), 7)
        for name in ("reserved", "committed", "rejected"):
            rig.connection.hincrby(keys.budget("A"), name, 3)
        rig.connection.hincrby(keys.ages("A"), "f0", -2)
        rig.connection.hset(keys.ages("A"), "c3", "many")
        assert rig.run(verbs.recount(dataset="A")) == (0, 705)
        rig.check()
        assert rig.run(verbs.recount(dataset="A")) == (0, 705)

    def test_counts_the_cut_ones_once(self, rig: Rig) -> None:
        for _ in range(2):
            rig.run(verbs.seed(dataset="A", entries=[("A-1", 5, True), ("A-2", 5, False)]))
            assert rig.field("A", "truncated") == "1"

    def test_the_last_of_an_id_counts(self, rig: Rig) -> None:
        assert rig.seed("A", ("A-1", 5), ("A-1", 7)) == (1, 7)
        rig.check()

    def test_restores_an_emptied_redis(self, rig: Rig, connection: "redis.Redis") -> None:
        rig.enqueue("A", *[f"A-{number}" for number in range(20)], worst=50)
        for tokens, lease in enumerate(rig.claim("w1", 20, datasets=["A"]).leases):
            rig.commit(lease, 30 + 7 * tokens)
        done = {job.decode(): int(tokens) for job, tokens in rig.connection.hgetall(keys.done("A")).items()}
        kept = (rig.connection.hgetall(keys.ages("A")), rig.spent("A"), rig.field("A", "committed"))
        rig.connection.flushall()
        rig.seed("A", *done.items())
        assert rig.connection.hgetall(keys.ages("A")) == {
            name: count for name, count in kept[0].items() if count != b"0"
        }
        assert (rig.spent("A"), rig.field("A", "committed")) == kept[1:]


def test_the_time_in_the_job_hash_is_the_callers(rig: Rig) -> None:
    rig.enqueue("A", "A-1")
    rig.lease()
    assert rig.hash("A-1")["started_at"] == rig.hash("A-1")["enqueued_at"] == NOW
