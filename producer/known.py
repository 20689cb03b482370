"""What Redis knows of prompts already, asked in bulk before anything is rendered.

Enqueue asks the same again, atomically; this only spares the work: a resume of 100,000 answered prompts
must not cost 100,000 renderings.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import redis

from budget import keys
from budget.connections import translated


def missing(connection: "redis.Redis", dataset: str, jobs: Sequence[str], *, everything: bool) -> list[bool]:
    """Which of `jobs` are neither done nor leased nor, unless `everything`, queued by what their hash says."""
    if not jobs:
        return []
    client: Any = connection
    with translated():
        with client.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.done(dataset), jobs)
            pipe.hmget(keys.leases(dataset), jobs)
            done, leased = pipe.execute()
        wanted = [d is None and held is None for d, held in zip(done, leased, strict=True)]
        open_ = [job for job, want in zip(jobs, wanted, strict=True) if want]
        if everything or not open_:
            return wanted
        queued = _fields(client, open_, "status", b"queued")
        # A hash that says queued but holds no data is hollow: enqueue overwrites it.
        whole = {job for job, held in _has_data(client, queued) if held}
    return [want and job not in whole for job, want in zip(jobs, wanted, strict=True)]


def _fields(client: Any, jobs: list[str], field: str, value: bytes) -> list[str]:
    with client.pipeline(transaction=False) as pipe:
        for job in jobs:
            pipe.hget(keys.rq_job(job), field)
        return [job for job, held in zip(jobs, _answers(pipe), strict=True) if held == value]


def _has_data(client: Any, jobs: list[str]) -> list[tuple[str, bool]]:
    if not jobs:
        return []
    with client.pipeline(transaction=False) as pipe:
        for job in jobs:
            pipe.hexists(keys.rq_job(job), "data")
        return [(job, held == 1) for job, held in zip(jobs, _answers(pipe), strict=True)]


def _answers(pipe: Any) -> list[Any]:
    """What jobs' hashes answer: None where a key of another type is in a hash's place, which enqueue overwrites."""
    answers: list[Any] = pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in answers]


class Strangers:
    """Counts the entries of `done` that name none of the dataset's prompts: lines of an earlier pipeline.

    Nine bytes an entry, of what was done before the pass; what ends during it is the run's own.
    """

    def __init__(self, connection: "redis.Redis", dataset: str) -> None:
        client: Any = connection
        with translated():
            found = {hash(job) for job, _ in client.hscan_iter(keys.done(dataset), count=1000)}
        self._hashes = array("q", sorted(found))
        self._met = bytearray(len(self._hashes))

    def meet(self, job: str) -> None:
        """`job` is a prompt of the dataset."""
        wanted = hash(job.encode())
        at = bisect_left(self._hashes, wanted)
        if at < len(self._hashes) and self._hashes[at] == wanted:
            self._met[at] = 1

    @property
    def count(self) -> int:
        return len(self._met) - sum(self._met)

    @property
    def none(self) -> bool:
        """Whether there was nothing to compare with."""
        return not self._met
