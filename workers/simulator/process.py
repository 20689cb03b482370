"""A simulated server as a child process: what a local run and the tests start.

The child holds the reading end of a pipe whose other end is ours, so that it ends when we do, however
we do; nothing is left behind by a SIGKILL.
"""

import contextlib
import select
import subprocess
import sys
import time

import msgspec

from budget.errors import OutsideFault
from workers.simulator.config import SimulatorConfig

_READY = "listening on "


class SimulatorProcess:
    """A running child; `start` makes one."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    @classmethod
    def start(cls, config: SimulatorConfig, *, wait_s: float = 30.0) -> "SimulatorProcess":
        """Starts a server and returns once it listens.

        Raises:
            OutsideFault: it did not come up; what it said is on stderr.
        """
        document = msgspec.json.encode(config).decode()
        command = [sys.executable, "-m", "workers.simulator", "--with-parent", "--config", document]
        # In a session of its own: Ctrl-C in a terminal goes to all that run there, and this one's clients drain first.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            line = process.stdout.readline()
            if line.startswith(_READY):
                return cls(process, line.removeprefix(_READY).strip())
            if not line:
                break
        child = cls(process, "")
        code = child.stop(grace_s=0)
        raise OutsideFault(f"the simulated server did not start within {wait_s:g} s (exit code {code})")

    def stop(self, *, grace_s: float = 10.0) -> int:
        """Ends it, by force where it does not drain in time; the exit code."""
        if self.process.poll() is None and grace_s > 0:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return code
