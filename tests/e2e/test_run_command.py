"""`tokenmill run`: the whole job on one machine, ended, repeated, enlarged, interrupted and killed."""

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.e2e_support import PATIENCE_S, ROOT, Job, Simulator, processes_of, prompts, wait_for

StartSimulator = Callable[..., Simulator]

STATUS_KEYS = {
    "run", "state", "redis", "sglang", "datasets", "workers", "servers", "generated_tokens", "wasted_tokens",
    "suspended", "collector", "waiting_results", "troubles",
}  # fmt: skip
DATASET_KEYS = {
    "name", "cap", "spent", "reserved", "remaining", "forecast", "overshoot", "complete", "reason", "inputs", "unsent",
    "queued", "leased", "committed", "dropped", "rejected", "truncated", "tokens_per_s", "eta_s",
    "wasted", "producer",
}  # fmt: skip


def three_datasets(job: Job, count: int, **keys: int) -> None:
    for name in ("A1", "B2", "C-3"):
        job.dataset(name, prompts(name, count), **keys)


def simulated(job: Job, speed: float = 20, tokens: float = 50) -> None:
    """No server is named, so `run` starts the simulated one; it logs to requests.jsonl."""
    job.tables["simulator"] = {
        "time_scale": speed,
        "lengths": {"*": {"shape": "constant", "mean": tokens}},
        "log_path": str(job.folder / "requests.jsonl"),
    }


def requests(job: Job) -> list[str]:
    """What came to the simulated server over all its starts, without the workers' own probes."""
    log = job.folder / "requests.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [event["rid"] for event in events if event["event"] == "received" and event["dataset"] in job.names]


def test_a_run_on_a_bare_machine_ends_complete_and_again_sends_nothing(local_job: Job) -> None:
    job = local_job
    three_datasets(job, 60)
    simulated(job)
    first = job.write().call("run")
    assert first.code == 0, first.out + first.err
    assert "no Redis is named: started one of its own" in first.out
    assert "started the simulated one" in first.out
    for name in job.names:
        assert re.search(rf"^{name} +2000 .* budget *$", first.out, re.MULTILINE), first.out
        assert job.tokens(name) >= 2000
        assert len(job.lines(name)) + len(job.dropped(name)) == 60
    assert f"tokenmill verify {job.file}" in first.out
    job.check()
    assert processes_of(job.folder) == []

    before, sent = job.files(), requests(job)
    again = job.call("run")
    assert again.code == 0, again.out + again.err
    assert "already complete" in again.out
    assert "simulated one" not in again.out.partition("already complete")[0]
    assert job.files() == before
    assert requests(job) == sent
    job.check()


def test_a_raised_cap_in_the_run_file_continues_with_what_was_dropped_and_unsent(local_job: Job) -> None:
    job = local_job
    three_datasets(job, 40, max_tokens=500)
    simulated(job)
    assert job.write().call("run").code == 0
    before = {name: job.lines(name) for name in job.names}
    assert all(len(job.dropped(name)) > 0 for name in job.names)
    job.datasets["A1"]["max_tokens"] = 1900
    job.datasets["B2"]["max_tokens"] = "none"
    job.write()
    ended = job.call("run")
    assert ended.code == 0, ended.out + ended.err
    job.check()
    assert job.tokens("A1") >= 1900
    assert len(job.lines("B2")) == 40 and job.dropped("B2") == []
    assert job.lines("C-3") == before["C-3"]
    for name in job.names:
        assert job.lines(name)[: len(before[name])] == before[name]


def test_prompts_added_to_a_finished_run_are_sent(local_job: Job) -> None:
    job = local_job
    job.dataset("A1", prompts("A1", 5), max_tokens="none")
    simulated(job)
    assert job.write().call("run").code == 0
    job.dataset("A1", prompts("A1", 9), max_tokens="none")
    ended = job.call("run")
    assert ended.code == 0, ended.out + ended.err
    job.check_all_answered()
    assert len(requests(job)) == 9


def test_lines_of_an_earlier_pipeline_count_and_are_not_asked_again(local_job: Job) -> None:
    job = local_job
    job.dataset("A1", prompts("A1", 30), max_tokens=1500)
    job.dataset("B2", prompts("B2", 30), max_tokens=1000)
    simulated(job)
    old = [{"id": f"A1/{n}", "completion_tokens": 100, "response": "old", "foreign": {"x": None}} for n in range(10)]
    stranger = {"prompt_hash": "not one of ours", "completion_tokens": 1000}
    (job.output / "A1").mkdir(parents=True)
    (job.output / "B2").mkdir(parents=True)
    file = job.output / "A1" / "raw_responses.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    (job.output / "B2" / "raw_responses.jsonl").write_text(json.dumps(stranger) + "\n")
    kept = file.read_bytes()
    ended = job.write().call("run")
    assert ended.code == 0, ended.out + ended.err
    assert file.read_bytes().startswith(kept)
    assert 1500 <= job.tokens("A1") < 1500 + 30 * 50
    ids = [line["id"] for line in job.lines("A1")]
    assert len(ids) == len(set(ids)) and len(ids) > 10
    assert job.lines("B2") == [stranger], "its tokens fill the cap"
    assert job.call("verify").code == 0


