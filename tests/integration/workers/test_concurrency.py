"""A worker never holds more jobs than it has slots."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import redis
from rq.utils import now, utcformat

from budget import connections, keys, runbook, verbs
from budget.environment import for_child
from budget.ledger import Ledger
from budget.protocol import PROTOCOL
from tokenmill.embedded import EmbeddedRedis
from workers.contracts import DatasetConfig, Payload, RunConfig, job_id
from workers.encodings import encode_job_data
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

SLOTS, JOBS = 4, 40
WORK = (
    "from workers import AsyncWorker; from budget import connections, environment; "
    "AsyncWorker(['D'], connection=connections.connect(environment.redis_url()), stay=True).work()"
)


def publish(connection: "redis.Redis", server: str, pieces_digest: str = "") -> None:
    sampling = {"max_new_tokens": 200}
    config = RunConfig(
        name="slots",
        output="/nowhere",
        tokenizer="none",
        datasets=[DatasetConfig(name="D", prompts="none", max_tokens=None, sampling=sampling)],
        servers=[server],
        concurrency=SLOTS,
    )
    runbook.publish(
        connection,
        config=msgspec.json.encode(config),
        name=config.name,
        output_id="slots",
        protocol=PROTOCOL,
        fingerprints={},
        max_tokens_total=None,
        max_samples={},
    )
    runbook.apply_file_caps(connection, {"D": None})
    runbook.note_facts(connection, {"tokenizer": json.dumps({"vocab_size": 32_000, "pieces_digest": pieces_digest})})
    client: Any = connection
    client.set(keys.READY, runbook.run_id(connection))
    jobs = [
        verbs.Queued(
            job=job_id("D", str(number)),
            data=encode_job_data(Payload(dataset="D", id=str(number), input_ids=[5, 6, 7])),
            worst=200,
            description="",
        )
        for number in range(JOBS)
    ]
    Ledger(connection)(
        verbs.enqueue(dataset="D", jobs=jobs, all_datasets=["D"], lease_ms=30_000, now=utcformat(now()), inputs=JOBS)
    )


def test_no_more_jobs_are_held_than_there_are_slots(tmp_path: Path) -> None:
    server = SimulatorProcess.start(
        SimulatorConfig(
            step_s_base=0.002, step_s_per_request=0.0, lengths={"*": LengthSpec(shape="constant", mean=100)}
        )
    )
    try:
        with EmbeddedRedis(tmp_path) as embedded:
            connection: Any = connections.connect(embedded.url)
            publish(connection, server.url)
            environment = for_child(redis_url=embedded.url)
            worker = subprocess.Popen([sys.executable, "-c", WORK], env=environment, stderr=subprocess.DEVNULL)
            try:
                held: list[int] = []
                deadline = time.monotonic() + 60
                while connection.hlen(keys.done("D")) < JOBS:
                    held.append(connection.hlen(keys.leases("D")))
                    assert time.monotonic() < deadline, "the jobs are not done in time"
                    time.sleep(0.002)
            finally:
                worker.terminate()
                worker.wait(20)
        assert max(held) == SLOTS
    finally:
        server.stop(grace_s=0)
