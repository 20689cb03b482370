"""S7, S16: what the disk refuses in mid-run, and the very end of a run.

A full disk is in `test_bad_surroundings`, a file that is deleted, replaced or read-only in the collector's own tests.
"""

import shutil
from collections.abc import Callable

import pytest

from tests.e2e_support import HELD_TOKENS, Job, RedisServer, Simulator, prompts, wait_for
from tests.faults.scenes import Scene

StartSimulator = Callable[..., Simulator]


def traced(scene: Scene, fault: str) -> list[str]:
    """The collector, with a fault of the kernel at one of its system calls on a result file."""
    if shutil.which("strace") is None:
        pytest.skip("faults of the kernel need strace")
    path = scene.job.output / "A1" / "raw_responses.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", f"inject={fault}",
            *scene.job.command("collect")]  # fmt: skip


@pytest.mark.parametrize("fault", ["fdatasync:error=EIO:when=4", "write:error=EIO:when=5", "write:error=ENOSPC:when=6"])
def test_s7_the_disk_fails_once(scene: Scene, fault: str) -> None:
    """The collector ends with the disk's name; nothing has left Redis that is not safe; the same again goes on."""
    ailing = scene.job.start_command(traced(scene, fault))
    scene.parts["push"] = scene.job.start("push")
    scene.work("w0")
    assert ailing.ended() == 5, ailing.text
    assert "nothing is lost" in ailing.text and str(scene.job.output) in ailing.text
    scene.parts = {"collect": scene.job.start("collect"), **scene.parts}
    scene.recovered()
    scene.ends(f"S7 disk: {fault}", most_again=0)


def test_s7_a_file_is_deleted_under_the_collector(scene: Scene) -> None:
    """It ends before anything more is lost; what the file held is made again."""
    scene.start()
    scene.until(0.4)
    path = scene.job.output / "A1" / "raw_responses.jsonl"
    lost = scene.job.tokens("A1")
    path.unlink()
    collect = scene.parts.pop("collect")
    assert collect.ended() == 5, collect.text
    assert "was deleted while the collector wrote to it" in collect.text
    scene.parts = {"collect": scene.job.start("collect"), **scene.parts}
    scene.recovered()
    scene.ends("S7 a result file deleted", most_again=lost * 2)


def test_s16_the_last_jobs_and_empty_ends(job: Job, redis_server: RedisServer, start_simulator: StartSimulator) -> None:
    """A cap reached exactly, five prompts for thirty-two slots, nothing but bad prompts, a cap of 0.

    And the shell's proxies are dead: servers are asked directly.
    """
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        job.environment[name] = "socks5://127.0.0.1:1" if name == "ALL_PROXY" else "http://127.0.0.1:1"
    simulator = start_simulator()
    job.dataset("exact", prompts("exact", 40), max_tokens=10 * HELD_TOKENS)
    job.dataset("few", prompts("few", 5), max_tokens="none")
    job.dataset("bad", [{"id": str(n), "answer": "42"} for n in range(5)], max_tokens=1000)
    job.dataset("zero", prompts("zero", 5), max_tokens=0)
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": 32}
    job.tables["run"]["admission"] = "strict"
    job.tables["sampling"]["max_new_tokens"] = HELD_TOKENS
    parts = job.write().start_parts("-n", "2")
    job.finish(*parts)
    job.check()
    counts = {name: (len(job.lines(name)), len(job.rejected(name)), len(job.dropped(name))) for name in job.names}
    assert counts == {"exact": (10, 0, 30), "few": (5, 0, 0), "bad": (0, 5, 0), "zero": (0, 0, 0)}
    assert redis_server.spent("exact") == 10 * HELD_TOKENS
    before, sent = job.files(), simulator.state()["received"]
    assert job.call("run").code == 0
    wait_for("the workers' probes alone", lambda: simulator.served(*job.names) == 15)
    assert job.files() == before and simulator.state()["received"] <= sent + 10
