"""The matrix can fail: three builds, each without one guarantee, are found out by a case that the true one passes.

A build is a copy of the packages with a line changed; its commands run from there.
"""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e_support import ROOT, found, wait_for
from tests.faults.matrix import ENDS_BY_PROMPTS, LEASE_MS, Case, Rig
from tests.faults.matrix_fixtures import StartCase

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def copy(file: str, *lines: tuple[str, str]) -> Path:
        """The packages with lines of `file` replaced, each of which stands there once."""
        folder = tmp_path / "build"
        for package in ("tokenmill", "producer", "workers", "budget", "results"):
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        text = (folder / file).read_text()
        for true, broken in lines:
            assert text.count(true) == 1, f"{true!r} stands {text.count(true)} times in {file}"
            text = text.replace(true, broken)
        (folder / file).write_text(text)
        return folder

    return copy


def late_commit(rig: Rig) -> None:
    """A frozen worker commits what its heir has answered long ago, while a collector is there to write it."""
    collector, *others = rig.fail()
    rig.finish(others)
    wait_for("all to be written", lambda: rig.unwritten() == 0)
    collector.send(signal.SIGTERM)
    assert collector.ended() == 3, collector.text


def test_a_commit_that_does_not_look_whether_the_job_is_done(start_case: StartCase, build: Build) -> None:
    case = Case("before_commit", "stop")
    true = start_case(case, collect=("collect", "--stay"))
    late_commit(true)
    true.check()

    dedupe = "if redis.call('HEXISTS', d.done, job) == 1 then return { 0, int(redis.call('GET', d.spent)) } end\n"
    broken = start_case(case, collect=("collect", "--stay"), root=build("budget/lua/commit.lua", (dedupe, "")))
    late_commit(broken)
    verdict = broken.job.call("verify")
    assert verdict.code == 1, verdict.out
    assert "the counter says" in verdict.out


def test_a_collector_that_acknowledges_before_it_has_written(start_case: StartCase, build: Build) -> None:
    case = Case("before_sink_write", "kill9")
    true = start_case(case)
    true.run()
    true.check()

    writing = "        self._write()\n        if batch.entries:\n"
    acknowledging = "            self._stream.remove(batch)\n"
    lines = ((acknowledging, "            pass\n"), (writing, "        self._stream.remove(batch)\n" + writing))
    broken = start_case(case, root=build("results/collector.py", *lines))
    *_, again = broken.fail()
    # The next collector's seeding finds that Redis has them as done and no file has. They are made again where the
    # producer has not left by then, which it may have: all was said to be written.
    assert int(found(r"(\d+) forgotten", again)) > 0


def test_leases_that_nobody_takes_back(start_case: StartCase, build: Build) -> None:
    case = Case("after_claim", "kill9")
    true = start_case(case)
    true.run()
    true.check()

    first = "local lease_ms, count, limit = int(ARGV[1]), int(ARGV[2]), int(ARGV[3])\n"
    broken = start_case(case, root=build("budget/lua/reclaim.lua", (first, "do return {} end\n" + first)))
    parts = broken.fail()
    held = {job: worker for job, worker in broken.leases().items() if worker == "doomed"}
    left = sum(job.startswith(broken.by_prompts.encode()) for job in held)
    assert held
    wait_for("all others to be done", lambda: broken.done() == ENDS_BY_PROMPTS - left and broken.leases() == held)
    since_ms = broken.now_ms()
    wait_for("ten leases to pass", lambda: broken.now_ms() > since_ms + 10 * LEASE_MS)
    assert broken.leases() == held
    assert all(part.is_running for part in parts), "the run never ends"
