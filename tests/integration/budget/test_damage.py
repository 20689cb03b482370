"""Values in Redis that nobody of ours wrote: mended where that is possible, else named with the mend."""

from collections.abc import Callable
from typing import Any

import pytest

from budget import ages, damage, keys, runbook, snapshot, sweep, verbs
from budget.connections import RedisDamaged
from tests.ledgers import LEASE_MS, Rig

Spoil = Callable[[Any, list[bytes]], object]


def mend(rig: Rig) -> list[verbs.Death]:
    return sweep.sweep(rig.run, rig.datasets, LEASE_MS, thorough=True)


LEASES: dict[str, tuple[Spoil, int]] = {
    "a lease of no job": (lambda client, held: client.hset(keys.leases("A"), "junk", "junk"), 0),
    "a lease of no job with its expiry": (
        lambda client, held: (
            client.hset(keys.leases("A"), "junk", "junk"),
            client.zadd(keys.expiry("A"), {"junk": 1e15}),
        ),
        0,
    ),
    "a held lease that was overwritten": (lambda client, held: client.hset(keys.leases("A"), held[0], "junk"), 1),
    "a held lease without its reservation": (lambda client, held: client.hset(keys.leases("A"), held[0], "t x"), 1),
    "an expiry of no lease": (lambda client, held: client.zadd(keys.expiry("A"), {"junk": 1}), 0),
    "a reservation that is no lease's": (lambda client, held: client.hincrby(keys.budget("A"), "reserved", 500), 0),
    "a key of another type in a job's place": (
        lambda client, held: (
            client.hset(keys.leases("A"), "A-9", "junk"),
            client.set(keys.rq_job("A-9"), "junk"),
        ),
        0,
    ),
}


@pytest.mark.parametrize("name", LEASES)
def test_damaged_leases_are_cleared_away_and_counted_anew(rig: Rig, name: str) -> None:
    spoil, back = LEASES[name]
    rig.enqueue("A", "A-0", "A-1", "A-2")
    rig.enqueue("B", "B-0")
    rig.claim("w1", 3)
    spoil(rig.connection, sorted(rig.connection.hkeys(keys.leases("A"))))
    assert mend(rig) == [verbs.Death(worker="", requeued=back, rejected=0)]
    rig.connection.delete(keys.rq_job("A-9"))
    rig.check()
    assert rig.field("A", "reserved") == str(10 * (2 - back))
    assert mend(rig) == []
    assert len(rig.claim("w2", 10).leases) == 4 - 3 + back


def test_a_damaged_lease_of_a_job_that_is_done_only_goes(rig: Rig) -> None:
    rig.enqueue("A", "A-0")
    lease = rig.lease()
    rig.connection.hset(keys.leases("A"), "A-0", "junk")
    assert rig.commit(lease, 5) == (True, 5)
    assert mend(rig) == [verbs.Death(worker="", requeued=0, rejected=0)]
    assert rig.queue("A") == []
    rig.check()


def test_a_worker_that_lives_goes_on_with_a_job_whose_lease_was_damaged(rig: Rig) -> None:
    rig.enqueue("A", "A-0")
    lease = rig.lease()
    rig.connection.hset(keys.leases("A"), "A-0", "junk")
    assert rig.renew(lease) == ["held"]
    mend(rig)
    rig.check()
    assert rig.commit(lease, 5) == (True, 5)
    rig.check()


def test_a_job_hash_of_another_type_stops_nobody_else(rig: Rig) -> None:
    rig.enqueue("A", "A-0", "A-1")
    rig.enqueue("B", "B-0")
    rig.connection.delete(keys.rq_job("A-0"))
    rig.connection.set(keys.rq_job("A-0"), "junk")
    assert {lease.job for lease in rig.claim("w1", 5).leases} == {"A-1", "B-0"}
    # The producer's next pass finds the id free, and makes it whole.
    assert rig.enqueue("A", "A-0").added == 1
    assert rig.lease().job == "A-0"
    rig.check()


