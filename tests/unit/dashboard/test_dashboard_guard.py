"""Which names the dashboard answers to, and who may change something."""

import pytest

from budget.errors import UserProblem
from tokenmill.dashboard import actions
from tokenmill.dashboard.guard import POLICY, Hosts


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "localhost:8787",
        "LOCALHOST:8787",
        "localhost.:8787",
        "127.0.0.1:8787",
        "[::1]:8787",
        "[::1]",
        "::1",
    ],
)
def test_a_dashboard_on_loopback_answers_to_loopback_names(header: str) -> None:
    assert Hosts("127.0.0.1").allow(header)


@pytest.mark.parametrize(
    "header",
    ["", "evil.example", "evil.example:8787", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.5:8787",
     "[::2]:8787", "evil.example@localhost", "127.0.0.1@evil.example:1", "2130706433"],
)  # fmt: skip
def test_a_name_that_was_pointed_here_is_refused(header: str) -> None:
    assert not Hosts("127.0.0.1").allow(header)


def test_on_all_addresses_any_address_is_safe_and_no_unknown_name() -> None:
    hosts = Hosts("0.0.0.0", ["Mill.example."])
    assert hosts.allow("192.168.1.5:8787") and hosts.allow("[fe80::1]:8787") and hosts.allow("mill.example:80")
    assert not hosts.allow("evil.example:8787")


def test_a_named_host_answers_to_its_name() -> None:
    assert Hosts("gpu1.lan").allow("gpu1.lan:8787")
    assert not Hosts("gpu1.lan").allow("gpu2.lan:8787")


def test_the_page_may_run_and_load_its_own_only() -> None:
    assert "default-src 'none'" in POLICY and "unsafe" not in POLICY


@pytest.mark.parametrize("header", [None, "", "Bearer ", "Bearer wrong", "Basic secret", "secret", "Bearer secret "])
def test_without_the_right_token_nobody_acts(header: str | None) -> None:
    assert actions.refusal("secret", header) == actions.WRONG_TOKEN
    assert actions.refusal(None, header) == actions.READ_ONLY


def test_with_the_token_one_acts() -> None:
    assert actions.refusal("secret", "Bearer secret") is None
    assert actions.refusal("sécret", "bearer sécret") is None
    assert actions.refusal(None, "Bearer secret") == actions.READ_ONLY


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"dataset": 1}', b"\xff", b"[" * 100_000, b"null"])
def test_a_body_that_is_no_object_of_texts_is_refused(body: bytes) -> None:
    with pytest.raises(UserProblem):
        actions.given(body)
