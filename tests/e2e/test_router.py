"""A run through SGLang's own router: one URL, and servers behind it of which the run knows nothing.

Skipped without a Python that has sglang-router (TOKENMILL_TEST_ROUTER_PYTHON).
"""

import os
import socket
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e_support import Job, Simulator, prompts, wait_for
from tests.job_fixtures import StartSimulator

PYTHON = os.environ.get("TOKENMILL_TEST_ROUTER_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs a Python with sglang-router in TOKENMILL_TEST_ROUTER_PYTHON")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Router:
    """A router in front of `servers`, once it has found them all healthy."""

    def __init__(self, servers: list[str], log: Path) -> None:
        port, metrics = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        command = [PYTHON, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-port", str(metrics), "--policy", "round_robin", "--worker-urls", *servers]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        wait_for("the router", self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        with suppress(OSError), urllib.request.urlopen(self.url + "/readiness", timeout=5) as answer:
            return answer.status == 200
        return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def servers(start_simulator: StartSimulator) -> list[Simulator]:
    return [start_simulator(tokens=50) for _ in range(2)]


@pytest.fixture
def routed(job: Job, servers: list[Simulator], tmp_path: Path) -> Generator[Job]:
    router = Router([server.url for server in servers], tmp_path / "router.log")
    job.tables["sglang"]["servers"] = [router.url]
    job.tables["run"]["max_tokens_per_dataset"] = "none"
    job.dataset("A1", prompts("A1", 80))
    job.dataset("B1", prompts("B1", 2000), max_tokens=3000)
    yield job.write()
    router.stop()


def test_a_run_through_a_router_ends_at_its_budget_and_its_prompts(routed: Job) -> None:
    ended = routed.call("run", "--json")
    assert ended.code == 0, ended.err
    routed.check()
    assert len(routed.lines("A1")) == 80
    assert 3000 <= routed.tokens("B1") < 3000 + 16 * 50
    assert not routed.rejected("A1") and not routed.rejected("B1")
    assert {line["model"] for line in routed.lines("A1")} == {"simulated"}


def test_a_server_behind_a_router_dies_with_answers_in_flight(routed: Job, servers: list[Simulator]) -> None:
    for server in servers:
        server.hold()
    parts = routed.start_parts()
    wait_for("requests at both", lambda: all(server.state()["running"] for server in servers))
    servers[0].child.process.kill()
    servers[1].let_go()
    routed.finish(*parts)
    routed.check()
    assert len(routed.lines("A1")) == 80
    assert not routed.rejected("A1") and not routed.rejected("B1")
