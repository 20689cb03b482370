"""`workers.jobs.generate`: the job function that a stock `rq worker -S json` runs, one job at a time.

It adopts the job first (a lease like any other worker's), renews it while it waits for the server, and
settles it through the same rules. Its path is wire format: it stands in every job.
"""

import asyncio
import logging
import random
import secrets
import socket
from collections.abc import Callable
from typing import Any

import msgspec
from rq import get_current_job

from budget import connections, environment, rules, verbs
from budget.connections import RedisAway, RedisRefuses
from budget.errors import Problem
from budget.ledger import AsyncLedger
from budget.verbs import Lease
from workers import addresses, outcomes
from workers.attempt import Attempt, Completion
from workers.background import end
from workers.complaints import Complaints
from workers.contracts import Payload
from workers.errors import ServerAway
from workers.flight import Flight
from workers.joining import Joined, join
from workers.leases import Leases
from workers.rendering import Turns
from workers.servers import Servers
from workers.settlement import MAX_FAILURES, settle
from workers.sglang import Client
from workers.stubborn import Stubborn

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
    await asyncio.to_thread(connections.check_safe, job.connection)
    client = connections.async_twin(job.connection, 2)
    try:
        return await _generate(
            job.id, prompt, joined, AsyncLedger(client), f"{socket.gethostname()}-rq-{job.worker_name}"
        )
    finally:
        await client.aclose()


async def _generate(job: str, prompt: Payload, joined: Joined, ledger: AsyncLedger, worker: str) -> str:
    urls = addresses.chosen(None, joined.config.servers)
    if not urls:
        raise ServerAway("the run names no SGLang server: name one in [sglang] servers or in TOKENMILL_SERVERS")
    client = Client(environment.sglang_api_key(), joined.longest_answer_s([prompt.dataset]))
    servers = Servers(client, [random.choice(urls)], joined.config.timing.retry_ms / 1000, lambda: None)
    flights: dict[str, Flight] = {}
    leases = Leases(
        worker=worker,
        joined=joined,
        ledger=ledger,
        servers=servers,
        datasets=[prompt.dataset],
        flights=flights,
        lost=lambda flight: None,  # RQ's job cannot be left half way; its commit will say that it came second
        complain=Complaints(),
    )
    try:
        lease = await _adopt(job, prompt, joined, leases, worker)
        if isinstance(lease, str):
            return lease
        return await _settle(lease, prompt, joined, leases, servers, flights, worker)
    finally:
        await servers.close()
        await client.close()


async def _adopt(job: str, prompt: Payload, joined: Joined, leases: Leases, worker: str) -> "Lease | str":
    """A lease, or the word that says why there is none. Waits while the gate is shut."""
    token = secrets.token_hex(8) + "-1"
    while True:
        await leases.learn()
        call = verbs.adopt(
            dataset=prompt.dataset,
            job=job,
            token=token,
            worker=worker,
            lease_ms=joined.config.timing.lease_ms,
            admission=joined.config.admission,
            reservation=leases.reservations.first(prompt.dataset),
            all_datasets=[dataset.name for dataset in joined.config.datasets],
        )
        try:
            adopted = await leases.ledger(call)
        except (RedisAway, RedisRefuses) as problem:
            if not connections.is_passing(problem):
                raise
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


async def _settle(
    lease: Lease,
    prompt: Payload,
    joined: Joined,
    leases: Leases,
    servers: Servers,
    flights: dict[str, Flight],
    worker: str,
) -> str:
    """Generate the answer and tell the ledger, with the lease kept meanwhile. Returns what became of it, in a word."""

    sampling, turns = joined.sampling(prompt.dataset), Turns(joined.config)

    def begin() -> Flight:
        attempt = Attempt(
            client=servers.client,
            server=servers.all[0],
            lease=lease,
            payload=prompt,
            sampling=sampling,
            vocab_size=joined.facts.vocab_size,
            worker=worker,
            turns=turns,
            thinking=joined.facts.thinking,
        )
        flight = flights[lease.job] = Flight(lease, prompt, attempt, sampling)
        return flight

    renewing = asyncio.create_task(leases.keep_for_ever())
    try:
        outcome = await _outcome(begin, lease.failures, joined, servers, sampling)
        settlement = settle(outcome, lease=lease, payload=prompt, worker=worker, config=joined.config)
        while True:
            try:
                await leases.ledger(settlement.call)
                return settlement.kind
            except (RedisAway, RedisRefuses) as problem:
                if connections.ends_a_worker(problem):
                    raise
                log.warning("%s; keeping what is generated until it answers", problem)
                await asyncio.sleep(joined.config.timing.retry_ms / 1000)
    finally:
        await end(renewing)


async def _outcome(
    begin: Callable[[], Flight], failures: int, joined: Joined, servers: Servers, sampling: dict[str, Any]
) -> "Completion | outcomes.Outcome":
    """Try until it is accepted, rejected or charged its last failure: RQ would end the job's hash in between.

    So deaths are counted here too. What other servers die of is not known here: as many are allowed as at the most.
    """
    server, stubborn, deaths = servers.all[0], Stubborn(), 0
    while True:
        # Tried once, it must answer a probe in between: else its fault is not this prompt's.
        problem = await servers.check(server, joined.facts, [sampling] if server.sent else [])
        if problem is not None:
            log.warning("waiting for server %s (%s)", server.url, problem)
            await asyncio.sleep(POLL_S)
            continue
        server.depart()
        try:
            flight = begin()
            outcome = await flight.attempt.run()
        finally:
            server.land()
        if isinstance(outcome, Completion):
            return outcome
        if isinstance(outcome, outcomes.ServerFault) and outcome.broke:
            deaths += 1
            if rules.is_poison(deaths, others=rules.MOST_DEATHS):
                return outcomes.Reject("poison", f"{deaths} servers died with it", outcome.wasted)
        outcome = stubborn.judged(flight, outcome)
        if isinstance(outcome, outcomes.RunFault):
            raise Problem(f"server {server.url} refuses every request: {outcome.detail}")
        if isinstance(outcome, outcomes.Retry):
            failures += 1
            if failures >= MAX_FAILURES:
                return outcomes.Reject(outcome.reason, f"{outcome.detail} ({MAX_FAILURES} times)", outcome.wasted)
        elif not isinstance(outcome, outcomes.ServerFault):
            return outcome
        await asyncio.sleep(joined.config.timing.retry_ms / 1000)
