"""`tokenmill retry` while the collector lags behind: rejected.jsonl is older than the ledger."""

import json
from typing import Any

from budget import connections, keys, runbook, verbs
from budget.ledger import Ledger
from tests.e2e_support import Job, RedisServer, prompts
from workers.contracts import job_id


def rejected_before(job: Job, *prompt_ids: str) -> None:
    fields: dict[str, Any] = {"dataset": "A1", "reason": "nan", "detail": "", "attempts": 3, "row": {}}
    (job.output / "A1").mkdir(parents=True)
    lines = [json.dumps({"id": own, **fields}) + "\n" for own in prompt_ids]
    (job.output / "A1" / "rejected.jsonl").write_text("".join(lines))


def test_a_prompt_that_was_answered_since_is_not_brought_back_again(job: Job, redis_server: RedisServer) -> None:
    job.dataset("A1", prompts("A1", 3))
    job.write()
    rejected_before(job, "a", "b")
    answered, rejected = job_id("A1", "a"), job_id("A1", "b")
    client = connections.connect(redis_server.url)
    Ledger(client)(verbs.seed(dataset="A1", entries=[(answered, 80, False), (rejected, 0, False)]))
    redis_server.client.set(keys.READY, runbook.run_id(client))
    assert "1 of 2 rejected prompts are back" in job.call("retry").out
    assert "0 of 2 rejected prompts are back" in job.call("retry").out
    assert redis_server.client.hgetall(keys.done("A1")) == {answered.encode(): b"80"}
    assert redis_server.spent("A1") == 80


def test_a_redis_that_knows_nothing_is_told_first(job: Job, redis_server: RedisServer) -> None:
    job.dataset("A1", prompts("A1", 3))
    job.write()
    rejected_before(job, "a")
    assert "1 of 1 rejected prompts are back" in job.call("retry").out
    assert redis_server.client.hgetall(keys.done("A1")) == {}
