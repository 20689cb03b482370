"""Telling the ledger what the files hold: all of it at a start or after Redis was lost, or a few jobs.

The order is the guarantee. First the ids that Redis believes done are noted (those that no file has),
then all that the stream held by then is brought into the files; what is now in neither was never
written, or was deleted: a file that is gone, or restored from an old copy. Those ids are forgotten,
and their prompts come back.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import redis

from budget import failpoints, keys, verbs
from budget.connections import translated
from budget.ledger import Ledger
from results.index import Index, digest_of_job, job_of
from results.jsonl import Tick
from results.sink import Sink

_SCAN_AT_ONCE = 1000


def unknown(connection: "redis.Redis", index: Index, tick: Tick) -> list[str]:
    """Jobs that Redis has as done and the files have not; they may be in the stream."""
    client: Any = connection
    found: list[str] = []
    cursor: int = 0
    while True:
        with translated():
            cursor, part = client.hscan(keys.done(index.dataset), cursor, count=_SCAN_AT_ONCE)
        found += [job.decode("utf-8", "replace") for job in part if not _has(index, job.decode("utf-8", "replace"))]
        tick()
        if not cursor:
            return found


def seed_all(ledger: Ledger, index: Index, tick: Tick) -> int:
    """Seed all that the files hold; returns how many entries of the ledger changed."""
    changed = 0
    for batch in _batches(index.entries()):
        changed += ledger(verbs.seed(dataset=index.dataset, entries=batch))[0]
        if failpoints.ACTIVE:
            failpoints.hit("during_rebuild")
        tick()
    return changed


def forget(ledger: Ledger, sink: Sink, jobs: Iterable[str], tick: Tick) -> int:
    """Forget those of `jobs` that the files still have not; returns how many the ledger knew."""
    gone = (job for job in jobs if not _has(sink.index, job))
    forgotten = 0
    for batch in iter(lambda: list(islice(gone, verbs.SEED_BATCH)), []):
        keys_of_batch = (digest_of_job(sink.dataset, job) for job in batch)
        sink.forgotten.update(key for key in keys_of_batch if key is not None)
        forgotten += ledger(verbs.forget(dataset=sink.dataset, jobs=batch))[0]
        tick()
    return forgotten


def settle(ledger: Ledger, sink: Sink) -> int:
    """Make the ledger's entries of a sink's unsettled jobs the files' own; returns how many there were."""
    if not sink.unsettled and not sink.foreign:
        return 0
    told, unheard = list[tuple[str, int, bool]](), list(sink.foreign)
    for key, tokens in sink.settled():
        job = job_of(sink.dataset, key)
        if tokens is None:
            unheard.append(job)
        else:
            told.append((job, tokens, bool(sink.index.answers.get(key, 0) & 1)))
    for batch in _batches(iter(told)):
        ledger(verbs.seed(dataset=sink.dataset, entries=batch))
    forget(ledger, sink, unheard, _nothing)
    count = len(sink.unsettled) + len(sink.foreign)
    sink.unsettled.clear()
    sink.foreign.clear()
    return count


def _has(index: Index, job: str) -> bool:
    key = digest_of_job(index.dataset, job)
    return key is not None and (key in index.answers or key in index.rejected)


def _batches(entries: Iterator[tuple[str, int, bool]]) -> Iterator[list[tuple[str, int, bool]]]:
    return iter(lambda: list(islice(entries, verbs.SEED_BATCH)), [])


def _nothing() -> None:
    return None
