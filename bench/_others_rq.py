"""A job function for stock RQ workers, as one writes it: a counter checked, a request, a line appended, INCRBY.

`rq worker -c _others_rq` imports this module as its settings before it takes a job, so that a forked work-horse
need not import httpx again for each; RQ's own documentation advises to import early.
"""

import json
from pathlib import Path
from typing import Any

import httpx
from rq import get_current_job

SPENT = "spent"
# One client for a process: making one for each job would cost more than the request.
client = httpx.Client(timeout=600)


def ask(id: str, messages: list[dict[str, str]], url: str, output: str, most: int, budget: int | None) -> None:
    """Ask, unless the budget is spent."""
    job = get_current_job()
    assert job is not None
    redis: Any = job.connection
    if budget is not None and int(redis.get(SPENT) or 0) >= budget:
        return
    body = {"model": "m", "messages": messages, "max_tokens": most, "return_token_ids": True}
    answer = client.post(f"{url}/v1/chat/completions", json=body).raise_for_status().json()
    with Path(output).open("a") as out:
        out.write(json.dumps({"id": id, "answer": answer}) + "\n")
    redis.incrby(SPENT, answer["usage"]["completion_tokens"])
