"""The forecast where it is used: what Redis says of a dataset, a worker near its cap, RQ's own worker, no Redis."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from rq.utils import now, utcformat

from budget import ages, connections, keys, runbook, snapshot, verbs
from budget.environment import for_child
from budget.forecast import bucket
from budget.ledger import AsyncLedger, Ledger
from budget.protocol import PROTOCOL
from tests.conftest import StartServer
from tests.ledgers import Rig
from tests.support import wait_until
from tokenmill.embedded import EmbeddedRedis
from workers.contracts import DatasetConfig, Payload, RunConfig, Timing, TokenizerFacts, job_id
from workers.encodings import encode_job_data
from workers.joining import Joined
from workers.leases import Leases
from workers.servers import Servers
from workers.sglang import Client
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

MOST = 2000
CAP = 60_000
ASYNC_WORKER = (
    "from workers import AsyncWorker; from budget import connections, environment; "
    "AsyncWorker(['D'], connection=connections.connect(environment.redis_url()), stay=True).work()"
)


def _config(server: str, cap: int | None, **timing: int) -> RunConfig:
    return RunConfig(
        name="forecast",
        output="/nowhere",
        tokenizer="none",
        datasets=[DatasetConfig(name="D", prompts="none", max_tokens=cap, sampling={"max_new_tokens": MOST})],
        servers=[server],
        concurrency=32,
        timing=Timing(**timing),
    )


def _publish(connection: "redis.Redis", config: RunConfig, jobs: int) -> None:
    runbook.publish(
        connection,
        config=msgspec.json.encode(config),
        name=config.name,
        output_id="forecast",
        protocol=PROTOCOL,
        fingerprints={},
        max_tokens_total=None,
        max_samples={},
    )
    runbook.apply_file_caps(connection, {"D": config.datasets[0].max_tokens})
    runbook.note_facts(connection, {"tokenizer": json.dumps({"vocab_size": 32_000})})
    client: Any = connection
    client.set(keys.READY, runbook.run_id(connection))
    queued = [
        verbs.Queued(
            job=job_id("D", str(number)),
            data=encode_job_data(Payload(dataset="D", id=str(number), input_ids=[5, 6, 7])),
            worst=MOST,
            description="",
        )
        for number in range(jobs)
    ]
    Ledger(connection)(
        verbs.enqueue(dataset="D", jobs=queued, all_datasets=["D"], lease_ms=30_000, now=utcformat(now()), inputs=jobs)
    )


@pytest.fixture
def simulator() -> Iterator[SimulatorProcess]:
    lengths = {"*": LengthSpec(shape="bimodal", mean=300, sigma=0.2, long_ratio=6.0)}
    server = SimulatorProcess.start(SimulatorConfig(lengths=lengths, time_scale=20))
    yield server
    server.stop()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as server:
        yield server


def test_the_ages_of_a_dataset(connection: "redis.Redis") -> None:
    rig = Rig(connection)
    rig.cap("A", 5000)
    rig.enqueue("A", "a1", "a2", "a3", worst=100)
    rig.enqueue("A", "a4", worst=300)
    first, second = rig.lease(datasets=["A"]), rig.lease(datasets=["A"])
    rig.commit(first, 90)
    rig.renew(second, reserved=200, age=70)
    read = ages.read(connection, ["A", "B"])
    assert read["A"] == ages.Ages(
        finished={bucket(90): 1}, in_flight={bucket(70): 1}, worst=300, cap=5000, spent=90, reserved=200
    )
    assert read["A"].remaining == 4710
    assert read["B"] == ages.Ages()
    assert read["B"].remaining is None
    rig.cap("A", None)
    assert ages.read(connection, ["A"])["A"].remaining is None


def test_a_worker_ends_within_about_an_answer_of_the_cap(simulator: SimulatorProcess, embedded: EmbeddedRedis) -> None:
    connection = connections.connect(embedded.url)
    _publish(connection, _config(simulator.url, CAP, renew_ms=500), jobs=600)
    worker = subprocess.Popen([sys.executable, "-c", ASYNC_WORKER], env=for_child(redis_url=embedded.url))
    try:
        wait_until(lambda: snapshot.read(connection, ["D"]).finished("D") or _written(connection), timeout=120)
    finally:
        worker.kill()
        worker.wait()
    state = snapshot.read(connection, ["D"]).dataset("D")
    # Without reservations 32 slots end some 20 answers over it, 10,000 tokens and more.
    assert CAP <= state.spent < CAP + MOST
    assert state.reserved == 0
    assert ages.read(connection, ["D"])["D"].in_flight == {}


def _written(connection: "redis.Redis") -> bool:
    """Nothing is in flight and the rest is dropped: there is no collector that would take the results."""
    state = snapshot.read(connection, ["D"]).dataset("D")
    return state.spent >= CAP and state.leased == 0 and state.queued == 0


def test_rqs_own_worker_reserves_and_settles_too(simulator: SimulatorProcess, embedded: EmbeddedRedis) -> None:
    connection = connections.connect(embedded.url)
    _publish(connection, _config(simulator.url, None, renew_ms=100), jobs=3)
    command = [sys.executable, "-m", "rq.cli", "worker", "-w", "rq.worker.SimpleWorker", "-S", "json", "--burst"]
    command += ["-u", embedded.url, "D"]
    subprocess.run(command, check=True, timeout=120, env=for_child(redis_url=embedded.url), capture_output=True)
    state = snapshot.read(connection, ["D"]).dataset("D")
    assert (state.committed, state.queued, state.leased, state.reserved) == (3, 0, 0, 0)
    assert sum(ages.read(connection, ["D"])["D"].finished.values()) == 3


def test_without_redis_the_last_known_serves_on(start_server: StartServer) -> None:
    server = start_server()
    said: list[str] = []
    with server.client() as client:
        rig = Rig(client, ["D"])
        rig.seed("D", *((str(number), 200) for number in range(400)))

    async def scenario() -> tuple[int, int, int]:
        twin = connections.async_twin(connections.connect(server.url), 2)
        client = Client(None, 1.0)
        leases = Leases(
            worker="w",
            joined=Joined(config=_config("http://none", CAP), facts=TokenizerFacts(vocab_size=100)),
            ledger=AsyncLedger(twin),
            servers=Servers(client, ["http://none"], 1.0, lambda: None),
            datasets=["D"],
            flights={},
            lost=lambda flight: None,
            complain=said.append,
        )
        unheard = leases.reservations.first("D")
        await leases.learn()
        known = leases.reservations.first("D")
        server.close()
        await leases.learn()
        await client.close()
        await twin.aclose()
        return unheard, known, leases.reservations.first("D")

    unheard, known, kept = asyncio.run(scenario())
    assert unheard == MOST
    assert 500 < known < 700  # 200 of 400 answers, and 100 that are believed to reach 2,000
    assert kept == known
    assert len(said) == 1
