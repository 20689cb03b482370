"""The run's numbers for Prometheus, each built from the same look that the page shows.

What one worker process knows alone is in `workers.metrics`; those names begin with `tokenmill_worker_`, so that
no sum counts anything twice.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tokenmill.dashboard.source import Look
from tokenmill.state import DatasetStatus, ServerStatus, Status, WorkerStatus

# name, what it is, and its value; None is left out. The name of a counter gets its _total from the library.
_COUNTERS = (
    ("tokenmill_tokens", "Completion tokens that count towards the cap.", "spent"),
    ("tokenmill_wasted_tokens", "Tokens that were generated and not kept.", "wasted"),
    ("tokenmill_answers", "Prompts that were answered.", "committed"),
    ("tokenmill_truncated_answers", "Answers that were cut at their longest length.", "truncated"),
)
_GAUGES = (
    ("tokenmill_cap_tokens", "The budget in completion tokens; absent where there is none.", "cap"),
    ("tokenmill_reserved_tokens", "Tokens held by requests in flight.", "reserved"),
    ("tokenmill_forecast_tokens", "Where the dataset will probably end.", "forecast"),
    ("tokenmill_prompts", "Prompts in the dataset's files; absent until they are counted.", "inputs"),
    ("tokenmill_prompts_queued", "Prompts in the queue.", "queued"),
    ("tokenmill_prompts_unsent", "Prompts that were never queued; absent until they are counted.", "unsent"),
    ("tokenmill_prompts_dropped", "Prompts left over when the dataset had its tokens.", "dropped"),
    ("tokenmill_prompts_rejected", "Prompts that can never work, until they are retried.", "rejected"),
    ("tokenmill_requests_in_flight", "Requests in flight, by dataset.", "leased"),
    ("tokenmill_tokens_per_second", "Tokens per second over the last minute.", "tokens_per_s"),
    ("tokenmill_dataset_complete", "1 where the dataset has its tokens or no prompts left.", "complete"),
)
_SERVER = (
    ("tokenmill_server_requests_running", "Requests that the server runs, as it says.", "running"),
    ("tokenmill_server_requests_waiting", "Requests that wait in the server, as it says.", "waiting"),
    ("tokenmill_server_tokens_per_second", "Tokens per second of the server, as it says.", "tokens_per_s"),
)
_WORKER = (
    ("tokenmill_slots", "Requests that a worker may have in flight.", "slots"),
    ("tokenmill_slots_in_use", "Requests that a worker has in flight.", "in_flight"),
)


def exposition(look: Look) -> tuple[bytes, str]:
    """The text for Prometheus, and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Run(look))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _Run(Collector):
    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterable[Metric]:
        status = self._look.status
        redis_up = self._look.news is None and status is not None
        yield GaugeMetricFamily("tokenmill_redis_up", "1 while the run's Redis can be read.", value=redis_up)
        # Numbers from before would look like a run that stands still.
        if status is not None and redis_up:
            yield from _of_run(status)


def _of_run(status: Status) -> Iterable[Metric]:
    for name, text, field in _COUNTERS:
        yield _filled(CounterMetricFamily(name, text, labels=["dataset"]), status.datasets, "name", field)
    for name, text, field in _GAUGES:
        yield _filled(GaugeMetricFamily(name, text, labels=["dataset"]), status.datasets, "name", field)
    up = GaugeMetricFamily("tokenmill_server_up", "0 while the server is at fault.", labels=["server"])
    draining = GaugeMetricFamily("tokenmill_server_draining", "1 while nothing new is sent to it.", labels=["server"])
    for server in status.servers:
        up.add_metric([server.url], server.state != "down")
        draining.add_metric([server.url], server.state == "draining")
    yield up
    yield draining
    for name, text, field in _SERVER:
        yield _filled(GaugeMetricFamily(name, text, labels=["server"]), status.servers, "url", field)
    for name, text, field in _WORKER:
        yield _filled(GaugeMetricFamily(name, text, labels=["worker"]), status.workers, "name", field)
    yield GaugeMetricFamily("tokenmill_workers", "Worker processes.", value=len(status.workers))
    yield GaugeMetricFamily("tokenmill_paused", "1 while no worker takes new prompts.", value=status.suspended)
    yield GaugeMetricFamily("tokenmill_collector_up", "1 while a collector runs.", value=status.collector)
    yield GaugeMetricFamily(
        "tokenmill_results_waiting", "Results that wait for the collector.", value=status.waiting_results
    )
    troubles = GaugeMetricFamily(
        "tokenmill_troubles", "What is wrong with the run, by how bad it is.", labels=["level"]
    )
    for level in ("error", "warning"):
        troubles.add_metric([level], sum(trouble.level == level for trouble in status.troubles))
    yield troubles


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily,
    rows: list[DatasetStatus] | list[ServerStatus] | list[WorkerStatus],
    label: str,
    field: str,
) -> Metric:
    for row in rows:
        value = getattr(row, field)
        if value is not None:
            family.add_metric([getattr(row, label)], value)
    return family
