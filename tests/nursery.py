"""Starts commands in a tenth of the time: a process that has imported the libraries forks each of them.

What takes a command its first second is importing other people's packages. The nursery has imported
those, and none of Tokenmill's own; a fork of it then is a process like any other, with its own id,
session, environment and folder, in which `python -m MODULE` runs from the start. Only its command line
in /proc is the nursery's.
"""

import atexit
import contextlib
import functools
import gc
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LIBRARIES = (
    *("click", "msgspec", "zstandard", "jinja2", "rich.console", "rich.table", "redis.asyncio", "rq.worker", "httpx"),
    *("httpx_aiohttp", "tokenizers", "transformers.utils.chat_template_utils", "starlette.applications", "uvicorn"),
)
_LONGEST = 1 << 18
# What the loader, Python or a library looks at when it is loaded, which is too late here.
_READ_AT_IMPORT = ("LD_", "PYTHON", "TZ", "FAKETIME", "SSL_", "HF_", "TRANSFORMERS_", "AIOHTTP_")


def suits(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork can be this command: a Python module in an environment that asks nothing of its loading."""
    names = {name for name in environment.keys() | os.environ.keys() if name.startswith(_READ_AT_IMPORT)}
    return list(command[:2]) == [sys.executable, "-m"] and all(
        environment.get(name) == os.environ.get(name) for name in names
    )


class Child:
    """A process that the nursery forked: `command` is [python, "-m", module, arguments...].

    What it says goes to the file `out`, and what it complains of to `err`, or there as well.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], root: Path, out: Path, err: Path | None = None
    ) -> None:
        self._code: int | None = None
        self.pid: int = nursery().ask(
            start=list(command[2:]), environment=dict(environment), root=str(root), out=str(out), err=str(err or "")
        )

    def poll(self) -> int | None:
        if self._code is None:
            self._code = nursery().ask(poll=self.pid)
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
        self._turn = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()

    def ask(self, **order: Any) -> Any:
        with self._turn:
            self._channel.sendall(json.dumps(order).encode())
            return json.loads(self._channel.recv(_LONGEST))

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    """The one of this process."""
    own = Nursery()
    atexit.register(own.close)
    return own


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
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    err = os.open(order["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if order["err"] else out
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, max(out, err) + 1)
    os.chdir(order["root"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[0] = order["root"]
    module, *words = order["start"]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _main() -> None:
    logging.disable()  # transformers says at import that there is no PyTorch
    for library in _LIBRARIES:
        __import__(library)
    _ = __import__("transformers").PreTrainedTokenizerFast  # loaded when it is first named
    logging.disable(logging.NOTSET)
    # What was imported is no garbage: a child that looked for some in it would copy every page of it.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        order = _serve(channel)
    if order is not None:
        _become(order)


if __name__ == "__main__":
    _main()
