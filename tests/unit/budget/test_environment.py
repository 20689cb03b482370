"""Secrets of the environment that no HTTP header can hold are told at once, and not shown."""

from collections.abc import Callable

import pytest

from budget import environment
from budget.errors import UserProblem


@pytest.mark.parametrize("held", ["hunter2\n", " hunter2", "hunter2\udcff", "hünter2"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("TOKENMILL_SGLANG_API_KEY", environment.sglang_api_key),
        ("TOKENMILL_DASHBOARD_TOKEN", environment.dashboard_token),
    ],
)
def test_what_no_header_can_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, read: Callable[[], str | None], held: str
) -> None:
    monkeypatch.setenv(name, held)
    with pytest.raises(UserProblem, match=f"{name} has characters") as refusal:
        read()
    assert "nter2" not in str(refusal.value)
    monkeypatch.setenv(name, "hunter2")
    assert read() == "hunter2"
