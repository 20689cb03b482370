"""One worker process for Prometheus: what it has in flight, its servers as it sees them, and its CPU and memory.

The run's own numbers are the dashboard's; all names here begin with `tokenmill_worker_`, so that no sum counts
anything twice. Off unless `tokenmill work --metrics-port` asks for it.
"""

import errno
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from budget.errors import OutsideFault, UserProblem

if TYPE_CHECKING:
    from workers.engine import Engine

log = logging.getLogger("tokenmill.worker")


class Exporter:
    """Serves /metrics of this process; `engine` is what it tells of, once there is one.

    Raises:
        UserProblem: prometheus-client is not installed, or the port is taken or not ours to take.
    """

    def __init__(self, worker: str, host: str, port: int) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise UserProblem(
                "--metrics-port needs prometheus-client: install it with pip install prometheus-client"
            ) from error
        self.engine: Engine | None = None
        self._worker = worker
        registry = prometheus_client.CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=registry)
        registry.register(self)  # pyright: ignore[reportArgumentType] - it collects
        library: Any = prometheus_client
        # Only one scrape at a time: a second one waits.
        try:
            self._server = make_server(host, port, library.make_wsgi_app(registry), handler_class=_Quiet)
        except OSError as error:
            raise _refused(host, port, error) from error
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        log.info("metrics of this worker: http://%s:%d/metrics", f"[{host}]" if ":" in host else host, self.port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> "Iterable[Any]":
        """The families of one scrape; read beside the event loop, so each is copied in one step."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        engine = self.engine
        if engine is None:
            return
        worker = self._worker
        in_flight = GaugeMetricFamily(
            "tokenmill_worker_requests_in_flight", "Requests in flight.", labels=["worker", "dataset"]
        )
        flights = Counter(flight.lease.dataset for flight in list(engine.flights.values()))
        for dataset in engine.datasets:
            in_flight.add_metric([worker, dataset], flights[dataset])
        yield in_flight
        slots = GaugeMetricFamily("tokenmill_worker_slots", "Requests it may have in flight.", labels=["worker"])
        slots.add_metric([worker], engine.slots)
        yield slots
        wasted = CounterMetricFamily(
            "tokenmill_worker_wasted_tokens", "Tokens generated and not kept.", labels=["worker", "dataset"]
        )
        for dataset, tokens in list(engine.wasted.items()):
            wasted.add_metric([worker, dataset], tokens)
        yield wasted
        yield from self._of_servers(engine)

    def _of_servers(self, engine: "Engine") -> "Iterable[Any]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["worker", "server"]
        tokens = CounterMetricFamily("tokenmill_worker_tokens", "Tokens of the answers it received.", labels=labels)
        up = GaugeMetricFamily("tokenmill_worker_server_up", "1 while it may use the server.", labels=labels)
        there = GaugeMetricFamily(
            "tokenmill_worker_server_requests_in_flight", "Requests it has in flight there.", labels=labels
        )
        speed = GaugeMetricFamily(
            "tokenmill_worker_request_tokens_per_second", "Speed of one request there, recently.", labels=labels
        )
        for server in list(engine.servers.all):
            values = [self._worker, server.url]
            tokens.add_metric(values, server.tokens)
            up.add_metric(values, server.up)
            there.add_metric(values, server.in_flight)
            speed.add_metric(values, server.speed)
        return [tokens, up, there, speed]


class _Quiet(WSGIRequestHandler):
    """Logs no request, and gives a silent client up."""

    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        return


def _refused(host: str, port: int, error: OSError) -> UserProblem | OutsideFault:
    if error.errno == errno.EADDRINUSE:
        return UserProblem(f"port {port} of {host} is taken: give another with --metrics-port (0: any free one)")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return UserProblem(f"--metrics-host {host} is no address of this machine")
    return OutsideFault(f"cannot listen on {host}, port {port}: {error.strerror}")
