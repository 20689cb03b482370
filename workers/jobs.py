"""`workers.jobs.generate`: the job function that a stock `rq worker -S json` runs, one job at a time.

It adopts the job first (a lease like any other worker's), renews it while it waits for the server, and
settles it through the same rules. Its path is wire format: it stands in every job.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import socket
from typing import Any

import msgspec
from rq import get_current_job

from budget import connections, environment, verbs
from budget.connections import RedisAway, RedisRefuses
from budget.errors import Problem
from budget.ledger import AsyncLedger
from budget.verbs import Lease
from workers import outcomes
from workers.attempt import Attempt, Completion
from workers.contracts import Message, Payload, worst_case
from workers.errors import ServerAway
from workers.joining import Joined, join
from workers.servers import Servers
from workers.settlement import MAX_FAILURES, settle
from workers.sglang import Client

log = logging.getLogger("tokenmill.worker")

POLL_S = 1.0


async def generate(**payload: Any) -> str:
    """Run one job that RQ has popped. Returns what became of it, in a word.

    Raises:
        Problem: the run cannot go on (no server, a wrong key); RQ then lists the job as failed, and the
            producer finds its id again.
    """
    job = get_current_job()
    if job is None:
        raise Problem("workers.jobs.generate runs only inside an RQ worker")
    prompt = msgspec.convert(payload, Payload)
    joined = await asyncio.to_thread(
        join, job.connection, wait_s=60.0, stopping=lambda: False, say=lambda text: log.info("%s", text)
    )
    assert joined is not None
    client = connections.async_twin(job.connection, 2)
    try:
        return await _generate(
            job.id, prompt, joined, AsyncLedger(client), f"{socket.gethostname()}-rq-{job.worker_name}"
        )
    finally:
        await client.aclose()


async def _generate(job: str, prompt: Payload, joined: Joined, ledger: AsyncLedger, worker: str) -> str:
    lease = await _adopt(job, prompt, joined, ledger, worker)
    if isinstance(lease, str):
        return lease
    reserved = worst_case(prompt, joined.sampling(prompt.dataset)) if joined.config.admission == "strict" else 0
    renewing = asyncio.create_task(_renew(lease, reserved, joined, ledger, worker))
    try:
        outcome = await _attempt(lease, prompt, joined, worker)
        settlement = settle(outcome, lease=lease, payload=prompt, worker=worker, config=joined.config)
        while True:
            try:
                await ledger(settlement.call)
                return settlement.kind
            except (RedisAway, RedisRefuses) as problem:
                log.warning("%s; keeping what is generated until it answers", problem)
                await asyncio.sleep(joined.config.timing.retry_ms / 1000)
    finally:
        renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewing


async def _adopt(job: str, prompt: Payload, joined: Joined, ledger: AsyncLedger, worker: str) -> "Lease | str":
    """A lease, or the word that says why there is none. Waits while the gate is shut."""
    token = secrets.token_hex(8) + "-1"
    names = [dataset.name for dataset in joined.config.datasets]
    call = verbs.adopt(
        dataset=prompt.dataset,
        job=job,
        token=token,
        worker=worker,
        lease_ms=joined.config.timing.lease_ms,
        admission=joined.config.admission,
        reservation=0,
        all_datasets=names,
    )
    while True:
        try:
            adopted = await ledger(call)
        except RedisAway as problem:
            log.warning("%s; waiting", problem)
            await asyncio.sleep(POLL_S)
            continue
        if adopted.status == "ok":
            return Lease(
                dataset=prompt.dataset,
                job=job,
                token=token,
                data=b"",
                attempt=adopted.attempt,
                failures=adopted.failures,
                deaths=0,
                adopted=True,
            )
        if adopted.status not in ("wait", "notready"):
            return adopted.status
        await asyncio.sleep(POLL_S * random.uniform(0.3, 1.0))


async def _renew(lease: Lease, reserved: int, joined: Joined, ledger: AsyncLedger, worker: str) -> None:
    renewal = verbs.Renewal(dataset=lease.dataset, job=lease.job, token=lease.token, reserved=reserved, adopted=True)
    while True:
        await asyncio.sleep(joined.config.timing.renew_ms / 1000)
        with contextlib.suppress(RedisAway, RedisRefuses):
            await ledger(verbs.renew(worker=worker, renewals=[renewal], lease_ms=joined.config.timing.lease_ms))


async def _attempt(lease: Lease, prompt: Payload, joined: Joined, worker: str) -> "Completion | outcomes.Outcome":
    """Try until it is accepted, rejected or charged its last failure: RQ would end the job's hash in between."""
    urls = environment.worker_servers() or joined.config.servers
    if not urls:
        raise ServerAway("the run names no SGLang server: name one in [sglang] servers or in TOKENMILL_SERVERS")
    sampling = joined.sampling(prompt.dataset)
    client = Client(environment.sglang_api_key(), max(600.0, float(sampling["max_new_tokens"])))
    servers = Servers(client, [random.choice(urls).rstrip("/")], joined.config.timing.retry_ms / 1000, lambda: None)
    server = servers.all[0]

    async def render_next(payload: Payload, answers: list[str]) -> tuple[list[int], list[Message]]:
        from workers import chat

        messages = chat.history(payload.messages, answers, payload.followups)
        tokenizer = chat.ChatTokenizer.load(joined.config.tokenizer, joined.config.chat_template_kwargs)
        return tokenizer.render(messages, payload.tools), messages

    try:
        failures = lease.failures
        while True:
            problem = await servers.check(server, joined.facts, [])
            if problem is not None:
                log.warning("waiting for server %s (%s)", server.url, problem)
                await asyncio.sleep(POLL_S)
                continue
            attempt = Attempt(
                client=client,
                server=server,
                lease=lease,
                payload=prompt,
                sampling=sampling,
                vocab_size=joined.facts.vocab_size,
                worker=worker,
                render_next=render_next,
            )
            outcome = await attempt.run()
            if isinstance(outcome, outcomes.RunFault):
                raise Problem(f"server {server.url} refuses every request: {outcome.detail}")
            if isinstance(outcome, outcomes.Retry):
                failures += 1
                if failures >= MAX_FAILURES:
                    return outcomes.Reject(outcome.reason, f"{outcome.detail} ({MAX_FAILURES} times)", outcome.wasted)
            elif not isinstance(outcome, outcomes.ServerFault):
                return outcome
            await asyncio.sleep(joined.config.timing.retry_ms / 1000)
    finally:
        await servers.close()
        await client.close()
