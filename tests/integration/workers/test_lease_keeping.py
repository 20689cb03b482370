"""What a worker gives back is not leased again by a renewal that travels behind it."""

import asyncio
from types import SimpleNamespace
from typing import Any

from budget import connections, keys, verbs
from budget.ledger import AsyncLedger
from tests.conftest import StartServer
from tests.ledgers import Rig
from tests.support import wait_until
from workers.contracts import DatasetConfig, Payload, RunConfig, Timing, TokenizerFacts
from workers.flight import Flight
from workers.joining import Joined
from workers.leases import Leases
from workers.servers import Servers
from workers.sglang import Client

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
    attempt: Any = SimpleNamespace(server=server, probable_tokens=1)
    return Flight(lease, Payload(dataset="A", id=lease.job, input_ids=[1]), attempt, {"max_new_tokens": 100})


def test_a_job_that_is_given_back_stays_in_its_queue(start_server: StartServer) -> None:
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
            leases = Leases(
                worker="w1",
                joined=Joined(config=CONFIG, facts=TokenizerFacts(vocab_size=100)),
                ledger=AsyncLedger(twin),
                servers=Servers(http, ["http://none"], 1.0, lambda: None),
                datasets=["A"],
                flights=flights,
                lost=lambda flight: None,
                complain=lambda sentence: None,
            )
            flights["given-back"].released = True
            await leases.ledger(verbs.release(lease=flights["given-back"].lease, charge=""))
            keeping = asyncio.create_task(leases.keep_for_ever())
            await asyncio.to_thread(wait_until, is_renewed_again, what="the other to be renewed again")
            keeping.cancel()
            await http.close()
            await twin.aclose()

        asyncio.run(scenario())
        assert rig.connection.lrange(keys.rq_queue("A"), 0, -1) == [b"given-back"]
        assert rig.commit(flights["kept"].lease, 5) == (True, 5)
        assert rig.lease().job == "given-back"
