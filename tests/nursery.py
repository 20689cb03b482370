"""Starts commands in a tenth of the time: a process that has imported the libraries forks each of them.

What takes a command its first second is importing other people's packages. The nursery has imported
those, and none of Tokenmill's own; a fork of it then is a process like any other, with its own id,
session, environment and folder, in which `python -m tokenmill` runs from the start.
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LIBRARIES = (
    *("click", "msgspec", "zstandard", "jinja2", "rich.console", "redis.asyncio", "rq.worker", "httpx"),
    *("httpx_aiohttp", "transformers.models.auto.tokenization_auto"),
)
_LONGEST = 1 << 18


class Child:
    """A process that the nursery forked."""

    def __init__(self, nursery: "Nursery", arguments: list[str], environment: Mapping[str, str], log: Path, root: Path):
        self._nursery = nursery
        self._code: int | None = None
        self.pid: int = nursery.ask(start=arguments, environment=dict(environment), log=str(log), root=str(root))

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._nursery.ask(poll=self.pid)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and timeout is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The client's side; the children end with it."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def ask(self, **order: Any) -> Any:
        self._channel.sendall(json.dumps(order).encode())
        return json.loads(self._channel.recv(_LONGEST))

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Answer orders; in a child, return the one that it is to carry out."""
    live: set[int] = set()
    while message := channel.recv(_LONGEST):
        order: dict[str, Any] = json.loads(message)
        answer: int | None = None
        if "start" in order:
            if not (answer := os.fork()):
                return order
            live.add(answer)
        else:
            ended, status = os.waitpid(order["poll"], os.WNOHANG)
            if ended:
                live.discard(ended)
                answer = os.waitstatus_to_exitcode(status)
        channel.sendall(json.dumps(answer).encode())
    for pid in live:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(order["root"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[0] = order["root"]
    sys.argv = ["tokenmill", *order["start"]]
    runpy.run_module("tokenmill", run_name="__main__", alter_sys=True)


def _main() -> None:
    for library in _LIBRARIES:
        __import__(library)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        order = _serve(channel)
    if order is not None:
        _become(order)


if __name__ == "__main__":
    _main()
