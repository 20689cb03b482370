"""Servers that answer some and never others: nobody loops for ever, nobody is charged for a server that is down."""

from collections.abc import Callable

from tests.e2e_support import Job, Simulator, prompts, wait_for
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
