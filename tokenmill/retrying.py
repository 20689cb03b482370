"""`tokenmill retry`: rejected prompts back into the run."""

import time

import click

from budget import runbook, verbs
from budget.errors import UserProblem
from budget.ledger import Ledger
from results.summary import rejected_ids
from tokenmill.caps import Connection, some_redis
from tokenmill.runfile import RunFile
from workers.contracts import encode_line, job_id, pack_lines

BATCH = 500


def retry(file: RunFile, connection: "Connection | None", datasets: list[str], reason: str | None) -> None:
    """Take rejections back; the producer's next pass queues the prompts again.

    Raises:
        UserProblem: nothing was rejected for that reason.
    """
    found = {name: rejected_ids(file.output, name, reason) for name in datasets}
    if not any(found.values()):
        why = f" for the reason {reason}" if reason else ""
        raise UserProblem(f"no prompt of {', '.join(datasets)} is rejected{why}: see rejected.jsonl for what is")
    with some_redis(file, connection) as (client, _):
        ledger = Ledger(client)
        if connection is None:
            _seed(ledger, found)
        for name, ids in found.items():
            back = 0
            for start in range(0, len(ids), BATCH):
                lines = [
                    (
                        job_id(name, prompt),
                        pack_lines([encode_line({"id": prompt, "retried": True, "at": time.time()})]),
                    )
                    for prompt in ids[start : start + BATCH]
                ]
                back += ledger(verbs.retry(dataset=name, lines=lines))
            if ids:
                click.echo(f"{name}: {back} of {len(ids)} rejected prompts are back")
    if connection is None or not runbook.is_ready(client):
        click.echo(f"they are tried at the next start: tokenmill run {file.path}")


def _seed(ledger: Ledger, found: dict[str, list[str]]) -> None:
    """In a server that was started for this alone, the rejections may not be known."""
    for name, ids in found.items():
        for start in range(0, len(ids), verbs.SEED_BATCH):
            entries = [(job_id(name, prompt), 0, False) for prompt in ids[start : start + verbs.SEED_BATCH]]
            ledger(verbs.seed(dataset=name, entries=entries))
