"""`tokenmill reset`: free the Redis database; the files stay the truth."""

import shutil
import sys
from typing import Any

import click

from budget import connections, keys, locks, runbook, sweep
from budget.errors import Refused, UserProblem
from tokenmill.caps import Connection
from tokenmill.runfile import RunFile

PATTERNS = ("budget:*", "results:*", "claim:*", "lock:*", "server:*", "probe:*", "suspect:*", "rq:*", "run", "run:*")


def reset(file: RunFile, connection: "Connection | None", *, sure: bool) -> None:
    """Delete this run's keys and RQ's, in steps that block nobody; nothing else in the database.

    Raises:
        Refused: workers are at it, or the database is another run's.
    """
    if connection is None:
        folder = file.output / ".tokenmill" / "redis"
        shutil.rmtree(folder, ignore_errors=True)
        click.echo("freed the run's own Redis data; the result files stay")
        return
    client: Any = connection[0]
    try:
        entry = runbook.published(client)
    except connections.RedisDamaged:
        entry = {}  # freeing the database is the mend
    if locks.is_held(client, keys.COLLECTOR_LOCK):
        raise Refused("a collector is at work on this database: stop the run first")
    if any(locks.is_held(client, keys.producer_lock(dataset.name)) for dataset in file.config.datasets):
        raise Refused("a producer is at work on this database: stop the run first")
    with connections.translated():
        dead = {keys.rq_worker(name).encode() for name in sweep.dead_workers(client)}
        # A living worker's entry runs out by itself unless it is renewed; one that does not is none of RQ's making.
        if any(client.ttl(worker) > 0 for worker in client.smembers(keys.RQ_WORKERS) - dead):
            raise Refused("workers are at work on this database (see `rq info`): stop them first")
    runbook.refuse_another_name(entry, file.config.name)
    if not sure and not sys.stdin.isatty():
        raise UserProblem("nobody is there to ask whether to free the database: say so with --yes")
    if not sure:
        click.confirm(f"free the Redis database of run {file.config.name} (the files stay)?", abort=True)
    freed = 0
    with connections.translated():
        for pattern in PATTERNS:
            batch: list[bytes] = []
            for key in client.scan_iter(match=pattern, count=1000):
                batch.append(key)
                if len(batch) == 500:
                    freed += client.unlink(*batch)
                    batch = []
            if batch:
                freed += client.unlink(*batch)
    click.echo(f"freed {freed} keys; the result files stay")
