"""A verb that Redis refuses has changed nothing: Lua is not rolled back, so it must look before it writes."""

from collections.abc import Callable
from typing import Any

import pytest

from budget import keys, verbs
from budget.connections import RedisRefuses
from budget.verbs import Call, Lease, Queued, Renewal
from tests.conftest import StartServer
from tests.ledgers import LEASE_MS, NOW, Rig, dump

LEASE = Lease(dataset="A", job="A-1", token="n-1", data=b"", attempt=1, failures=0, deaths=0)


def build(rig: Rig) -> None:
    """A ledger with something in every key."""
    rig.connection.flushall()
    rig.ready()
    rig.cap("A", 10_000)
    rig.cap("B", None)
    rig.connection.hset(keys.RUN, "max_tokens_total", 50_000)
    rig.enqueue("A", "A-0", "A-1", "A-2", "A-3")
    rig.enqueue("B", "B-1")
    rig.run(verbs.reject(dataset="A", job="A-bad", line=b""))
    rig.commit(rig.lease(datasets=["A"]), 40)
    rig.claim("w1", 1, nonce="n", datasets=["A"])
    rig.connection.sadd(keys.dropped("A"), "A-4")
    rig.connection.hset(keys.rq_worker("w1"), "successful_job_count", 3)
    for registry in (keys.rq_failed("A"), keys.rq_canceled("A")):
        rig.connection.zadd(registry, {"A-1": 1})
    rig.connection.rpush(keys.rq_intermediate("A"), "A-x")
    rig.listen()


def queued(job: str) -> Queued:
    return Queued(job=job, data=b"data", worst=10, description="")


CALLS: dict[str, Callable[[Rig], Call[Any]]] = {
    "adopt": lambda rig: verbs.adopt(
        dataset="A",
        job="A-2",
        token="s-1",
        worker="w2",
        lease_ms=LEASE_MS,
        admission="forecast",
        reservation=5,
        all_datasets=rig.datasets,
    ),
    "claim": lambda rig: rig.claim_call("w2", 3),
    "commit": lambda rig: verbs.commit(lease=LEASE, worker="w1", tokens=60, truncated=True, line=b"x"),
    "drop": lambda rig: verbs.drop(dataset="A", all_datasets=rig.datasets),
    "enqueue": lambda rig: verbs.enqueue(
        dataset="A",
        jobs=[queued("A-4"), queued("A-5")],
        all_datasets=rig.datasets,
        lease_ms=LEASE_MS,
        now=NOW,
        inputs=8,
        everything=True,
    ),
    "reclaim": lambda rig: verbs.reclaim(datasets=rig.datasets, lease_ms=LEASE_MS, dead=["w1"]),
    "reject": lambda rig: verbs.reject(dataset="A", job="A-1", token="n-1", line=b"x"),
    "release": lambda rig: verbs.release(lease=LEASE, charge="failures"),
    "renew": lambda rig: verbs.renew(
        worker="w1",
        renewals=[
            Renewal(dataset="A", job="A-1", token="n-1", reserved=55, bucket=7),
            Renewal(dataset="A", job="A-4", token="n-2", reserved=55, bucket=7),
        ],
        lease_ms=LEASE_MS,
    ),
    "retry": lambda rig: verbs.retry(dataset="A", lines=[("A-bad", b"x")]),
    "seed": lambda rig: verbs.seed(dataset="A", entries=[("A-1", 9, False), ("A-0", 30, True), ("A-4", 8, False)]),
    "forget": lambda rig: verbs.forget(dataset="A", jobs=["A-0", "A-bad"]),
}

WRONG: dict[str, Callable[[Any, str], object]] = {
    "string": lambda client, key: client.set(key, "junk"),
    "hash": lambda client, key: client.hset(key, "junk", "junk"),
}


def prepared(rig: Rig, verb: str) -> Call[Any]:
    build(rig)
    if verb == "drop":
        rig.cap("A", 1)
    return CALLS[verb](rig)


@pytest.mark.parametrize("verb", CALLS)
def test_the_verb_works_where_nothing_is_wrong(rig: Rig, verb: str) -> None:
    call = prepared(rig, verb)
    before = dump(rig.connection)
    rig.run(call)
    assert dump(rig.connection) != before


@pytest.mark.parametrize("verb", CALLS)
def test_a_key_of_another_type_leaves_all_as_it_was(rig: Rig, verb: str) -> None:
    touched = prepared(rig, verb).keys
    hashes = [keys.rq_job(f"A-{number}") for number in range(5)]
    refusals = 0
    whole: dict[str, Any] = {}
    call: Call[Any] | None = None
    for key in dict.fromkeys(touched + hashes):
        for write in WRONG.values():
            if call is None:
                call = prepared(rig, verb)
                whole = dump(rig.connection)
            right = rig.connection.dump(key)
            rig.connection.delete(key)
            write(rig.connection, key)
            before = dump(rig.connection)
            try:
                rig.run(call)
            except RedisRefuses as refusal:
                refusals += 1
                assert dump(rig.connection) == before, f"{key}: {refusal}"
                rig.connection.delete(key)
                if right is not None:
                    rig.connection.restore(key, 0, right)
                assert dump(rig.connection) == whole
            else:
                call = None
    assert refusals


@pytest.mark.parametrize("verb", CALLS)
def test_a_number_that_is_none_leaves_all_as_it_was(rig: Rig, verb: str) -> None:
    for field in ("cap", "reserved", "committed", "rejected", "truncated", "worst", "max_samples"):
        call = prepared(rig, verb)
        rig.connection.hset(keys.budget("A"), field, "10M")
        before = dump(rig.connection)
        try:
            rig.run(call)
        except RedisRefuses as refusal:
            assert "10M" in str(refusal)
            assert dump(rig.connection) == before


def test_a_cap_that_is_no_number_drops_nothing(rig: Rig) -> None:
    build(rig)
    rig.connection.hset(keys.budget("A"), "cap", "10M")
    with pytest.raises(RedisRefuses, match="'10M'"):
        rig.drop("A")
    with pytest.raises(RedisRefuses, match="'10M'"):
        rig.claim()


@pytest.mark.parametrize("verb", ["claim", "adopt", "release", "reclaim"])
def test_a_job_hash_with_foreign_counters_stops_nothing(rig: Rig, verb: str) -> None:
    call = prepared(rig, verb)
    for number in range(4):
        if rig.connection.exists(keys.rq_job(f"A-{number}")):
            junk = {"attempt": "x", "failures": "1.5", "deaths": "", "worst": "many"}
            rig.connection.hset(keys.rq_job(f"A-{number}"), mapping=junk)
    rig.run(call)
    rig.check()


@pytest.mark.parametrize("verb", CALLS)
def test_a_redis_out_of_memory_leaves_all_as_it_was_or_does_it_all(start_server: StartServer, verb: str) -> None:
    server = start_server()
    with server.client() as client:
        rig = Rig(client)
        call = prepared(rig, verb)
        rig.connection.config_set("maxmemory-policy", "noeviction")
        rig.connection.config_set("maxmemory", 1)
        before = dump(client)
        try:
            rig.run(call)
        except RedisRefuses as refusal:
            assert "out of memory" in str(refusal)
            assert dump(client) == before
            rig.connection.config_set("maxmemory", 0)
            rig.run(call)
        else:
            # What only frees memory, or ends what is in flight, goes on.
            assert verb in ("claim", "drop", "renew", "release", "reclaim", "forget")
        assert dump(client) != before
        rig.check()
