"""What a child's end comes to."""

import os
import signal
from pathlib import Path

from budget.errors import Exit
from tokenmill.children import Child, wait_all, worst_exit


def test_a_child_that_is_asked_to_end_while_it_starts_was_interrupted(tmp_path: Path) -> None:
    child = Child("a server", ["sim"], tmp_path / "log", dict(os.environ))
    child.interrupt()
    wait_all([child])
    assert child.process.poll() == -signal.SIGTERM
    assert worst_exit([child]) is Exit.INTERRUPTED and not child.killed


def test_a_child_that_somebody_kills_is_a_fault_outside(tmp_path: Path) -> None:
    child = Child("a server", ["sim"], tmp_path / "log", dict(os.environ))
    child.process.send_signal(signal.SIGKILL)
    wait_all([child])
    assert worst_exit([child]) is Exit.OUTSIDE and child.killed
