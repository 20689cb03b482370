"""`tokenmill doctor` on runs that are well and on runs that are not: each fault found, named, and its mend told."""

import json
from typing import Any

import pytest

from tests.e2e_support import Job, RedisServer, prompts
from tests.job_fixtures import StartSimulator

NO_SERVER = "http://127.0.0.1:1"


@pytest.fixture
def plain(local_job: Job) -> Job:
    local_job.dataset("A1", prompts("A1", 5))
    return local_job.write()


def examined(job: Job, code: int) -> dict[str, list[dict[str, Any]]]:
    ended = job.call("doctor", "--json")
    assert ended.code == code, ended.out + ended.err
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(ended.out):
        found.setdefault(finding["check"], []).append(finding)
    return found


def verdict(found: dict[str, list[dict[str, Any]]], check: str) -> tuple[str, str]:
    worst = max(found[check], key=lambda finding: ("pass", "warn", "fail").index(finding["verdict"]))
    return worst["verdict"], f"{worst['said']} {worst['mend']}"


def test_a_run_that_has_all_it_needs_passes(job: Job, start_simulator: StartSimulator) -> None:
    job.dataset("A1", prompts("A1", 5))
    job.tables["sglang"]["servers"] = [start_simulator().url]
    found = examined(job.write(), 0)
    assert {finding["verdict"] for findings in found.values() for finding in findings} == {"pass"}
    assert {"tokenizer", "template", "prompts of A1", "disk", "redis", "database", "memory", "clock"} <= found.keys()
    assert not job.output.exists()


def test_a_run_that_needs_nothing_may_start(plain: Job) -> None:
    found = examined(plain, 0)
    assert verdict(found, "redis")[0] == "pass" and verdict(found, "servers")[0] == "warn"


def test_every_fault_is_found_at_once(plain: Job) -> None:
    plain.dataset("B1", b'{"title": "no prompt"}\n')
    plain.dataset("B2", b'{"prompt": "a"}\n{"prompt": ""}\n')
    plain.datasets["B3"] = {"name": "B3", "prompts": "nowhere.jsonl"}
    plain.tables["model"]["tokenizer"] = str(plain.folder / "no-such")
    plain.tables["run"]["max_tokens_per_dataset"] = 10**15
    plain.tables["sglang"]["servers"] = [NO_SERVER]
    plain.write()
    plain.environment["TOKENMILL_REDIS_URL"] = "redis://user:hunter2@127.0.0.1:1/0"
    found = examined(plain, 1)
    for check, words in {
        "tokenizer": "no-such",
        "prompts of B1": "tokenmill inspect",
        "prompts of B3": "nowhere.jsonl",
        "disk": "free some space",
        "redis": "start Redis, or correct TOKENMILL_REDIS_URL",
        f"server {NO_SERVER}": "refused",
    }.items():
        worst, said = verdict(found, check)
        assert worst == "fail" and words in said, (check, said)
    assert verdict(found, "prompts of B2")[0] == "warn"
    assert "hunter2" not in json.dumps(found)


def test_a_redis_that_throws_jobs_away_fails_and_a_small_one_is_told(plain: Job) -> None:
    server = RedisServer().start("--maxmemory-policy", "allkeys-lru")
    try:
        plain.environment["TOKENMILL_REDIS_URL"] = server.url
        assert "allkeys-lru" in verdict(examined(plain, 1), "redis")[1]
        server.client.config_set("maxmemory-policy", "noeviction")
        server.client.config_set("maxmemory", "4mb")
        server.client.config_set("appendonly", "no")
        found = examined(plain, 0)
        assert verdict(found, "memory")[0] == "warn"
        assert "appendonly" in verdict(found, "redis")[1]
    finally:
        server.remove()


def test_a_server_of_another_model_or_a_short_context_is_told(job: Job, start_simulator: StartSimulator) -> None:
    job.dataset("A1", prompts("A1", 5))
    short = start_simulator(context_length=512)
    other = start_simulator(tokenizer=None, model="other")
    job.tables["sglang"]["servers"] = [short.url, other.url]
    found = examined(job.write(), 1)
    assert "512" in verdict(found, f"server {short.url}")[1]
    assert verdict(found, f"server {other.url}") == ("pass", "answers; other, weights default, context 32,768 ")
    assert "different models" in verdict(found, "servers")[1]


def test_a_database_of_another_run_is_refused(job: Job, redis_server: RedisServer) -> None:
    job.dataset("A1", prompts("A1", 5))
    job.write()
    redis_server.client.hset("run", mapping={"name": "theirs", "output_id": "other", "protocol": "1"})
    assert "'theirs'" in verdict(examined(job, 1), "redis")[1]


def test_servers_that_joined_are_looked_at_too_and_each_once(job: Job, start_simulator: StartSimulator) -> None:
    url = start_simulator().url
    job.dataset("A1", prompts("A1", 5))
    job.tables["sglang"]["servers"] = [url, f"{url}/"]
    job.write()
    assert job.call("servers", "add", NO_SERVER).code == 0
    found = examined(job, 1)
    assert [finding["verdict"] for finding in found[f"server {url}"]].count("fail") == 0
    assert verdict(found, f"server {NO_SERVER}")[0] == "fail"
    assert sum(finding["said"].startswith("answers") for finding in found[f"server {url}"]) == 1
    assert job.call("servers", "remove", NO_SERVER).code == 0
    assert f"server {NO_SERVER}" not in examined(job, 0)


def test_it_reads_well_on_a_terminal(plain: Job) -> None:
    ended = plain.call("doctor")
    assert ended.code == 0
    assert "passed, 1 to look at, 0 to mend" in ended.out
    assert "-> name your servers" in ended.out
