"""Parts of two versions at one Redis: the other one is refused, exit 4, at its start and in the middle of a run."""

import json

import pytest

from budget.protocol import PROTOCOL
from results.folder import OutputFolder
from tests.e2e_support import HELD_TOKENS, Job, RedisServer, prompts, wait_for
from tests.job_fixtures import StartSimulator
from workers.contracts import job_id

COUNT, SLOTS = 40, 4
NEWER = {"protocol": "99", "release": "9.9"}


def refusal(text: str) -> str:
    said = [line for line in text.splitlines() if line.startswith("tokenmill: ")]
    assert len(said) == 1 and "Traceback" not in text, text
    return said[0]


@pytest.mark.parametrize("part", ["collect", "push", "work"])
def test_a_part_that_comes_to_a_newer_run(job: Job, redis_server: RedisServer, part: str) -> None:
    job.dataset("A1", prompts("A1", 3))
    job.tables["sglang"] = {"servers": ["http://127.0.0.1:9"]}
    job.write()
    redis_server.client.hset("run", mapping={**NEWER, "name": "test", "config": '{"of": "a newer one"}'})
    before = redis_server.client.hgetall("run")
    ended = job.call(part)
    assert ended.code == 4, ended.err
    sentence = refusal(ended.err)
    assert "Tokenmill 9.9 (protocol 99)" in sentence and f"(protocol {PROTOCOL})" in sentence
    assert "tokenmill reset" in sentence
    assert redis_server.client.hgetall("run") == before


CHANGES = [("budget", "set", "A1", "100"), ("servers", "add", "http://127.0.0.1:9"), ("retry",)]


@pytest.mark.parametrize("command", CHANGES, ids=lambda command: command[0])
def test_a_change_to_a_newer_run_or_to_anothers(job: Job, redis_server: RedisServer, command: tuple[str, ...]) -> None:
    job.dataset("A1", prompts("A1", 3))
    job.write()
    rejected = {"id": "1", "dataset": "A1", "job": job_id("A1", "1"), "reason": "timeout", "attempts": 3}
    folder = OutputFolder(job.output)
    folder.prepare(["A1"])
    folder.check("test", {})
    folder.rejected("A1").write_text(json.dumps(rejected) + "\n")
    client = redis_server.client
    client.hset("run", mapping={**NEWER, "name": "test", "config": "{}"})
    before = client.keys()
    ended = job.call(*command)
    assert (ended.code, "protocol 99" in refusal(ended.err)) == (4, True)

    client.hset("run", mapping={"protocol": str(PROTOCOL), "name": "theirs", "output_id": "another folder's"})
    ended = job.call(*command)
    assert (ended.code, "'theirs'" in refusal(ended.err)) == (4, True)
    assert client.keys() == before


def test_a_newer_version_takes_over_under_running_parts(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    simulator.hold()
    job.dataset("A1", prompts("A1", COUNT), max_tokens="none")
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    collect, push, work = job.write().start_parts()
    wait_for("the slots to be in flight", lambda: redis_server.holders("A1").total() == SLOTS)
    ours = redis_server.client.hmget("run", "protocol", "release")
    redis_server.client.hset("run", mapping=NEWER)
    simulator.let_go()
    assert work.ended() == 4, work.text
    assert "(protocol 99)" in refusal(work.text)
    assert redis_server.spent("A1") == SLOTS * HELD_TOKENS, "what was in flight was finished, nothing more was taken"

    redis_server.client.hset("run", mapping={"protocol": ours[0], "release": ours[1]})
    again = job.start("work")
    job.finish(collect, push, again)
    job.check_all_answered()
    assert simulator.served("A1") == COUNT
