"""The producer killed anywhere, Redis restarted, emptied, full or frozen: nothing lost, nothing twice."""

import logging
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from budget import keys, runbook, verbs
from producer import patience
from tests.integration.producer.conftest import Run, Server, configured, numbered, wait_until

ROOT = Path(__file__).parents[3]
PROMPTS = 3000


def a_process(server: Server, at: int = 0, *, before: bool = False) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.producer.killed"]
    return subprocess.Popen(
        [*command, str(server.folder), str(PROMPTS), str(at), "before" if before else "after"],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_command_each_prompt_is_queued_once(server: Server, seed: int) -> None:
    draw = random.Random(seed)
    run = Run(server, configured(("A", 1_000_000)), numbered("A", PROMPTS))
    run.publish()
    for _ in range(4):
        process = a_process(server, draw.randrange(1, 60), before=draw.random() < 0.5)
        assert process.wait(60) == -signal.SIGKILL
    process = a_process(server)
    try:
        wait_until(lambda: run.state("A").queued >= PROMPTS)
        wait_until(lambda: run.state("A").inputs == PROMPTS)
    finally:
        process.terminate()
        process.wait(60)
    assert sorted(run.queue("A")) == sorted(run.shelf.prompts["A"].jobs)
    for job in run.queue("A"):
        assert run.client.hexists(keys.rq_job(job), "data")


def test_a_redis_that_was_restarted_is_waited_for_and_goes_on(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(server, configured(("A", 1_000_000)), numbered("A", 1500))
    run.publish()
    with caplog.at_level(logging.INFO, "tokenmill.producer"), run.producing() as producer:
        wait_until(lambda: run.state("A").queued == 1000)
        server.restart()
        wait_until(lambda: "Redis was restarted or emptied" in caplog.text)
        # What the collector does: the files (here: one answer) are read in again.
        first = run.shelf.prompts["A"].jobs[0]
        run.ledger(verbs.seed(dataset="A", entries=[(first, 10, False)]))
        run.client.delete("rq:queue:A")
        run.ready()
        wait_until(lambda: run.work("A", 500) or run.state("A").exhausted)
        wait_until(lambda: run.work("A", 500) == 0 and run.state("A").exhausted)
        assert producer.alive
    state = run.state("A")
    assert (state.committed, state.spent, state.unsent) == (1500, 15_000, 0)


def test_an_emptied_redis_gets_all_of_it_again(server: Server) -> None:
    run = Run(server, configured(("A", 1_000_000)), numbered("A", 30))
    run.publish()
    with run.producing() as producer:
        wait_until(lambda: run.state("A").queued == 30)
        run.client.flushall()
        run.publish()
        wait_until(lambda: run.state("A").queued == 30)
        wait_until(lambda: run.state("A").inputs == 30)
        wait_until(lambda: run.client.exists(keys.producer_lock("A")))
        assert producer.alive
    assert run.state("A").cap == 1_000_000
    assert runbook.published(run.client)["tokenizer"]


def test_a_full_redis_is_said_and_waited_for(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SAY_AFTER_S", 0.0)
    run = Run(server, configured(("A", 1_000_000)), numbered("A", 900))
    run.publish()
    run.client.config_set("maxmemory", "1")
    with run.producing() as producer:
        wait_until(lambda: "Redis is out of memory" in caplog.text)
        assert producer.alive
        run.client.config_set("maxmemory", "0")
        wait_until(lambda: run.state("A").queued == 900)
    assert sorted(run.queue("A")) == sorted(run.shelf.prompts["A"].jobs)


def test_a_redis_that_fills_up_in_mid_pass_is_waited_for(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SAY_AFTER_S", 0.0)
    run = Run(server, configured(("A", 1_000_000)), numbered("A", 1500))
    run.publish()
    with run.producing() as producer:
        wait_until(lambda: run.state("A").queued == 1000)
        leases = run.claim("A", 600)
        run.client.config_set("maxmemory", "1")
        wait_until(lambda: "Redis is out of memory" in caplog.text)
        run.client.config_set("maxmemory", "0")
        wait_until(lambda: run.state("A").queued == 900)
        assert producer.alive
    queued = run.queue("A") + [lease.job for lease in leases]
    assert sorted(queued) == sorted(run.shelf.prompts["A"].jobs)


def test_a_frozen_redis_gets_no_prompt_twice(server: Server) -> None:
    """redis-py sends a command again after its time-out; here the wait is shortened, the re-sending is real."""
    run = Run(server, configured(("A", 1_000_000)), numbered("A", 900))
    run.publish()
    with run.producing():
        run.client.execute_command("CLIENT", "PAUSE", "6000", "ALL")
        wait_until(lambda: run.state("A").queued == 900)
    assert sorted(run.queue("A")) == sorted(run.shelf.prompts["A"].jobs)


def test_dead_workers_are_swept(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(server, configured(("A", 1_000_000)), numbered("A", 10))
    run.publish()
    with run.producing():
        wait_until(lambda: run.state("A").queued == 10)
        run.claim("A", 10, worker="gone")
        # Its process: one of this host that has ended.
        from budget import process, sweep

        here = process.identity().rpartition("/")[0].rpartition("/")[0]
        run.client.sadd(keys.RQ_WORKERS, keys.rq_worker("gone"))
        run.client.hset(keys.rq_worker("gone"), sweep.PROCESS_FIELD, f"{here}/999999999/1")
        wait_until(lambda: run.state("A").queued == 10 and run.state("A").leased == 0)
        wait_until(lambda: "worker gone is gone: 10 of its jobs" in caplog.text)
