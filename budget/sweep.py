"""Finding dead workers and bringing their jobs back; every long-lived process does it now and then.

RQ keeps a killed worker listed until its entry expires, and would take minutes to notice its jobs. A
worker that died on this very host is known by its process; any other by its leases running out.
"""

from collections.abc import Sequence
from typing import Any

import redis

from budget import keys, process, verbs
from budget.connections import translated
from budget.ledger import Ledger

# The field of an RQ worker's hash that holds its process identity (ours; RQ leaves foreign fields alone).
PROCESS_FIELD = "process"


def dead_workers(connection: "redis.Redis") -> list[str]:
    """Names of listed workers whose process was on this host and is gone."""
    client: Any = connection
    prefix = keys.rq_worker("")
    with translated():
        names = [key.decode("utf-8", "replace").removeprefix(prefix) for key in client.smembers(keys.RQ_WORKERS)]
        if not names:
            return []
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hget(keys.rq_worker(name), PROCESS_FIELD)
            identities: list[bytes | None] = pipe.execute()
    return [
        name
        for name, identity in zip(names, identities, strict=True)
        if identity is not None and process.is_dead(identity.decode("utf-8", "replace"))
    ]


def unlist(connection: "redis.Redis", worker: str, datasets: Sequence[str]) -> None:
    """Take a dead worker off RQ's lists, so that `rq info` counts the living."""
    client: Any = connection
    key = keys.rq_worker(worker)
    with translated(), client.pipeline() as pipe:
        pipe.srem(keys.RQ_WORKERS, key)
        for dataset in datasets:
            pipe.srem(f"rq:workers:{dataset}", key)
        pipe.unlink(key, f"{key}:executions")
        pipe.execute()


def sweep(ledger: Ledger, datasets: Sequence[str], lease_ms: int, *, thorough: bool = False) -> list[verbs.Death]:
    """Reclaim the jobs of all dead workers, `thorough` those of damaged leases too; returns who had any."""
    dead = dead_workers(ledger.connection)
    deaths: list[verbs.Death] = []
    # A call takes whole workers up to a limit; each call frees what it answers with, so this ends.
    while taken := ledger(verbs.reclaim(datasets=datasets, lease_ms=lease_ms, dead=dead, thorough=thorough)):
        deaths += taken
    for worker in dead:
        unlist(ledger.connection, worker, datasets)
    return deaths


def sentence(death: verbs.Death) -> str:
    """A dead worker, or damaged leases, in words."""
    if not death.worker:
        return f"what Redis held of jobs in flight was damaged and is mended; jobs back in the queue: {death.requeued}"
    return (
        f"worker {death.worker} is gone: {death.requeued} of its jobs are back in the queue, {death.rejected} rejected"
    )
