"""A server whose machine loses its power sends nothing any more, not even a reset."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_a_request_to_a_machine_that_is_gone_ends_long_before_its_deadline() -> None:
    alone = ["unshare", "-n"]
    if subprocess.run([*alone, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
        pytest.skip("a network of its own needs the right to make one")
    command = [*alone, sys.executable, "-m", "tests.integration.workers.vanishing"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.startswith("broke "), ended.stdout
