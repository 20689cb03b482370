"""Servers for the tests of a fleet: simulated ones with logs of their own, and one that only counts."""

import http.server
import json
import threading
import time
from pathlib import Path
from typing import Any

from tests.e2e_support import Simulator, simulator_config


def simulator(folder: Path, name: str, **settings: Any) -> Simulator:
    """A simulated server with a folder of its own."""
    place = folder / name
    place.mkdir()
    return Simulator(place, simulator_config(place, **settings))


def in_flight_at_most(log: Path, dataset: str) -> int:
    """The most requests of a dataset that a server ever had at a time, by its log."""
    flying, most = 0, 0
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event.get("dataset") == dataset:
            flying += 1 if event["event"] == "received" else -1
            most = max(most, flying)
    return most


class Unavailable:
    """A server that answers 503 to everything, a while after it was asked; it counts. A context manager.

    Of /ready it knows nothing, as a proxy may: the tries are what is counted.
    """

    def __init__(self, answer_s: float) -> None:
        self.began: list[float] = []
        self.at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/ready":
                    self.send_error(404)
                    return
                with outer._lock:
                    outer.began.append(time.monotonic())
                    outer._now += 1
                    outer.at_once = max(outer.at_once, outer._now)
                self.rfile.read(int(self.headers.get("content-length") or 0))
                time.sleep(answer_s)
                with outer._lock:
                    outer._now -= 1
                self.send_response(503)
                self.send_header("content-length", "0")
                self.end_headers()

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> "Unavailable":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
