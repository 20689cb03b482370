"""TLS in earnest: who is trusted, and one sentence with the mend for each way to get it wrong."""

import asyncio
import shutil
from collections.abc import Generator
from typing import Any

import pytest

from budget import connections
from budget.connections import BadRedisUrl, RedisRefuses
from tests.redis_support import HOST, Certificates, GuardedRedis

pytestmark = pytest.mark.redis_server

Places = dict[str, str]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Generator[Places]:
    """The beginnings and ends of URLs: three servers, and the options that fit them."""
    binary = shutil.which("redis-server")
    if binary is None or shutil.which("openssl") is None:
        pytest.skip("no redis-server or no openssl on PATH")
    made = Certificates(tmp_path_factory.mktemp("certificates"))

    def guarded(certificate: Any, clients: str) -> GuardedRedis:
        lines = [*made.settings(certificate), f"tls-auth-clients {clients}", "requirepass sesame"]
        return GuardedRedis(binary, lines, tls=True)

    old, young = made.dated("old", "20200101", "20210101"), made.dated("young", "20500101", "20600101")
    servers = {
        "young": guarded(young, "no"),
        "tls": guarded(made.server, "no"),
        "mutual": guarded(made.server, "yes"),
        "elsewhere": guarded(made.elsewhere, "no"),
        "plain": GuardedRedis(binary, ["requirepass sesame"]),
    }
    try:
        for server in servers.values():
            server.start()
        yield {
            **{name: f":sesame@{HOST}:{server.port}/0" for name, server in servers.items()},
            "ca": f"ssl_ca_certs={made.ca}",
            "stranger": f"ssl_ca_certs={made.stranger}",
            "client": f"ssl_certfile={made.client}&ssl_keyfile={made.key(made.client)}",
            "unknown": f"ssl_certfile={made.stranger}&ssl_keyfile={made.key(made.stranger)}",
            "mixed": f"ssl_certfile={made.client}&ssl_keyfile={made.key(made.stranger)}",
            "old": f"ssl_certfile={old}&ssl_keyfile={made.key(old)}",
            "locked": f"ssl_certfile={made.client}&ssl_keyfile={made.encrypted(made.client, 'open')}",
            "key": f"ssl_ca_certs={made.key(made.ca)}",
        }
    finally:
        for server in servers.values():
            server.remove()


def ask(url: str) -> None:
    """As each part begins. It would wait for a Redis that is away."""
    with connections.translated_at_start(url, 60), connections.connect(url) as client:
        client.info("server")


@pytest.mark.parametrize(
    "url",
    [
        "rediss://{tls}?{ca}",
        "rediss://{tls}?ssl_cert_reqs=none",
        "rediss://{elsewhere}?{ca}&ssl_check_hostname=false",
        "rediss://{mutual}?{ca}&{client}",
        "rediss://{mutual}?{ca}&{locked}&ssl_password=open",
    ],
)
def test_what_is_right_connects(places: Places, url: str) -> None:
    ask(url.format(**places))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://{tls}", "not trusted here.*add ssl_ca_certs=FILE"),
        ("rediss://{tls}?{stranger}", "not trusted here.*add ssl_ca_certs=FILE"),
        ("rediss://{elsewhere}?{ca}", "for another name.*use a name that stands in it"),
        ("redis://{tls}", "speaks TLS: write rediss://"),
        ("rediss://{plain}?{ca}", "does not speak TLS.*write redis://"),
        ("rediss://{mutual}?{ca}", "wants a certificate: add ssl_certfile=FILE&ssl_keyfile=FILE"),
        ("rediss://{mutual}?{ca}&{unknown}", "does not trust the certificate of ssl_certfile"),
        ("rediss://{mutual}?{ca}&{old}", "does not trust the certificate of ssl_certfile, which is expired: give one"),
        ("rediss://{young}?{ca}", "not yet valid: look at the clocks"),
        ("rediss://{mutual}?{ca}&{mixed}", "cannot be used .*correct them"),
        ("rediss://{tls}?{key}", "cannot be used .*correct them"),
    ],
)
def test_what_is_wrong_is_said_at_once(places: Places, url: str, said: str) -> None:
    """Not waited for, as a Redis that is away would be."""
    with pytest.raises(RedisRefuses, match=said) as told:
        ask(url.format(**places))
    assert "sesame" not in str(told.value)


@pytest.mark.parametrize("own", ["", "&{unknown}", "&{old}"])
def test_a_certificate_that_is_wrong_is_told_however_the_race_ends(places: Places, own: str) -> None:
    """The server judges it after the handshake, while the client writes already."""
    url = "rediss://{mutual}?{ca}".format(**places) + own.format(**places)
    for _ in range(30):
        with pytest.raises(RedisRefuses, match="certificate"):
            ask(url)


@pytest.mark.parametrize(
    ("phrase", "said"), [("", "add its pass phrase as ssl_password"), ("&ssl_password=secret", "correct ssl_password")]
)
def test_a_key_that_does_not_open_is_told_and_nobody_is_asked_for_it(places: Places, phrase: str, said: str) -> None:
    with pytest.raises(BadRedisUrl, match=f"client.locked.key is encrypted, .*{said}") as told:
        connections.connect("rediss://{mutual}?{ca}&{locked}".format(**places) + phrase)
    assert "secret" not in str(told.value)


def test_a_locked_key_opens_for_the_event_loop_too(places: Places) -> None:
    async def ping() -> None:
        client: Any = connections.connect_async(
            "rediss://{mutual}?{ca}&{locked}&ssl_password=open".format(**places), connections=2
        )
        assert await client.ping()
        await client.aclose()

    asyncio.run(ping())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://host/0?ssl_ca_certs=/nowhere/ca.crt", "ssl_ca_certs .* names /nowhere/ca.crt, which cannot be read"),
        ("rediss://host/0?ssl_keyfile=/dev/null", "no certificate: add ssl_certfile"),
        ("redis://host/0?ssl_ca_certs=/dev/null", "for TLS: begin it with rediss://"),
        ("redis+sentinel://host/main?ssl_cert_reqs=none", "for TLS: begin it with rediss\\+sentinel://"),
        ("rediss://host/0?ssl_cert_reqs=maybe", "give none, optional or required"),
        ("rediss://host/0?ssl_ciphers=bogus", "ssl_ciphers .* 'bogus': give names that OpenSSL has for ciphers"),
    ],
)
def test_options_that_cannot_be_meant(url: str, said: str) -> None:
    with pytest.raises(BadRedisUrl, match=said):
        connections.connect(url)
