"""Sentinels that cannot help: each says so in its own words, at once where waiting does not."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator

import pytest

from budget import connections
from budget.connections import RedisAway, RedisRefuses, RedisUnsafe
from tests.e2e_support import ROOT
from tests.redis_support import HOST, Certificates, GuardedRedis, free_port

pytestmark = pytest.mark.redis_server


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, int]]:
    binary = shutil.which("redis-server")
    if binary is None or shutil.which("openssl") is None:
        pytest.skip("no redis-server or no openssl on PATH")
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    redis = GuardedRedis(binary, ["requirepass sesame"])
    watch = ["requirepass ask", f"sentinel monitor main {HOST} {redis.port} 1", "sentinel auth-pass main sesame"]
    servers = {
        "redis": redis,
        "sentinel": GuardedRedis(binary, watch, sentinel=True),
        "open": GuardedRedis(binary, watch[1:], sentinel=True),
        "tls": GuardedRedis(
            binary, [*watch[1:], *made.settings(made.server), "tls-auth-clients no"], sentinel=True, tls=True
        ),
        # By itself it would take a port 10,000 higher, which may not exist.
        "cluster": GuardedRedis(binary, ["cluster-enabled yes", f"cluster-port {free_port()}"]),
    }
    try:
        for server in servers.values():
            server.start()
        yield {**{name: server.port for name, server in servers.items()}, "nobody": free_port()}
    finally:
        for server in servers.values():
            server.remove()


def ask(url: str, wait_s: float = 60) -> None:
    with connections.translated_at_start(url, wait_s):
        connections.check_safe(connections.connect(url))


@pytest.mark.parametrize("asked", ["{sentinel}", "{nobody},127.0.0.1:{redis},127.0.0.1:{sentinel}"])
def test_one_that_knows_is_enough(ports: dict[str, int], asked: str) -> None:
    ask(f"redis+sentinel://:sesame@127.0.0.1:{asked.format(**ports)}/main/0?sentinel_password=ask")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://:sesame@127.0.0.1:{sentinel}/main", r"127.0.0.1:\d+ refuses .* set sentinel_password"),
        ("redis+sentinel://:sesame@127.0.0.1:{sentinel}/main?sentinel_password=no", "refuses .* set sentinel_password"),
        (
            "redis+sentinel://:sesame@127.0.0.1:{nobody},127.0.0.1:{sentinel}/main?sentinel_password=no",
            r":\d+ does not answer .*; the Sentinel at 127.0.0.1:\d+ refuses .* set sentinel_password",
        ),
        ("redis+sentinel://:sesame@127.0.0.1:{open}/mian", "know no service 'mian', only main: correct /SERVICE/"),
        ("redis+sentinel://:sesame@127.0.0.1:{redis}/main?sentinel_password=sesame", "is no Sentinel: give the Sent"),
        ("rediss+sentinel://:sesame@127.0.0.1:{open}/main", r"does not speak TLS.*write redis\+sentinel://"),
        ("redis+sentinel://:sesame@127.0.0.1:{tls}/main", r"speaks TLS: write rediss\+sentinel://"),
        ("rediss+sentinel://:sesame@127.0.0.1:{tls}/main", "the Sentinel at .* not trusted here.*add ssl_ca_certs"),
        ("redis+sentinel://127.0.0.1:{open}/main", "wants a password, and none was given.*set TOKENMILL_REDIS_URL"),
        ("redis+sentinel://:sesame@127.0.0.1:{open}/main/99", "no database of the number .* give a smaller one"),
        ("redis://127.0.0.1:{open}", r"this is a Sentinel, no Redis: write redis\+sentinel://"),
        ("redis://127.0.0.1:{cluster}/1", "Tokenmill needs one Redis, or Sentinels in front of it"),
    ],
)
def test_what_is_wrong_is_said_at_once(ports: dict[str, int], url: str, said: str) -> None:
    with pytest.raises(RedisRefuses, match=said) as told:
        ask(url.format(**ports))
    assert "sesame" not in str(told.value)


def test_a_cluster_is_refused(ports: dict[str, int]) -> None:
    with pytest.raises(RedisUnsafe, match="Tokenmill needs one Redis, or Sentinels in front of it"):
        ask(f"redis://127.0.0.1:{ports['cluster']}")


@pytest.mark.parametrize(("service", "healthy"), [("main", True), ("mian", False)])
def test_the_images_health_check_asks_sentinels_too(ports: dict[str, int], service: str, healthy: bool) -> None:
    (program,) = re.findall(r'CMD \["python", "-c", "([^"]+)"\]', (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    url = f"redis+sentinel://:sesame@127.0.0.1:{ports['open']}/{service}/0"
    environment = {**os.environ, "TOKENMILL_REDIS_URL": url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) == healthy, done.stderr


def test_what_is_silent_is_waited_for_and_named(ports: dict[str, int]) -> None:
    port = ports["nobody"]
    with pytest.raises(RedisAway, match=rf"no Sentinel names a master for main: 127.0.0.1:{port} does not answer"):
        ask(f"redis+sentinel://127.0.0.1:{port}/main", 0)
