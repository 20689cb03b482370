"""A dashboard of a test's own, asked as a browser or Prometheus would ask it."""

import http.client
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rq.utils import now, utcformat

from budget import keys
from tests.e2e_support import Job, Running, wait_for

TOKEN = "a-token-of-the-test"
SERVERS = ("http://gpu0:30000", "http://gpu1:30000")


class Answer(NamedTuple):
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Dashboard:
    """`tokenmill dashboard` on a free port."""

    def __init__(self, job: Job, *arguments: str, token: str | None = TOKEN) -> None:
        environment = {} if token is None else {"TOKENMILL_DASHBOARD_TOKEN": token}
        self.process: Running = job.start("dashboard", "--port", "0", *arguments, **environment)
        self.port = int(wait_for("the dashboard", self._address) or 0)
        self.url = f"http://127.0.0.1:{self.port}/"

    def _address(self) -> str | None:
        assert self.process.is_running, self.process.text
        found = re.search(r"http://\S+:(\d+)/", self.process.text)
        return found and found[1]

    def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        """GET, or POST where there is a body: bytes as they are, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            given.setdefault("content-type", "application/json")
        try:
            connection.request("GET" if data is None else "POST", path, data, given)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def act(self, name: str, *, token: str = TOKEN, **texts: str) -> Answer:
        return self.ask(f"/actions/{name}", texts, authorization=f"Bearer {token}")

    def state(self) -> dict[str, Any]:
        """The state, once there is one."""
        wait_for("the state", lambda: self.ask("/state.json").code == 200)
        return self.ask("/state.json").json


def begin(client: Any, job: Job) -> None:
    """A run in its middle, in Redis as its parts would have written it: two servers, of which one is down."""
    for number, (name, table) in enumerate(job.datasets.items()):
        fields = {"cap": table["max_tokens"], "reserved": 100, "committed": 90, "rejected": number, "truncated": 9}
        client.hset(keys.budget(name), mapping={**fields, "inputs": 10_000})
        client.set(keys.spent(name), 250)
        client.hset(keys.RATES, name, "812.5")
        client.set(keys.producer_lock(name), "x")
        client.hset(keys.ages(name), mapping={"c10": 40, "c20": 30, "c30": 20, "f12": 5})
        client.hset(keys.leases(name), mapping={f"job{lease}": "x" for lease in range(5)})
    client.set(keys.COLLECTOR_LOCK, "x")
    worker = keys.rq_worker("w1")
    client.sadd(keys.RQ_WORKERS, worker)
    fields = {"hostname": "host1", "in_flight": 60, "slots": 64, "state": "busy", "servers": ",".join(SERVERS)}
    client.hset(worker, mapping=fields)
    seen = utcformat(now())
    client.hset(keys.server(SERVERS[0]), mapping={"state": "up", "seen": seen, "running": 60, "waiting": 2})
    client.hset(keys.server(SERVERS[1]), mapping={"state": "down", "seen": seen, "reason": "it refused"})
