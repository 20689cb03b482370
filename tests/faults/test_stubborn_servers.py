"""Servers that answer some and never others: nobody loops for ever, nobody is charged for a server that is down."""

import signal
import time
from collections.abc import Callable

from budget.rules import MOST_DEATHS
from tests.e2e_support import Job, RedisServer, Simulator, prompts, wait_for
from tests.faults.scenes import MortalSimulator
from workers.simulator.faults import Fault

StartSimulator = Callable[..., Simulator]


def test_a_prompt_that_a_serving_server_never_takes_is_rejected_in_the_end(
    job: Job, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    rows = prompts("A1", 20)
    rows[3]["input_ids"] = [777, 777]
    simulator.faults(Fault(mode="unavailable", token=777))
    job.dataset("A1", rows, max_tokens="none")
    job.tables["timing"]["retry_ms"] = 20
    job.tables["sglang"]["servers"] = [simulator.url]
    job.finish(*job.write().start_parts())
    job.check()
    assert len(job.lines("A1")) == 19
    (line,) = job.rejected("A1")
    assert (line["id"], line["reason"]) == ("A1/3", "server_fault")


def test_a_stock_worker_loops_for_ever_at_none_either(
    job: Job, redis_server: RedisServer, mortal: Callable[..., MortalSimulator]
) -> None:
    """RQ's own worker, whose one job at a time would hold it up for good."""
    refused, deadly = 777, 778
    faults = [Fault(mode="unavailable", token=refused), Fault(mode="crash", token=deadly)]
    simulator = mortal(crash_s=0.05)
    simulator.faults(*faults)
    rows = prompts("A1", 6)
    rows[1]["input_ids"], rows[2]["input_ids"] = [5, refused], [5, deadly]
    job.dataset("A1", rows, max_tokens="none")
    job.tables["timing"]["retry_ms"] = 20
    job.tables["sglang"]["servers"] = [simulator.url]
    parts = [job.write().start("collect"), job.start("push")]
    stock = job.start_rq("worker", "-S", "json", "-w", "rq.worker.SimpleWorker", "A1", TOKENMILL_SERVERS=simulator.url)
    deaths = 0
    while parts[0].is_running:
        if simulator.is_dead:
            deaths += 1
            simulator.revive(faults=faults, crash_s=0.05)
        time.sleep(0.02)
    job.finish(*parts)
    stock.send(signal.SIGTERM)
    assert stock.ended() == 0, stock.text
    job.check()
    assert {line["id"]: line["reason"] for line in job.rejected("A1")} == {"A1/1": "server_fault", "A1/2": "poison"}
    assert deaths == MOST_DEATHS and len(job.lines("A1")) == 4


def test_a_server_that_is_down_for_everybody_charges_nobody(job: Job, start_simulator: StartSimulator) -> None:
    simulator = start_simulator()
    simulator.faults(Fault(mode="unavailable", dataset="A1"))
    job.dataset("A1", prompts("A1", 20), max_tokens="none")
    job.tables["timing"]["retry_ms"] = 20
    job.tables["sglang"]["servers"] = [simulator.url]
    parts = job.write().start_parts()
    # The probe is answered each time, so that the server is believed again and again.
    wait_for("the server to come back many times", lambda: parts[2].text.count("answers again") >= 12)
    simulator.faults()
    job.finish(*parts)
    job.check_all_answered()


def test_a_server_that_hangs_is_told_of(job: Job, start_simulator: StartSimulator) -> None:
    simulator = start_simulator()
    job.dataset("A1", prompts("A1", 20), max_tokens="none")
    job.tables["timing"]["stall_ms"] = 3000
    job.tables["sglang"]["servers"] = [simulator.url]
    simulator.hold()
    parts = job.write().start_parts()
    wait_for("the worker to say so", lambda: "has answered none of the 16 requests" in parts[2].text)
    assert "it reports 16 running" in parts[2].text
    simulator.let_go()
    job.finish(*parts)
    job.check_all_answered()
