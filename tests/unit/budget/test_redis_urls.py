"""No password is ever shown, whatever the URL looks like."""

import pytest

from budget.connections import BadRedisUrl, connect, without_secret


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("rediss://me:secret@host:1/2?ssl_cert_reqs=none", "rediss://me:***@host:1/2?ssl_cert_reqs=none"),
        ("redis://me@host", "redis://me@host"),
        ("unix://me:secret@/tmp/s?db=1", "unix://me:***@/tmp/s?db=1"),
        ("unix:///tmp/s", "unix:///tmp/s"),
        ("redis://:sec@ret@host", "redis://:***@host"),
        ("redis://:sec/ret@host:1", "redis://:***@host:1"),
        ("redis://:sec?r#et@host:1", "redis://:***@host:1"),
        ("redis://host?password=secret&db=1", "redis://host?password=***&db=1"),
        ("unix:///s?db=1&password=secret", "unix:///s?db=1&password=***"),
        ("redis://:secret@[::1", "redis://:***@[::1"),
        (":secret@host", ":***@host"),
    ],
)
def test_only_the_password_is_hidden(url: str, shown: str) -> None:
    assert without_secret(url) == shown


@pytest.mark.parametrize("url", ["http://:secret@host", "redis://:se/secret@host:x", "redis://[:secret@host", ""])
def test_an_error_does_not_show_it_either(url: str) -> None:
    with pytest.raises(BadRedisUrl) as said:
        connect(url)
    assert "secret" not in str(said.value)
    assert "'se'" not in str(said.value)


@pytest.mark.parametrize("word", ["decode_responses=true", "db=1&decode_responses=True"])
def test_a_url_that_would_make_text_of_results_is_refused(word: str) -> None:
    with pytest.raises(BadRedisUrl, match="decode_responses"):
        connect(f"redis://host:1?{word}")
