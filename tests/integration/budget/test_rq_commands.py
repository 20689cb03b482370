"""RQ's own commands and classes on our keys: they count right, and damage nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from budget import keys, runbook, verbs
from budget.protocol import PROTOCOL
from budget.verbs import Queued
from tests.ledgers import LEASE_MS, Rig, dump
from tests.support import OwnServer
from workers.contracts import DatasetConfig, Payload, RunConfig, TokenizerFacts
from workers.encodings import decode_job_data, encode_job_data

# Each command is a start of Python and RQ: once is enough.
pytestmark = pytest.mark.parametrize("redis_binary", ["valkey"], indirect=True)

ROOT = Path(__file__).parents[3]
NOW = "2026-01-01T00:00:00.000000Z"


def rq(server: OwnServer, *arguments: str) -> str:
    """Run a command of RQ's; its output."""
    command, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", "rq.cli", command, "--url", server.url, *rest],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def jobs(rig: Rig) -> Rig:
    """Five real jobs of A: three queued, two in flight."""
    payloads = [Payload(dataset="A", id=str(number), input_ids=[1, 2, number]) for number in range(5)]
    queued = [Queued(job=f"A-{p.id}", data=encode_job_data(p), worst=9, description=f"prompt {p.id}") for p in payloads]
    rig.run(verbs.enqueue(dataset="A", jobs=queued, all_datasets=rig.datasets, lease_ms=LEASE_MS, now=NOW))
    rig.claim("w1", 2)
    return rig


def test_info_counts_what_is_queued_and_in_flight(redis_server: OwnServer, jobs: Rig) -> None:
    before = dump(jobs.connection)
    assert "queue A 3, 2 executing" in rq(redis_server, "info", "--raw")
    after = dump(jobs.connection)
    assert {key: value for key, value in after.items() if key in before} == before
    jobs.check()


def test_empty_takes_only_what_is_queued_and_a_pass_brings_it_back(redis_server: OwnServer, jobs: Rig) -> None:
    rq(redis_server, "empty", "A", "-S", "json")
    assert jobs.queue("A") == []
    assert jobs.connection.hlen(keys.leases("A")) == 2
    jobs.check()
    assert jobs.enqueue("A", *[f"A-{number}" for number in range(5)]).added == 3


def test_requeue_all_finds_nothing(redis_server: OwnServer, jobs: Rig) -> None:
    before = dump(jobs.connection)
    rq(redis_server, "requeue", "--queue", "A", "--all", "-S", "json")
    after = dump(jobs.connection)
    assert {key: value for key, value in after.items() if key in before} == before


def test_suspend_holds_claims_until_resume(redis_server: OwnServer, jobs: Rig) -> None:
    rq(redis_server, "suspend")
    assert jobs.claim().status == "suspended"
    rq(redis_server, "resume")
    assert jobs.claim().status == "ok"


def test_rq_reads_our_hashes(jobs: Rig, connection: "redis.Redis") -> None:
    job = Job.fetch("A-4", connection=connection, serializer=JSONSerializer)
    assert job.func_name == "workers.jobs.generate"
    assert job.kwargs["input_ids"] == [1, 2, 4]
    assert job.get_status() == "queued"
    assert (job.origin, job.description) == ("A", "prompt 4")
    assert job.enqueued_at is not None
    started = Job.fetch("A-0", connection=connection, serializer=JSONSerializer)
    assert started.get_status() == "started"
    assert started.worker_name == "w1"
    assert decode_job_data(jobs.connection.hget(keys.rq_job("A-0"), "data")).id == "0"
    queue = Queue("A", connection=connection, serializer=JSONSerializer)
    assert queue.job_ids == ["A-2", "A-3", "A-4"]
    assert StartedJobRegistry("A", connection=connection).count == 2


def test_the_registries_own_cleaning_leaves_our_leases(jobs: Rig, connection: "redis.Redis") -> None:
    before = dump(connection)
    registry: Any = StartedJobRegistry("A", connection=connection, serializer=JSONSerializer)
    registry.cleanup()
    # Also one that looks from a year ahead.
    registry.cleanup(timestamp=4_000_000_000)
    assert FailedJobRegistry("A", connection=connection).count == 0
    assert dump(connection) == before


def test_a_job_deleted_or_cancelled_by_hand_leaves_a_lease_that_ends(jobs: Rig, connection: "redis.Redis") -> None:
    for job in ("A-0", "A-1", "A-2"):
        Job.fetch(job, connection=connection, serializer=JSONSerializer).delete()
    jobs.reclaim("w1")
    assert jobs.connection.hlen(keys.leases("A")) == 0
    assert jobs.queue("A") == ["A-3", "A-4"]
    jobs.check()


def test_a_stock_worker_drops_what_its_dataset_needs_no_more(redis_server: OwnServer, jobs: Rig) -> None:
    dataset = DatasetConfig(name="A", prompts="", max_tokens=1, sampling={"max_new_tokens": 8})
    nobody = "http://127.0.0.1:9"  # never asked
    config = RunConfig(name="run", output="out", tokenizer="none", datasets=[dataset], servers=[nobody])
    runbook.publish(
        jobs.connection,
        config=msgspec.json.encode(config),
        name="run",
        output_id="folder",
        protocol=PROTOCOL,
        fingerprints={},
        max_tokens_total=None,
        max_samples={"A": None},
    )
    runbook.note_facts(jobs.connection, {"tokenizer": msgspec.json.encode(TokenizerFacts(vocab_size=9)).decode()})
    jobs.cap("A", 0)
    words = rq(redis_server, "worker", "--burst", "-w", "rq.worker.SimpleWorker", "-S", "json", "A")
    assert words.count("complete") >= 3, words
    assert jobs.connection.smembers(keys.dropped("A")) == {b"A-2", b"A-3", b"A-4"}
    assert {key.decode() for key in jobs.connection.keys("rq:job:*") if b":execution" not in key} == {
        "rq:job:A-0",
        "rq:job:A-1",
    }
    jobs.check()
