"""`tokenmill retry`: rejected prompts back into the run."""

import time
from typing import Any

import click

from budget import connections, keys, runbook, verbs
from budget.errors import UserProblem
from budget.ledger import Ledger
from results.summary import rejected_now
from tokenmill import watching
from tokenmill.caps import Connection, some_redis
from tokenmill.runfile import RunFile
from workers.encodings import encode_line, pack_lines

BATCH = 500


def retry(file: RunFile, connection: "Connection | None", datasets: list[str], reason: str | None) -> None:
    """Take rejections back; the producer's next pass queues the prompts again.

    Raises:
        UserProblem: nothing was rejected for that reason.
    """
    found = {name: rejected_now(file.config.output, name, reason) for name in datasets}
    if not any(found.values()):
        why = f" for the reason {reason}" if reason else ""
        raise UserProblem(f"no prompt of {', '.join(datasets)} is rejected{why}: see rejected.jsonl for what is")
    with some_redis(file, connection) as (client, where):
        ledger = Ledger(client)
        for name, prompts in found.items():
            back = sum(_bring_back(ledger, name, prompts[at : at + BATCH]) for at in range(0, len(prompts), BATCH))
            if prompts:
                click.echo(f"{name}: {back} of {len(prompts)} rejected prompts are back")
        is_produced = any(dataset.producer for dataset in watching.read(file, (client, where)).datasets)
    if not is_produced:
        click.echo(f"they are tried at the next start: tokenmill run {file.path}")


def _make_known(ledger: Ledger, dataset: str, jobs: list[str]) -> None:
    """In a Redis that the files were not seeded into, such as one that was started for this alone.

    Elsewhere the ledger knows more than rejected.jsonl, which the collector may not have written to its end:
    a prompt that was brought back and answered since would be taken for rejected again.
    """
    client: Any = ledger.connection
    if runbook.is_ready(client):
        return
    with connections.translated():
        known = client.hmget(keys.done(dataset), jobs)
    unknown = [(job, 0, False) for job, tokens in zip(jobs, known, strict=True) if tokens is None]
    if unknown:
        ledger(verbs.seed(dataset=dataset, entries=unknown))


def _bring_back(ledger: Ledger, dataset: str, prompts: list[tuple[str, str]]) -> int:
    _make_known(ledger, dataset, [job for job, _ in prompts])
    at = round(time.time(), 3)
    lines = [
        (job, pack_lines([encode_line({"id": prompt, "retried": True, "job": job, "at": at})]))
        for job, prompt in prompts
    ]
    return ledger(verbs.retry(dataset=dataset, lines=lines))
