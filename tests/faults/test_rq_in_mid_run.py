"""A person with RQ's own tools in the middle of a run: whatever they do, every prompt is answered, once."""

import signal
from typing import Any

from rq import Queue
from rq import registry as rq_registry
from rq.job import Job as RqJob
from rq.registry import CanceledJobRegistry, FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from tests.e2e_support import HELD_TOKENS, Job, RedisServer, prompts, wait_for
from tests.job_fixtures import StartSimulator

COUNT, SLOTS = 24, 4
BUDGET = 16 * HELD_TOKENS


def rq(job: Job, *arguments: str) -> str:
    running = job.start_rq(*arguments)
    assert running.ended() == 0, running.text
    return running.text


def queued(redis_server: RedisServer, dataset: str) -> list[str]:
    return [id.decode() for id in redis_server.client.lrange(f"rq:queue:{dataset}", 0, -1)]


def in_flight(redis_server: RedisServer, dataset: str) -> list[str]:
    return [id.decode() for id in redis_server.client.hkeys(f"budget:{dataset}:leases")]


def all_slots(redis_server: RedisServer, job: Job) -> None:
    wait_for("all slots to be in flight", lambda: redis_server.holders(*job.names)["own"] == SLOTS)


def test_a_person_with_rqs_tools(job: Job, redis_server: RedisServer, start_simulator: StartSimulator) -> None:
    simulator = start_simulator()
    simulator.hold()
    job.dataset("A1", prompts("A1", COUNT), max_tokens=BUDGET)
    job.dataset("B2", prompts("B2", COUNT), max_tokens="none")
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    parts = job.write().start_parts("--name", "own")
    all_slots(redis_server, job)
    wait_for(
        "all to be queued", lambda: sum(len(queued(redis_server, name)) for name in job.names) == 2 * COUNT - SLOTS
    )

    # Looking, and commands that find nothing to do.
    assert "own" in rq(job, "info")
    for name in job.names:
        rq(job, "requeue", "--queue", name, "--all", "-S", "json")
    assert redis_server.holders(*job.names) == {"own": SLOTS}

    # A queue emptied, with the jobs' hashes.
    before = set(queued(redis_server, "B2"))
    rq(job, "empty", "B2", "-S", "json")
    wait_for("the producer to bring them back", lambda: set(queued(redis_server, "B2")) == before)

    # Jobs deleted and cancelled, of those in flight and of those that wait.
    touched = {name: [in_flight(redis_server, name)[0], *queued(redis_server, name)[:2]] for name in job.names}
    by_hand = [(name, id) for name, ids in touched.items() for id in ids]
    for number, (_, id) in enumerate(by_hand):
        found = RqJob.fetch(id, connection=redis_server.client, serializer=JSONSerializer)
        if number % 2:
            found.delete()
        else:
            found.cancel()

    # The registries' own cleaning, as a stock worker's maintenance does it, also by a clock of next year.
    registries: Any = rq_registry
    for name in job.names:
        queue = Queue(name, connection=redis_server.client, serializer=JSONSerializer)
        registries.clean_registries(queue)
        started = StartedJobRegistry(queue=queue, serializer=JSONSerializer)
        started.cleanup(timestamp=4_000_000_000)
    assert redis_server.holders(*job.names) == {"own": SLOTS}, "whoever has a job keeps it"
    for name, ids in touched.items():
        wait_for("what waited to be back", lambda name=name, ids=ids: set(ids[1:]) <= set(queued(redis_server, name)))

    # Suspended: what is in flight is finished, and nothing more is taken.
    rq(job, "suspend")
    simulator.let_go()
    wait_for("the worker to be idle", lambda: not redis_server.holders(*job.names))
    assert sum(redis_server.spent(name) for name in job.names) == SLOTS * HELD_TOKENS
    simulator.hold()
    rq(job, "resume")
    all_slots(redis_server, job)

    # A stock worker beside, which cleans the registries as it starts and then takes part.
    stock = job.start_rq("worker", "-S", "json", "-w", "rq.worker.SimpleWorker", "B2", TOKENMILL_SERVERS=simulator.url)
    wait_for("the stock worker to hold a job", lambda: redis_server.holders(*job.names).total() == SLOTS + 1)
    simulator.let_go()
    job.finish(*parts)
    stock.send(signal.SIGTERM)
    assert stock.ended() == 0, stock.text

    job.check()
    assert sorted(line["id"] for line in job.lines("B2")) == sorted(f"B2/{number}" for number in range(COUNT))
    assert BUDGET <= job.tokens("A1") < BUDGET + (SLOTS + 1) * HELD_TOKENS
    assert len(job.lines("A1")) + len(job.dropped("A1")) == COUNT
    assert simulator.served(*job.names) == job.count(), "nothing was generated twice"
    for name in job.names:
        assert not job.rejected(name) and redis_server.spent(name) == job.tokens(name)
        queue = Queue(name, connection=redis_server.client, serializer=JSONSerializer)
        for registry in (StartedJobRegistry, FailedJobRegistry, CanceledJobRegistry):
            left = registry(queue=queue, serializer=JSONSerializer).get_job_ids(cleanup=False)
            assert not set(left) & {id for _, id in by_hand}, f"{registry.__name__} of {name}: {left}"