@pytest.mark.parametrize("verb", ["release", "renew", "commit", "reclaim"])
def test_a_held_job_whose_hash_became_another_type_is_settled_all_the_same(rig: Rig, verb: str) -> None:
    rig.enqueue("A", "A-0")
    lease = rig.lease()
    rig.connection.delete(keys.rq_job("A-0"))
    rig.connection.set(keys.rq_job("A-0"), "junk")
    if verb == "release":
        assert rig.release(lease) == "released"
    elif verb == "renew":
        assert rig.renew(lease) == ["held"]
        return
    elif verb == "commit":
        assert rig.commit(lease, 5) == (True, 5)
    else:
        assert rig.reclaim("w1")
    assert rig.connection.hlen(keys.leases("A")) == 0
    assert rig.field("A", "reserved") == "0"


def test_ages_that_are_no_numbers_leave_no_half_written_commit(rig: Rig) -> None:
    rig.enqueue("A", "A-0")
    lease = rig.lease()
    for number in range(200):
        rig.connection.hset(keys.ages("A"), f"c{number}", "junk")
        rig.connection.hset(keys.ages("A"), f"f{number}", "junk")
    assert rig.commit(lease, 5) == (True, 5)
    assert rig.spent("A") == 5
    assert rig.connection.hlen(keys.leases("A")) == 0
    ages.read(rig.connection, ["A"])


def read(rig: Rig) -> None:
    snapshot.read(rig.connection, rig.datasets)


PLACES: dict[str, tuple[Callable[[Rig], object], str]] = {
    "spent": (lambda rig: rig.connection.set(keys.spent("A"), "abc"), "budget:A:spent"),
    "spent beyond 2^53": (lambda rig: rig.connection.set(keys.spent("A"), "9" * 19), "budget:A:spent"),
    "a cap": (lambda rig: rig.connection.hset(keys.budget("A"), "cap", "10M"), "field cap of budget:A"),
    "reserved": (lambda rig: rig.connection.hset(keys.budget("A"), "reserved", "x"), "field reserved of budget:A"),
    "a total": (lambda rig: rig.connection.hset(keys.RUN, "max_tokens_total", "x"), "field max_tokens_total of run"),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("look", [read, Rig.claim])
def test_a_number_that_is_none_is_named_with_its_key_and_the_mend(
    rig: Rig, name: str, look: Callable[[Rig], object]
) -> None:
    spoil, place = PLACES[name]
    rig.enqueue("A", "A-0")
    spoil(rig)
    with pytest.raises(RedisDamaged) as said:
        look(rig)
    assert place in str(said.value)
    assert "tokenmill reset" in str(said.value)


@pytest.mark.parametrize("key", [keys.budget("A"), keys.spent("A"), keys.done("A"), keys.rq_queue("A"), keys.RUN])
def test_a_key_of_another_type_is_told_with_the_mend(rig: Rig, key: str) -> None:
    rig.connection.delete(key)
    rig.connection.sadd(key, "junk")
    with pytest.raises(RedisDamaged, match="tokenmill reset") as said:
        read(rig)
    assert key in str(said.value)


def test_an_entry_that_is_no_json_is_told_with_the_mend(rig: Rig) -> None:
    rig.connection.hset(keys.RUN, mapping={"fingerprint:A": "{", "protocol": "new"})
    entry = runbook.published(rig.connection)
    with pytest.raises(RedisDamaged, match="fingerprint:A of run"):
        runbook.fingerprint_of(entry, "A")
    with pytest.raises(RedisDamaged, match="protocol of run"):
        runbook.refuse_other(entry)


def test_a_cap_that_is_no_number_is_mended_by_the_next(rig: Rig) -> None:
    rig.connection.hset(keys.budget("A"), "cap", "10M")
    rig.cap("A", 5)
    assert rig.field("A", "cap") == "5"


def test_what_is_only_looked_at_is_never_a_fault() -> None:
    assert damage.shown_number(b"2.5") == 2.5
    assert {damage.shown_number(value) for value in (None, b"x", b"nan", b"inf", b"1e99")} == {0}
