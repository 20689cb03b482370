"""Whoever can write to Redis puts in what no part of Tokenmill writes: it is rejected with a line, and does nothing."""

import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import zstandard

from tests.dashboard_support import Dashboard
from tests.e2e_support import Job, RedisServer, prompts, wait_for
from tests.job_fixtures import StartSimulator
from workers.contracts import Payload, job_id
from workers.encodings import encode_job_data

COUNT, SLOTS = 10, 4
ACTS = "\x1b]0;owned\x07\x1b[2J\u202e<script>alert(1)</script>\n00:00:00 collector: A1 is finished"


class Boom:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def call(function: Any, **kwargs: Any) -> bytes:
    return zlib.compress(json.dumps([function, None, [], kwargs]).encode())


def hostile_jobs(proof: Path) -> dict[str, bytes]:
    """Job ids and their data."""
    ids = {"dataset": "A1", "id": "x", "input_ids": [5], "schema": 1}
    data = {
        "another function": call("os.system", command=f"touch {proof}"),
        "a function with escapes": call(ACTS * 1000),
        "a pickle": zlib.compress(pickle.dumps(Boom(proof))),
        "a bare pickle": pickle.dumps(Boom(proof)),
        "a broken payload": encode_job_data(Payload(dataset="A1", id="x", input_ids=list(range(999))))[:300],
        "a bomb": zlib.compress(b"0" * (300 << 20), 1),
        "a path in a dataset's name": call("workers.jobs.generate", **{**ids, "dataset": "../../A1"}),
        "another dataset": call("workers.jobs.generate", **{**ids, "dataset": "B2"}),
    }
    return {job_id("A1", name): held for name, held in data.items()} | {"A1-../../x": call("os.system")}


def hostile_answers() -> list[dict[str, Any]]:
    """Entries of a results stream; one for a prompt, since two that cannot be read end it."""
    record = {"id": "A1/0", "dataset": "../B2", "turn": 1, "turns": 1, "completion_tokens": 9}
    line = zstandard.compress(json.dumps(record).encode() + b"\n")
    commit = {"kind": "commit", "tokens": 7, "truncated": 0}
    return [
        {"what": "ever"},
        {"kind": ACTS, "job": job_id("A1", "A1/3")},
        {**commit, "job": ACTS, "line": line},
        {**commit, "job": job_id("A1", "A1/0"), "line": line},
        {**commit, "job": "B2-" + "0" * 24, "line": line},
        {**commit, "job": job_id("A1", "A1/1"), "line": zstandard.compress(b"0" * (300 << 20))},
        {**commit, "job": job_id("A1", "A1/2"), "line": b"\x80\x04\x95junk"},
    ]


def test_hostile_entries_are_rejected_and_do_nothing(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator, tmp_path: Path
) -> None:
    simulator = start_simulator()
    simulator.hold()
    for name in ("A1", "B2"):
        rows: list[dict[str, Any]] = [*prompts(name, COUNT), {"id": f"{name}/{ACTS}", "input_ids": []}]
        job.dataset(name, rows, max_tokens="none")
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    parts = job.write().start_parts("--name", "good")
    client, proof = redis_server.client, tmp_path / "proof"
    wait_for("all in flight", lambda: redis_server.holders(*job.names).total() == SLOTS)
    wait_for("all queued", lambda: sum(client.llen(f"rq:queue:{name}") for name in job.names) == 2 * COUNT - SLOTS)

    jobs = hostile_jobs(proof)
    for id, data in jobs.items():
        client.hset(f"rq:job:{id}", mapping={"data": data, "status": "queued", "origin": "A1", "description": ACTS})
        client.lpush("rq:queue:A1", id)
    for fields in hostile_answers():
        client.xadd("results:A1", fields)
    client.hset("server:" + simulator.url, "reason", ACTS)
    client.hset("run:servers", f"http://127.0.0.1:1/{ACTS}", "drain")
    client.sadd("rq:workers", "rq:worker:" + ACTS, "budget:A1:spent")
    client.hset("rq:worker:" + ACTS, mapping={"hostname": ACTS, "state": ACTS, "servers": f"http://{ACTS}"})

    quarantine = wait_for("the answers to be kept aside", lambda: quarantined(job, len(hostile_answers())))
    assert all("damage" in line for line in quarantine)
    look(job)
    simulator.let_go()
    job.finish(*parts)
    said = "".join(part.text for part in parts)
    assert unseen(said) == set() and "\n00:00:00" not in said
    assert "is damaged" in said

    assert not proof.exists()
    for name in job.names:
        wanted = {f"{name}/{number}" for number in range(COUNT)}
        assert {line["id"] for line in job.lines(name)} == wanted
        assert redis_server.spent(name) == job.tokens(name)
    rejected = {line["id"]: line for line in job.rejected("A1")}
    for id in jobs:
        if id.count("/") == 0:
            assert rejected[id]["reason"] == "hostile_job" and len(rejected[id]["detail"]) < 500
    assert {path.name for path in job.output.iterdir()} <= {"A1", "B2", ".tokenmill", "report.html"}
    assert not list(tmp_path.parent.rglob("owned*"))
    assert job.call("verify").code == 0, "what was thrown out is nobody's answer"


def quarantined(job: Job, count: int) -> list[dict[str, Any]]:
    found = sorted(job.output.rglob("*uarantine*"))
    lines = [json.loads(line) for path in found if path.is_file() for line in path.read_text().splitlines()]
    return lines if len(lines) >= count else []


def unseen(text: str) -> set[str]:
    """Characters that act where they should only be read."""
    return {character for character in text if ord(character) < 32 and character not in "\n\t\r"} | (
        {"\u202e"} & set(text)
    )


def look(job: Job) -> None:
    """Nothing that any command prints acts on a terminal."""
    for command in (["status"], ["servers"], ["verify"], ["inspect"]):
        ended = job.call(*command)
        assert unseen(ended.out + ended.err) == set(), (command, ended.out, ended.err)
    dashboard = Dashboard(job)
    state = dashboard.state()
    assert state["datasets"][0]["name"] == "A1"
    metrics = dashboard.ask("/metrics").body.decode()
    assert unseen(metrics) == set()
    dashboard.process.kill()
