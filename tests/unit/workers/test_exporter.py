"""The metrics of a worker that cannot be served: one sentence each."""

import sys

import pytest

from budget.errors import UserProblem
from workers.metrics import Exporter


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserProblem, match="pip install prometheus-client"):
        Exporter("w", "127.0.0.1", 0)


def test_a_strange_address_is_refused() -> None:
    with pytest.raises(UserProblem, match=r"--metrics-host 192\.0\.2\.1 is no address of this machine"):
        Exporter("w", "192.0.2.1", 0)


def test_before_there_is_an_engine_there_is_the_process_alone() -> None:
    exporter = Exporter("w", "127.0.0.1", 0)
    assert list(exporter.collect()) == [] and exporter.port > 0
    exporter.close()
