"""No password is ever shown, whatever the URL looks like."""

from typing import Any

import pytest

from budget.connections import BadRedisUrl, async_twin, connect, without_secret
from budget.redis_url import rq_options, sentinels


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("rediss://me:secret@host:1/2?ssl_cert_reqs=none", "rediss://me:***@host:1/2?ssl_cert_reqs=none"),
        ("redis://S3cr3t-Pass@host:7999/0", "redis://***@host:7999/0"),
        ("redis://secret:@host", "redis://***@host"),
        ("redis://@host", "redis://@host"),
        ("redis://:ab://secret@host:1/0", "redis://:***@host:1/0"),
        ("redis+sentinel://:ab://secret@h1,h2/main", "redis+sentinel://:***@h1,h2/main"),
        ("redis+sentinel://h1/main?sentinel_passwd=secret", "redis+sentinel://h1/main?sentinel_passwd=***"),
        ("redis://host?a=1&PASSWORD=secret&db=1", "redis://host?a=1&PASSWORD=***&db=1"),
        ("unix://me:secret@/tmp/s?db=1", "unix://me:***@/tmp/s?db=1"),
        ("unix:///tmp/s", "unix:///tmp/s"),
        ("redis://:sec@ret@host", "redis://:***@host"),
        ("redis://:sec/ret@host:1", "redis://:***@host:1"),
        ("redis://:sec?r#et@host:1", "redis://:***@host:1"),
        ("redis://host?password=secret&db=1", "redis://host?password=***&db=1"),
        ("unix:///s?db=1&password=secret", "unix:///s?db=1&password=***"),
        ("redis://:secret@[::1", "redis://:***@[::1"),
        (":secret@host", ":***@host"),
        ("redis+sentinel://me:secret@h1,h2:1/main/0", "redis+sentinel://me:***@h1,h2:1/main/0"),
        ("redis+sentinel://h1/main?sentinel_password=secret&a=1", "redis+sentinel://h1/main?sentinel_password=***&a=1"),
        ("rediss://host?ssl_password=secret", "rediss://host?ssl_password=***"),
    ],
)
def test_only_the_password_is_hidden(url: str, shown: str) -> None:
    assert without_secret(url) == shown


@pytest.mark.parametrize("url", ["http://:secret@host", "redis://:se/secret@host:x", "redis://[:secret@host", "",
                                  "redis://:ab://secret@host:1/0", "redis+sentinel://:ab://secret@host/",
                                  "redis://host?passwd=secret", "redis://:x?db=secret@host:1"])  # fmt: skip
def test_an_error_does_not_show_it_either(url: str) -> None:
    with pytest.raises(BadRedisUrl) as said:
        connect(url)
    assert "secret" not in str(said.value)
    assert "'se'" not in str(said.value)


@pytest.mark.parametrize("word", ["decode_responses=true", "db=1&decode_responses=True"])
def test_a_url_that_would_make_text_of_results_is_refused(word: str) -> None:
    with pytest.raises(BadRedisUrl, match="decode_responses"):
        connect(f"redis://host:1?{word}")


def test_a_url_with_sentinels() -> None:
    said = sentinels(
        "rediss+sentinel://me:p%40ss@[::1]:5,h2/main.1/3?sentinel_username=s&sentinel_password=t&ssl_ca_certs=/ca"
        "&socket_timeout=7"
    )
    assert (said.hosts, said.service, said.tls) == ([("::1", 5), ("h2", 26379)], "main.1", True)
    wire = {"ssl_ca_certs": "/ca", "socket_timeout": 7.0}
    assert said.redis == {"username": "me", "password": "p@ss", "db": 3, **wire}
    assert said.sentinel == {"username": "s", "password": "t", "ssl": True, "socket_connect_timeout": 2.0, **wire}


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:secret@host",
        "redis+sentinel://:secret@host/",
        "redis+sentinel://:secret@/main",
        "redis+sentinel://:secret@host,/main",
        "redis+sentinel://:secret@host:x/main/0",
        "redis+sentinel://:secret@host/main/zero",
    ],
)
def test_a_url_that_names_no_sentinel_or_no_service_is_refused(url: str) -> None:
    with pytest.raises(BadRedisUrl, match="SERVICE") as said:
        connect(url)
    assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://host:6379/0", "--url redis://host:6379/0"),
        ("rediss://host/0?ssl_ca_certs=/ca&db=1", "--url 'rediss://host/0?ssl_ca_certs=/ca&db=1'"),
        ("redis://:secret@host/0", "-c tokenmill.rq_settings"),
        ("redis://secret@host/0", "-c tokenmill.rq_settings"),
        ("redis+sentinel://host/main", "-c tokenmill.rq_settings"),
    ],
)
def test_what_rqs_commands_are_told_holds_no_password(url: str, options: str) -> None:
    assert rq_options(url) == options


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://host?ssl_cert_reqs=bogus", "ssl_cert_reqs .* 'bogus': give none, optional or required"),
        ("rediss://host?ssl_ca_cert=/ca", "no option 'ssl_ca_cert': correct it to one of .*ssl_ca_certs"),
        ("redis://host?socket_timeout=abc", "socket_timeout .* 'abc': give a number of seconds above 0"),
        ("rediss://host?socket_timeout=0", "socket_timeout .* '0': give a number of seconds above 0"),
        ("redis://host?socket_timeout=nan", "socket_timeout .* 'nan': give a number of seconds above 0"),
        ("redis://host?timeout=5", "no option 'timeout': correct it to one of .*socket_timeout"),
        ("redis://host?protocol=4", "protocol .* '4': give 2 or 3"),
        ("redis://host?sentinel_password=secret", "no option 'sentinel_password'"),
        ("redis+sentinel://host/main?sentinel_passwd=secret", "no option 'sentinel_passwd': .*sentinel_password"),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(url: str, said: str) -> None:
    with pytest.raises(BadRedisUrl, match=said) as told:
        connect(url)
    assert "secret" not in str(told.value)


def test_the_event_loops_client_has_all_that_the_blocking_one_has_but_its_time_outs() -> None:
    url = (
        "rediss://me:p@host:1/2?ssl_password=x&ssl_ciphers=ECDHE-RSA-AES128-GCM-SHA256&ssl_min_version=771"
        "&socket_timeout=3&ssl_check_hostname=false&client_name=c"
    )
    blocking: Any = connect(url)
    twin: Any = async_twin(blocking, 3)
    given, has = blocking.connection_pool.connection_kwargs, twin.connection_pool.connection_kwargs
    names = {name for name in given if name.startswith("ssl_")} | {"host", "port", "db", "username", "client_name"}
    assert {name: has.get(name) for name in names} == {name: given[name] for name in names}
    assert {"ssl_password", "ssl_ciphers", "ssl_min_version"} <= names
    assert "socket_timeout" not in has
    twin.connection_pool.connection_class(**has)
