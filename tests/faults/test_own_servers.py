"""`run` whose own Redis or simulated SGLang is killed: started again, and the run ends as if nothing had been."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e_support import Job, processes_of, prompts, wait_for


def pid_of(word: str, folder: Path) -> int:
    """The one process of the run in this folder whose command line has that word."""

    def found() -> list[int]:
        return [pid for pid in processes_of(folder) if word in Path(f"/proc/{pid}/cmdline").read_text()]

    return wait_for(f"a process of {word}", found)[0]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("unixsocket", "the run's own Redis was killed: started again"),
        ("workers.simulator", "the simulated SGLang was killed: started again"),
    ],
)
def test_a_server_of_its_own_that_is_killed_is_started_again(local_job: Job, word: str, said: str) -> None:
    job = local_job
    for name in ("A1", "B2"):
        job.dataset(name, prompts(name, 80), max_tokens=1_000_000)
    job.tables["simulator"] = {
        "time_scale": 2,
        "lengths": {"*": {"shape": "constant", "mean": 100}},
        "log_path": str(job.folder / "requests.jsonl"),
    }
    run = job.write().start("run")
    wait_for("some answers", lambda: job.count() >= 10)
    os.kill(pid_of(word, job.folder), signal.SIGKILL)
    assert run.ended() == 0, run.text
    assert said in run.text
    assert job.count() == 160
    job.check()
    assert processes_of(job.folder) == []
