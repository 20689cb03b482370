"""`status --watch` in a real terminal of 80 and of 200 columns, without colours, and into a pipe."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from rq.utils import now, utcformat

from budget import keys
from tests.e2e_support import Job, RedisServer, wait_for
from tests.job_fixtures import job, local_job, redis_server

__all__ = ["job", "local_job", "redis_server"]

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[(?:[0-9;]*;)?3[1-7]m")


class Terminal:
    """`tokenmill status --watch` with a terminal of that many columns."""

    def __init__(self, job: Job, columns: int, rows: int = 40, **environment: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        outer = {name: value for name, value in job.environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            job.command("status", "--watch"), env={**outer, "TERM": "xterm-256color", **environment},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        os.close(slave)
        self.raw = ""

    def read(self) -> str:
        """All that has come so far."""
        with contextlib.suppress(OSError):
            while select.select([self.master], [], [], 0)[0] and (data := os.read(self.master, 65536)):
                self.raw += data.decode()
        return self.raw

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.read()).replace("\r", "")

    def wait_for(self, what: str) -> str:
        wait_for(f"{what!r} in the terminal, wherever its lines break", lambda: what in " ".join(self.text.split()))
        return self.text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def running(job: Job, redis_server: RedisServer) -> Generator[Job]:
    """A run in its middle, as its parts would have written it to Redis."""
    job.dataset("A1_traces", b"", max_tokens=1000)
    job.dataset("B2_code_with_a_name_that_is_far_too_long", b"", max_tokens=10_000_000)
    job.tables["sglang"]["servers"] = ["http://gpu0:30000", "http://gpu1:30000"]
    job.write()
    client: Any = redis_server.client
    for name, cap, spent in (("A1_traces", 1000, 250), ("B2_code_with_a_name_that_is_far_too_long", 10**7, 9**7)):
        fields = {"cap": cap, "reserved": 100, "committed": 90, "rejected": 10, "truncated": 9, "inputs": 10_000}
        client.hset(keys.budget(name), mapping=fields)
        client.set(keys.spent(name), spent)
        client.hset(keys.RATES, name, "812.5")
        client.set(keys.producer_lock(name), "x")
    client.set(keys.COLLECTOR_LOCK, "x")
    worker = keys.rq_worker("w1")
    client.sadd(keys.RQ_WORKERS, worker)
    client.hset(worker, mapping={"hostname": "host1", "in_flight": 60, "slots": 64, "state": "busy",
                                 "servers": "http://gpu0:30000,http://gpu1:30000"})  # fmt: skip
    seen = utcformat(now())
    client.hset(keys.server("http://gpu0:30000"), mapping={"state": "up", "seen": seen, "running": 60, "waiting": 2})
    client.hset(keys.server("http://gpu1:30000"), mapping={"state": "down", "seen": seen, "reason": "it refused"})
    yield job


@pytest.fixture
def terminals() -> Generator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize("columns", [80, 200])
def test_the_screen_fits_the_terminal_and_says_what_is_wrong(
    running: Job, redis_server: RedisServer, terminals: list[Terminal], columns: int
) -> None:
    terminal = Terminal(running, columns)
    terminals.append(terminal)
    terminal.wait_for("it refused")
    text = terminal.wait_for("-> start it again")
    assert max(map(len, text.splitlines())) <= columns
    for shown in ("A1_traces", "250", "1000", "812", "━", "─", "workers: 1, 60 of 64 slots", "60 running, 2 waiting"):
        assert shown in text
    row = next(line for line in text.splitlines() if line.startswith("B2_"))
    whole = "B2_code_with_a_name_that_is_far_too_long"
    assert row.startswith(whole) if columns == 200 else re.match(r"B2_code_with_\w+…", row)
    assert "10 %" in text, "truncated and rejected"
    assert COLOURS.search(terminal.raw)
    assert "\x1b[?1049h" not in terminal.raw and "\x1b[2J" not in terminal.raw, "no other screen, nothing is cleared"
    client: Any = redis_server.client
    client.set(keys.spent("A1_traces"), 777)
    terminal.wait_for("777")
    redis_server.kill()
    text = terminal.wait_for("what is shown is from before")
    assert "Traceback" not in text
    redis_server.start()
    before = len(terminal.text)
    client.set(keys.spent("A1_traces"), 888)
    wait_for("the new state", lambda: "888" in terminal.text[before:])


def test_without_colours_nothing_is_coloured(running: Job, terminals: list[Terminal]) -> None:
    terminal = Terminal(running, 80, NO_COLOR="1")
    terminals.append(terminal)
    text = terminal.wait_for("-> start it again")
    assert "! server http://gpu1:30000 is down" in text
    assert not COLOURS.search(terminal.raw)


def test_in_a_pipe_there_are_only_lines(running: Job) -> None:
    watching = running.start("status", "--watch")
    wait_for("a line of progress", lambda: "812" in watching.text or "tok/s" in watching.text)
    wait_for("what is wrong", lambda: "! server http://gpu1:30000 is down: it refused" in watching.text)
    watching.send(signal.SIGINT)
    assert watching.ended() == 0, watching.text
    assert "\x1b" not in watching.text and "\r" not in watching.text
