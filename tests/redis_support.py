"""Redis as it runs in earnest: with passwords, TLS, a replica and Sentinels. Ports are free ones of 127.0.0.1."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from budget import connections
from tests.e2e_support import RedisServer, wait_for
from tests.tcp_proxy import TcpProxy

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return int(taken.getsockname()[1])


class Certificates:
    """A throwaway CA, what it signed for a server and a client, and a stranger's CA. Made by openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = self._authority("ca")
        self.stranger = self._authority("stranger")
        self.server = self._signed("server", f"subjectAltName=IP:{HOST}")
        self.client = self._signed("client", "subjectAltName=DNS:client")
        self.elsewhere = self._signed("elsewhere", "subjectAltName=DNS:elsewhere.example")

    def settings(self, certificate: Path) -> list[str]:
        """What a server needs that shows this certificate."""
        key = self.key(certificate)
        return [f"tls-cert-file {certificate}", f"tls-key-file {key}", f"tls-ca-cert-file {self.ca}"]

    def key(self, certificate: Path) -> Path:
        return certificate.with_suffix(".key")

    def encrypted(self, certificate: Path, phrase: str) -> Path:
        """The certificate's key under a pass phrase."""
        made = certificate.with_suffix(".locked.key")
        self._openssl(
            "ec", "-aes256", "-passout", f"pass:{phrase}", "-in", str(self.key(certificate)), "-out", str(made)
        )
        return made

    def dated(self, name: str, start: str, end: str) -> Path:
        """A certificate for this machine that is valid between two days of YYYYMMDD."""
        made, folder = self.folder / f"{name}.crt", self.folder / name
        folder.mkdir()
        (folder / "index").touch()
        (folder / "serial").write_text("01")
        (folder / "ca.cnf").write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/index\nserial={folder}/serial\nnew_certs_dir={folder}\n"
            "default_md=sha256\npolicy=any\ncopy_extensions=copy\n[any]\ncommonName=supplied\n"
        )
        self._openssl(
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(self.key(made)), "-out", str(folder / "request"),
        )  # fmt: skip
        self._openssl(
            "ca", "-batch", "-notext", "-config", str(folder / "ca.cnf"), "-cert", str(self.ca),
            "-keyfile", str(self.key(self.ca)), "-startdate", f"{start}000000Z", "-enddate", f"{end}000000Z",
            "-in", str(folder / "request"), "-out", str(made),
        )  # fmt: skip
        return made

    def _authority(self, name: str) -> Path:
        made = self.folder / f"{name}.crt"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN=tokenmill test {name}", "-keyout", str(self.key(made)), "-out", str(made),
        )  # fmt: skip
        return made

    def _signed(self, name: str, extension: str) -> Path:
        made = self.folder / f"{name}.crt"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", extension, "-addext", "basicConstraints=critical,CA:FALSE",
            "-CA", str(self.ca), "-CAkey", str(self.key(self.ca)),
            "-keyout", str(self.key(made)), "-out", str(made),
        )  # fmt: skip
        return made

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class GuardedRedis:
    """A server on a TCP port of this machine, set up by a file: no password stands in its command line.

    Args:
        settings: lines of its configuration.
        sentinel: it is a Sentinel.
    """

    def __init__(self, binary: str, settings: Sequence[str], *, sentinel: bool = False, tls: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tm-g-", dir="/tmp"))
        self.port = free_port()
        self._binary = binary
        self._sentinel = sentinel
        self._settings = settings
        lines = [f"port {0 if tls else self.port}", f"dir {self.folder}", f"bind {HOST}", "daemonize no"]
        if tls:
            lines.append(f"tls-port {self.port}")
        if not sentinel:
            lines += ["appendonly yes", 'save ""', "maxmemory-policy noeviction", f"unixsocket {self.socket}"]
        (self.folder / "server.conf").write_text("\n".join([*lines, *settings]) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    def start(self) -> "GuardedRedis":
        command = [self._binary, str(self.folder / "server.conf"), *(["--sentinel"] if self._sentinel else [])]
        log_file = self.folder / "log"
        before = log_file.stat().st_size if log_file.exists() else 0
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        wait_for("Redis to be ready", lambda: self._is_ready(log_file.read_bytes()[before:].decode()))
        return self

    def _is_ready(self, said: str) -> bool:
        """By its log: it listens before it has read who may do what."""
        assert self.process is not None
        if self.process.poll() is not None:
            if "Failed finding TLS support" in said:
                pytest.skip(f"{self._binary} was built without TLS")
            raise AssertionError(said[-2000:])
        return "+monitor master" in said if self._sentinel else "eady to accept connections" in said

    def client(self, **settings: Any) -> Any:
        """A look at it past all that guards its port; a password is needed all the same."""
        return redis.Redis(unix_socket_path=str(self.socket), **settings)

    def asked(self, **settings: Any) -> Any:
        """Its port without TLS."""
        return redis.Redis(host=HOST, port=self.port, **settings)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class WatchedRedis(RedisServer):
    """A master, a replica and three Sentinels, all with passwords; `client` goes to whom the Sentinels name.

    The replica hears its master over `wire`, which a test can hold up: replication is asynchronous, and this
    is how far behind it can be.
    """

    PASSWORD, ASKING = "s/e#s@me", "ask"

    def __init__(self, binary: str) -> None:
        key = [f"requirepass {self.PASSWORD}", f"masterauth {self.PASSWORD}"]
        self.master = GuardedRedis(binary, key).start()
        self.wire = TcpProxy(f"{HOST}:{self.master.port}")
        host, _, port = self.wire.address.partition(":")
        self.replica = GuardedRedis(binary, [*key, f"replicaof {host} {port}"])
        watch = [
            f"requirepass {self.ASKING}", f"sentinel sentinel-pass {self.ASKING}",
            f"sentinel monitor main {HOST} {self.master.port} 2", f"sentinel auth-pass main {self.PASSWORD}",
            # So long it also is before they would have the replica leave the wire.
            "sentinel down-after-milliseconds main 1000", "sentinel failover-timeout main 60000",
        ]  # fmt: skip
        self.sentinels = [GuardedRedis(binary, watch, sentinel=True) for _ in range(3)]
        hosts = ",".join(f"{HOST}:{one.port}" for one in self.sentinels)
        owner = f":{quote(self.PASSWORD, safe='')}@"
        self.url = f"redis+sentinel://{owner}{hosts}/main/0?sentinel_password={self.ASKING}"
        self.client = connections.connect(self.url)

    def start(self, *options: str) -> "WatchedRedis":
        for one in (self.replica, *self.sentinels):
            one.start()
        looking = self.itself(self.replica)
        wait_for("the replica to follow", lambda: looking.info("replication")["master_link_status"] == "up")
        for one in self.sentinels:
            wait_for("the Sentinels to know each other and the replica", lambda one=one: self._is_watching(one))
        return self

    def _is_watching(self, sentinel: GuardedRedis) -> bool:
        (said,) = sentinel.asked(password=self.ASKING).sentinel_masters().values()
        return bool(said["num-other-sentinels"] == 2 and said["num-slaves"] == 1)

    def itself(self, server: GuardedRedis) -> Any:
        """One of the servers, whatever the Sentinels say."""
        return server.client(password=self.PASSWORD)

    def kill(self) -> None:
        self.master.kill()

    def remove(self) -> None:
        self.client.close()
        for one in (*self.sentinels, self.replica, self.master):
            one.remove()
        self.wire.close()
