"""What a worker gives back is not leased again by a renewal that travels behind it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from budget import connections, keys, verbs
from budget.ledger import AsyncLedger
from tests.conftest import StartServer
from tests.ledgers import Rig
from tests.support import wait_until
from workers import outcomes
from workers.contracts import DatasetConfig, Payload, RunConfig, Timing, TokenizerFacts
from workers.endings import Endings
from workers.flight import Flight
from workers.joining import Joined
from workers.leases import Leases
from workers.servers import Servers
from workers.sglang import Client
from workers.suspects import Suspects

CONFIG = RunConfig(
    name="leases",
    output="/nowhere",
    tokenizer="none",
    datasets=[DatasetConfig(name="A", prompts="none", max_tokens=None, sampling={"max_new_tokens": 100})],
    servers=["http://none"],
    timing=Timing(renew_ms=50),
)


def in_flight(lease: verbs.Lease) -> Flight:
    server = SimpleNamespace(answered=0, sent=1, in_flight=1)
    attempt: Any = SimpleNamespace(server=server, probable_tokens=1, done_tokens=0)

    async def give_up() -> None:
        return

    attempt.give_up = give_up
    return Flight(lease, Payload(dataset="A", id=lease.job, input_ids=[1]), attempt, {"max_new_tokens": 100})


@pytest.mark.parametrize("how", ["failed", "abandoned"])
def test_a_job_that_is_given_back_stays_in_its_queue(start_server: StartServer, how: str) -> None:
    server = start_server()
    with server.client() as client:
        rig = Rig(client, ["A"])
        rig.cap("A", None)
        rig.enqueue("A", "kept", "given-back")
        flights = {lease.job: in_flight(lease) for lease in rig.claim(k=2).leases}
        renewed: list[float] = []

        def is_renewed_again() -> bool:
            until = rig.connection.zscore(keys.expiry("A"), "kept")
            if until not in renewed:
                renewed.append(until)
            return len(renewed) > 3

        async def scenario() -> None:
            twin = connections.async_twin(connections.connect(server.url), 2)
            http = Client(None, 1.0)
            ledger, servers = AsyncLedger(twin), Servers(http, ["http://none"], 1.0, lambda: None)
            endings = Endings(
                worker="w1",
                config=CONFIG,
                ledger=ledger,
                servers=servers,
                suspects=Suspects(servers, None),
                complain=lambda sentence: None,
                end_run=lambda problem: None,
                pieces=lambda: None,
            )
            leases = Leases(
                worker="w1",
                joined=Joined(config=CONFIG, facts=TokenizerFacts(vocab_size=100)),
                ledger=ledger,
                servers=servers,
                datasets=["A"],
                flights=flights,
                lost=lambda flight: None,
                complain=lambda sentence: None,
            )
            flight = flights["given-back"]
            if how == "failed":
                await endings.settle(flight, outcomes.Retry("empty", "nothing came", 0))
            else:
                await endings.give_up(flight)
            keeping = asyncio.create_task(leases.keep_for_ever())
            await asyncio.to_thread(wait_until, is_renewed_again, what="the other to be renewed again")
            keeping.cancel()
            await http.close()
            await twin.aclose()

        asyncio.run(scenario())
        assert rig.connection.lrange(keys.rq_queue("A"), 0, -1) == [b"given-back"]
        assert rig.commit(flights["kept"].lease, 5) == (True, 5)
        assert rig.lease().job == "given-back"


def test_no_other_suspect_is_welcome_from_the_claim_to_the_end_of_the_flight() -> None:
    async def main() -> None:
        http = Client(None, 1.0)
        suspects = Suspects(Servers(http, ["http://none"], 1.0, lambda: None), None)
        assert not suspects.are_unwelcome
        suspects.claimed("one")
        assert suspects.are_unwelcome  # before it has a seat
        await suspects.unseat("one")
        assert suspects.are_unwelcome  # and until its flight is over
        suspects.settled("one")
        assert not suspects.are_unwelcome
        await http.close()

    asyncio.run(main())
