"""A run of another version: the scripts that take in or hand out jobs refuse it, naming both, and change nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from budget import keys, verbs
from budget.connections import connect_async
from budget.errors import Exit
from budget.ledger import AsyncLedger
from budget.protocol import PROTOCOL, OtherProtocol, release
from tests.ledgers import Rig, dump
from tests.support import OwnServer

CALLS: dict[str, Callable[[Rig], verbs.Call[Any]]] = {
    "claim": lambda rig: rig.claim_call(),
    "adopt": lambda rig: verbs.adopt(
        dataset="A", job="A-1", token="t-1", worker="w", lease_ms=1000, admission="forecast", reservation=1,
        all_datasets=rig.datasets,
    ),
    "enqueue": lambda rig: verbs.enqueue(
        dataset="A", jobs=[verbs.Queued(job="A-2", data=b"x", worst=1, description="")], all_datasets=rig.datasets,
        lease_ms=1000, now="now",
    ),
}  # fmt: skip


@pytest.fixture
def queued(rig: Rig) -> Rig:
    rig.cap("A", None)
    rig.enqueue("A", "A-1")
    return rig


@pytest.mark.parametrize("verb", CALLS)
def test_another_version_is_refused(queued: Rig, verb: str, redis_server: OwnServer) -> None:
    queued.connection.hset(keys.RUN, mapping={"protocol": "99", "release": "7.0 beta"})
    before = dump(queued.connection)
    with pytest.raises(OtherProtocol) as refusal:
        queued.run(CALLS[verb](queued))
    sentence = str(refusal.value)
    assert "Tokenmill 7.0 beta (protocol 99)" in sentence and f"{release()} (protocol {PROTOCOL})" in sentence
    assert "`tokenmill reset`" in sentence and refusal.value.exit_code == Exit.REFUSED
    assert dump(queued.connection) == before

    async def from_the_event_loop() -> None:
        client = connect_async(redis_server.url, 1)
        with pytest.raises(OtherProtocol, match="protocol 99"):
            await AsyncLedger(client)(CALLS[verb](queued))
        await client.aclose()

    asyncio.run(from_the_event_loop())
    assert dump(queued.connection) == before


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("entry", [{"protocol": str(PROTOCOL), "release": "0.0"}, {"name": "says nothing of it"}])
def test_this_version_is_served_whatever_its_release(queued: Rig, verb: str, entry: dict[str, str]) -> None:
    queued.connection.hset(keys.RUN, mapping=entry)
    queued.run(CALLS[verb](queued))
