"""The processes that a local run and `work -n` start: named, logged, stopped in order, dead with their parent."""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from budget.errors import Exit, OutsideFault
from tokenmill.embedded import die_with_parent

log = logging.getLogger("tokenmill.run")


class Child:
    """One child: a `tokenmill` command of its own, with its log in a file (or ours, where none is given)."""

    def __init__(self, name: str, arguments: Sequence[str], log_file: Path | None, environment: dict[str, str]) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.restarts = 0
        self._log_file = log_file
        self._environment = environment
        self._log_start = 0
        self._was_asked = False
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tokenmill", *self.arguments]
        if self._log_file is None:
            return self._popen(command, None)
        try:
            output = self._log_file.open("ab")
        except OSError as error:
            raise OutsideFault(gone(self._log_file)) from error
        with output:
            self._log_start = output.tell()
            return self._popen(command, output)

    def _popen(self, command: list[str], output: "IO[bytes] | None") -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C reaches the parent alone, which stops its children in order.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
            env=self._environment,
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def killed(self) -> bool:
        """It ended by a signal that it did not handle, and that was not ours."""
        return (self.process.poll() or 0) < 0 and not self._ended_at_start

    @property
    def _ended_at_start(self) -> bool:
        """It was asked to end before it could heed that, and so held nothing."""
        return self._was_asked and self.process.poll() == -signal.SIGTERM

    @property
    def exit(self) -> Exit:
        code = self.process.poll()
        if self._ended_at_start:
            return Exit.INTERRUPTED
        try:
            return Exit(code or 0)
        except ValueError:
            return Exit.OUTSIDE

    def restart(self) -> None:
        self.restarts += 1
        self._was_asked = False
        self.process = self._start()

    def interrupt(self) -> None:
        """Ask it to end; a worker drains at the first time, and gives everything back at the second."""
        if self.running:
            self._was_asked = True
            self.process.send_signal(signal.SIGTERM)

    def end(self, patience_s: float) -> None:
        """Ask it to end, then make it."""
        self.interrupt()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        """The last sentence that it said; what it failed of."""
        if self._log_file is None:
            return f"{self.name} ended with exit code {self.process.poll()}"
        try:
            with self._log_file.open("rb") as output:
                output.seek(self._log_start)
                lines = output.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return gone(self._log_file)
        said = [line for line in lines if line.startswith("tokenmill: ")] or lines[-1:]
        return said[-1].removeprefix("tokenmill: ") if said else f"{self.name} said nothing"


def gone(log_file: Path) -> str:
    """What it means that a log cannot be opened any more: somebody deleted the output folder under a run."""
    return (
        f"{log_file.parent} is gone or cannot be used: was the output folder deleted or moved while the run went on? "
        f"What stood in it is lost unless it is put back; run the same command again, it makes what is missing"
    )


def wait_all(children: Sequence[Child], poll_s: float = 0.1) -> None:
    """Until all have ended."""
    while any(child.running for child in children):
        time.sleep(poll_s)


def worst_exit(children: Sequence[Child]) -> Exit:
    """One exit code for all: the first that is not 0; an unhandled signal counts as a fault outside."""
    for child in children:
        if child.killed:
            return Exit.OUTSIDE
        if child.exit is not Exit.DONE:
            return child.exit
    return Exit.DONE
