"""The run's numbers for Prometheus: named by its conventions, read by its own parser, and all that Grafana asks for."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.dashboard.looks import DATASET, status
from tokenmill.dashboard import metrics
from tokenmill.dashboard.source import Details, Look
from tokenmill.state import Status

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "deploy" / "grafana" / "tokenmill.json"


def samples(shown: Status | None, news: str | None = None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text, kind = metrics.exposition(Look(shown, news, Details({}, [])))
    assert kind.startswith("text/plain")
    families = list(text_string_to_metric_families(text.decode()))
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_every_number_has_its_labels() -> None:
    found = samples(status())
    dataset = (("dataset", DATASET),)
    assert found["tokenmill_tokens_total", dataset] == 4000
    assert found["tokenmill_cap_tokens", dataset] == 10_000
    assert found["tokenmill_requests_in_flight", dataset] == 12
    assert found["tokenmill_server_up", (("server", "http://gpu0:1"),)] == 1
    assert found["tokenmill_server_up", (("server", "http://gpu1:1"),)] == 0
    assert found["tokenmill_server_up", (("server", "http://gpu2:1"),)] == 1
    assert found["tokenmill_server_draining", (("server", "http://gpu0:1"),)] == 0
    assert found["tokenmill_server_draining", (("server", "http://gpu2:1"),)] == 1
    assert found["tokenmill_slots", (("worker", "w1"),)] == 64
    assert found["tokenmill_redis_up", ()] == 1


def test_what_is_not_known_is_absent_and_nothing_old_is_told() -> None:
    names = {name for name, _ in samples(status(cap=None, inputs=None, unsent=None))}
    assert not {"tokenmill_cap_tokens", "tokenmill_prompts", "tokenmill_prompts_unsent"} & names
    assert samples(status(), news="Redis does not answer") == {("tokenmill_redis_up", ()): 0}
    assert samples(None) == {("tokenmill_redis_up", ()): 0}


def test_hostile_names_stay_labels() -> None:
    name = 'a"} evil 1\n# \\'
    assert samples(status(name=name))["tokenmill_tokens_total", (("dataset", name),)] == 4000


def test_names_follow_the_conventions() -> None:
    text, _ = metrics.exposition(Look(status(), None, Details({}, [])))
    for family in text_string_to_metric_families(text.decode()):
        assert re.fullmatch(r"tokenmill(_[a-z0-9]+)+", family.name)
        assert family.documentation and family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")


def test_grafana_asks_only_for_what_there_is() -> None:
    board = json.loads(GRAFANA.read_text())
    found: list[str] = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(found) >= 10
    exported = {name for name, _ in samples(status())} | worker_names()
    asked = {name for text in found for name in re.findall(r"\b(?:tokenmill|process)_[a-z0-9_]+", text)}
    assert asked and asked <= exported
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def worker_names() -> set[str]:
    """What a worker process exports, as its module names it."""
    source = (ROOT / "workers" / "metrics.py").read_text()
    counters = set(re.findall(r'CounterMetricFamily\(\s*"(\w+)"', source))
    gauges = set(re.findall(r'GaugeMetricFamily\(\s*"(\w+)"', source))
    assert counters and gauges
    process = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}
    return {f"{name}_total" for name in counters} | gauges | process