def test_the_last_line_of_json_is_the_documented_status(local_job: Job) -> None:
    job = local_job
    job.dataset("A1", prompts("A1", 20), max_tokens=500)
    job.dataset("B2", prompts("B2", 8), max_tokens="none")
    simulated(job)
    ended = job.write().call("run", "--json")
    assert ended.code == 0, ended.err
    assert len(ended.out.splitlines()) == 1
    status = json.loads(ended.out)
    assert set(status) == STATUS_KEYS
    assert [set(dataset) for dataset in status["datasets"]] == [DATASET_KEYS] * 2
    assert (status["run"], status["state"], status["sglang"]) == ("test", "complete", "simulated")
    a1, b2 = status["datasets"]
    assert (a1["name"], a1["cap"], a1["complete"], a1["reason"]) == ("A1", 500, True, "budget")
    assert a1["spent"] == job.tokens("A1") and a1["remaining"] == 500 - a1["spent"]
    assert a1["overshoot"] == pytest.approx(max(0, a1["spent"] / 500 - 1))
    assert (b2["cap"], b2["overshoot"], b2["reason"], b2["committed"]) == (None, None, "prompts", 8)
    for dataset in status["datasets"]:
        counts = ("committed", "rejected", "dropped", "queued", "leased", "unsent")
        assert dataset["inputs"] == sum(dataset[name] for name in counts)
    assert status["generated_tokens"] == a1["spent"] + b2["spent"] + status["wasted_tokens"]
    offline = job.status()
    assert set(offline) == STATUS_KEYS
    for name in ("spent", "complete", "reason", "inputs", "committed"):
        assert [d[name] for d in offline["datasets"]] == [d[name] for d in status["datasets"]]
    assert offline["state"] == "complete"
    job.check()


def test_rows_taken_out_of_the_prompts_are_a_note_and_no_difference(job: Job) -> None:
    job.dataset("A1", prompts("A1", 30), max_tokens=500)
    simulated(job)
    assert job.write().call("run").code == 0
    answered = {line["id"] for line in job.lines("A1")}
    assert len(answered) < 25
    job.dataset("A1", [row for row in prompts("A1", 30) if row["id"] in answered], max_tokens=500)
    assert job.write().call("run").code == 0
    verdict = job.call("verify")
    assert verdict.code == 0, verdict.out
    assert "rows were taken out" in verdict.out


def test_ctrl_c_drains_and_the_same_command_continues(local_job: Job) -> None:
    job = local_job
    three_datasets(job, 60, max_tokens=1_000_000)
    simulated(job, speed=1)
    run = job.write().start("run")
    wait_for("some answers", lambda: job.count() >= 5)
    # As a terminal does: to every process that runs in it, not to `run` alone.
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ended() == 3, run.text
    assert "go on where it stopped" in run.text
    assert "was killed" not in run.text
    assert processes_of(job.folder) == []
    assert 5 <= job.count() < 180
    job.check()
    kept = job.files()
    simulated(job, speed=50)
    ended = job.write().call("run")
    assert ended.code == 0, ended.out + ended.err
    job.check_all_answered()
    for name, data in kept.items():
        if name.endswith("raw_responses.jsonl"):
            assert (job.output / name).read_bytes().startswith(data)
    assert len(requests(job)) == 180, "what was drained was not asked again"


def test_a_closed_terminal_drains_a_run(local_job: Job) -> None:
    """Its hang-up is heard, and that nothing can be printed any more is nobody's fault."""
    job = local_job
    three_datasets(job, 60, max_tokens=1_000_000)
    simulated(job, speed=1)
    job.write()
    ours, theirs = os.openpty()
    run = subprocess.Popen(
        ["setsid", "--ctty", *job.command("run")], env=job.environment, stdin=theirs, stdout=theirs, stderr=theirs,
        cwd=ROOT,
    )  # fmt: skip
    os.close(theirs)
    while job.count() < 5:
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 65536)  # as a terminal does
    os.close(ours)
    assert run.wait(PATIENCE_S) == 3
    wait_for("its parts to be gone", lambda: processes_of(job.folder) == [])
    assert 5 <= job.count() < 180
    job.check()


def test_a_run_whose_output_nobody_reads_goes_on(local_job: Job) -> None:
    """As with `| head -1`."""
    job = local_job
    three_datasets(job, 20, max_tokens=1_000_000)
    simulated(job, speed=20)
    command = job.write().command("run")
    with (job.folder / "complaints").open("wb") as complaints:
        run = subprocess.Popen(command, env=job.environment, stdout=subprocess.PIPE, stderr=complaints, cwd=ROOT)
    assert run.stdout is not None
    run.stdout.readline()
    run.stdout.close()
    assert (run.wait(PATIENCE_S), (job.folder / "complaints").read_text()) == (0, "")
    job.check_all_answered()


def test_kill_9_of_run_leaves_no_child_and_nothing_is_lost(local_job: Job) -> None:
    job = local_job
    three_datasets(job, 60, max_tokens=1_000_000)
    simulated(job, speed=1)
    run = job.write().start("run", "-n", "2")
    wait_for("some answers", lambda: job.count() >= 5)
    children = [pid for pid in processes_of(job.folder) if pid != run.process.pid]
    assert len(children) >= 6, "Redis, simulator, collector, producer and two workers"
    run.kill()
    wait_for("the children to die with it", lambda: processes_of(job.folder) == [])
    kept = job.count()
    simulated(job, speed=50)
    ended = job.write().call("run")
    assert ended.code == 0, ended.out + ended.err
    job.check_all_answered()
    assert kept <= 180
    assert len(requests(job)) <= 180 + 2 * 16, "at most what was in flight is asked twice"
