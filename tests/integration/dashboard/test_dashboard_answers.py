"""The dashboard as a process: what it answers, to whom, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from budget import keys
from tests.dashboard_support import SERVERS, TOKEN, Dashboard
from tests.e2e_support import ROOT, Job, RedisServer, wait_for
from tests.support import listening_at


def test_it_shows_the_same_state_as_status(running: Job, dashboard: Dashboard) -> None:
    state = dashboard.state()
    plain = running.status()
    for shown in (state, plain):
        for server in shown["servers"]:
            server.pop("tokens_per_s")
    assert state == plain
    assert [trouble["about"] for trouble in state["troubles"]] == ["servers"]


def test_metrics_are_read_by_prometheus_own_parser(dashboard: Dashboard) -> None:
    dashboard.state()
    answer = dashboard.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [sample for family in text_string_to_metric_families(answer.body.decode()) for sample in family.samples]
    tokens = {s.labels["dataset"]: s.value for s in samples if s.name == "tokenmill_tokens_total"}
    assert tokens == {"A1": 250, "B2": 250}


def test_every_answer_forbids_what_is_not_its_own(dashboard: Dashboard) -> None:
    for path in ("/", "/static/dashboard.js", "/static/dashboard.css", "/metrics", "/nothing"):
        headers = dashboard.ask(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    page = dashboard.ask("/").body.decode()
    assert "<script>" not in page and "style=" not in page and not re.search(r"\son\w+=", page)
    assert not re.search(r"(?:src|href)=\"(?:\w+:)?//", page), "nothing is loaded from elsewhere"


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/"])
def test_only_the_static_files_are_given_out(dashboard: Dashboard, path: str) -> None:
    assert dashboard.ask(path).code == 404


def test_another_host_name_is_refused(dashboard: Dashboard) -> None:
    for path in ("/", "/state.json", "/metrics", "/events"):
        answer = dashboard.ask(path, host="evil.example")
        assert answer.code == 421 and "--allow-host" in answer.json["error"]
    assert dashboard.act("pause", token="x").code == 403
    assert dashboard.ask("/", host=f"localhost:{dashboard.port}").code == 200


def test_a_cap_is_changed_with_the_token(dashboard: Dashboard, redis_server: RedisServer) -> None:
    client: Any = redis_server.client
    answer = dashboard.act("cap", dataset="A1", tokens="12_345")
    assert (answer.code, answer.json) == (200, {"said": "A1: cap 1000 -> 12345 tokens"})
    assert client.hget(keys.budget("A1"), "cap") == b"12345"
    wait_for("the new cap on the page", lambda: dashboard.state()["datasets"][0]["cap"] == 12345)
    assert dashboard.act("cap", dataset="A1", tokens="none").code == 200
    assert client.hget(keys.budget("A1"), "cap") == b"none"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"dataset": "A1", "tokens": "many"}, "is no cap"), ({"dataset": "A1", "tokens": "-5"}, "is no cap"),
        ({"dataset": "A1", "tokens": "9" * 40}, "is no cap"), ({"dataset": "A1", "tokens": "١٢"}, "is no cap"),
        ({"dataset": "Z", "tokens": "5"}, "no dataset"), ({}, "no dataset"),
    ],
)  # fmt: skip
def test_a_senseless_cap_is_refused_in_a_sentence(
    dashboard: Dashboard, redis_server: RedisServer, texts: dict[str, str], said: str
) -> None:
    answer = dashboard.act("cap", **texts)
    assert answer.code == 400 and said in answer.json["error"]
    client: Any = redis_server.client
    assert client.hget(keys.budget("A1"), "cap") == b"1000"


def test_pausing_is_rqs_own(running: Job, dashboard: Dashboard, redis_server: RedisServer) -> None:
    client: Any = redis_server.client
    assert dashboard.act("pause").code == 200
    assert client.exists(keys.RQ_SUSPENDED)
    assert running.status()["suspended"] is True
    assert dashboard.act("resume").code == 200
    assert not client.exists(keys.RQ_SUSPENDED)


def test_a_server_is_drained_and_used_again(dashboard: Dashboard, redis_server: RedisServer) -> None:
    client: Any = redis_server.client
    assert dashboard.act("drain", server=SERVERS[0]).code == 200
    assert client.hgetall(keys.SERVERS) == {SERVERS[0].encode(): b"drain"}
    wait_for("it on the page", lambda: dashboard.state()["servers"][0]["state"] == "draining")
    assert dashboard.act("use", server=SERVERS[0]).code == 200
    assert client.hgetall(keys.SERVERS) == {SERVERS[0].encode(): b"use"}
    for action, server in (
        ("drain", "http://evil.example"),
        ("use", "http://evil.example"),
        ("drain", ""),
        ("use", ""),
    ):
        assert dashboard.act(action, server=server).code == 400
    assert client.hlen(keys.SERVERS) == 1


def test_without_the_token_nothing_changes_and_it_is_nowhere_to_be_seen(
    running: Job, dashboard: Dashboard, redis_server: RedisServer
) -> None:
    before = running.status()["datasets"]
    for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
        answer = dashboard.act("cap", token=token, dataset="A1", tokens="5")
        assert answer.code == 403 and "not the token" in answer.json["error"]
    assert dashboard.ask("/actions/pause", {}).code == 403
    assert dashboard.ask(f"/actions/pause?token={TOKEN}", {}).code == 403
    assert running.status()["datasets"] == before
    client: Any = redis_server.client
    assert not client.exists(keys.RQ_SUSPENDED)
    assert dashboard.act("pause").code == 200
    for path in ("/", "/state.json", "/metrics", "/static/actions.js"):
        assert TOKEN.encode() not in dashboard.ask(path).body
    assert TOKEN not in dashboard.process.text


def test_without_a_token_of_its_own_it_is_read_only(running: Job) -> None:
    dashboard = Dashboard(running, token=None)
    assert "read-only" in dashboard.process.text
    answer = dashboard.act("pause")
    assert answer.code == 403 and "TOKENMILL_DASHBOARD_TOKEN" in answer.json["error"]


def test_bodies_that_are_no_action_are_refused(dashboard: Dashboard) -> None:
    def post(body: bytes, **headers: str) -> int:
        return dashboard.ask("/actions/cap", body, authorization=f"Bearer {TOKEN}", **headers).code

    assert post(b"dataset=A1&tokens=5", content_type="application/x-www-form-urlencoded") == 415
    assert post(b"{") == 400
    assert post(b'{"tokens": "' + b"9" * 100_000 + b'"}') == 400
    assert dashboard.act("format-the-disk").code == 404
    assert dashboard.ask("/actions/pause").code == 405


def events(dashboard: Dashboard) -> Iterator[tuple[str, Any]]:
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=60) as raw:
        raw.sendall(f"GET /events HTTP/1.0\r\nhost: localhost:{dashboard.port}\r\n\r\n".encode())
        name = ""
        for line in raw.makefile("rb"):
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])


def test_the_stream_brings_history_details_and_each_change(dashboard: Dashboard, redis_server: RedisServer) -> None:
    dashboard.state()
    seen: list[str] = []
    client: Any = redis_server.client
    for name, data in events(dashboard):
        seen.append(name)
        if name == "details":
            assert list(data["lengths"]) == ["A1", "B2"]
            assert sum(data["lengths"]["A1"]["counts"]) == 90
        if name == "state" and data["status"]["datasets"][0]["spent"] == 250:
            assert data["can_act"] is True and data["news"] is None
            client.set(keys.spent("A1"), 700)
        elif name == "state":
            assert data["status"]["datasets"][0]["spent"] == 700
            break
    assert seen[0] == "history" and {"details", "state"} <= set(seen)


def test_redis_goes_and_comes_back_under_it(dashboard: Dashboard, redis_server: RedisServer) -> None:
    dashboard.state()
    redis_server.kill()
    wait_for("the news", lambda: dashboard.ask("/state.json").code == 503)
    assert "Redis does not answer" in dashboard.ask("/state.json").json["error"]
    assert b"tokenmill_redis_up 0.0" in dashboard.ask("/metrics").body
    assert dashboard.act("pause").code == 503
    redis_server.start()
    assert dashboard.state()["datasets"][0]["spent"] == 250
    assert "Traceback" not in dashboard.process.text


def test_without_redis_it_shows_the_files(local_job: Job) -> None:
    local_job.dataset("A1", b"", max_tokens=1000)
    local_job.write()
    answers = local_job.output / "A1" / "raw_responses.jsonl"
    answers.parent.mkdir(parents=True)
    answers.write_text('{"id": "x", "completion_tokens": 77}\n')
    dashboard = Dashboard(local_job)
    for name, data in events(dashboard):
        if name == "state" and data["status"] is not None:
            assert data["status"]["datasets"][0]["spent"] == 77
            assert "is not running" in data["news"]
            break
    assert dashboard.act("pause").code == 503


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_though_pages_are_open(dashboard: Dashboard, number: signal.Signals) -> None:
    stream = events(dashboard)
    next(stream)
    dashboard.process.send(number)
    assert dashboard.process.ended() == 0, dashboard.process.text
    assert "Traceback" not in dashboard.process.text and "Cancel" not in dashboard.process.text
    list(stream)


def test_it_listens_on_loopback_alone(dashboard: Dashboard) -> None:
    assert listening_at(dashboard.port) == ["0100007F"]


def test_a_taken_port_and_a_strange_address_are_a_sentence_each(running: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ended = running.call("dashboard", "--port", str(other.getsockname()[1]))
    assert ended.code == 2 and "is taken: give another with --port" in ended.said[0]
    ended = running.call("dashboard", "--port", "0", "--host", "192.0.2.1")
    assert ended.code == 2 and "no address of this machine" in ended.said[0]


def test_without_its_extra_it_says_what_to_install(running: Job) -> None:
    program = "import sys; sys.modules['starlette'] = None; from tokenmill.cli import main; main()"
    command = [sys.executable, "-c", program, "dashboard", str(running.file)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ}, timeout=60)
    assert ended.returncode == 2
    assert "pip install starlette uvicorn prometheus-client" in ended.stderr and len(ended.stderr.splitlines()) == 1
