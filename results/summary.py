"""What the files alone say of a run's datasets: for status and budget where there is no Redis to ask."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from results import jsonl
from results.folder import OutputFolder
from results.index import Index, digest_of_job
from workers.contracts import job_id


class FileTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset's files: tokens and answers (foreign lines too), truncated answers, rejected prompts."""

    tokens: int
    answers: int
    truncated: int
    rejected: int
    foreign: int


def file_totals(output: str | Path, names: Iterable[str]) -> dict[str, FileTotals]:
    """The totals of each dataset; zeros where nothing was collected yet.

    Raises:
        DiskFault, NotWritable: a file cannot be read.
    """
    folder = OutputFolder(output)
    return {name: _totals(read_index(folder, name)) for name in names}


def read_index(folder: OutputFolder, name: str) -> Index:
    """What a dataset's files hold, without changing them: a torn end is left out, not cut."""
    index = Index(name)
    index.read_answers(folder.answers(name))
    index.read_rejected(folder.rejected(name))
    return index


def rejected_now(output: str | Path, name: str, reason: str | None = None) -> list[tuple[str, str]]:
    """The prompts that are rejected now (for that reason): (job, id) each, in the order they were rejected.

    Raises:
        DiskFault, NotWritable: a file cannot be read.
    """
    folder = OutputFolder(output)
    rejected = read_index(folder, name).rejected
    found: dict[str, tuple[str, str]] = {}
    for line in jsonl.rejected_lines(folder.rejected(name)):
        job = line.job or job_id(name, line.id)
        found.pop(job, None)
        if not line.retried:
            found[job] = (line.id, line.reason)
    return [
        (job, own)
        for job, (own, why) in found.items()
        if (reason is None or why == reason) and digest_of_job(name, job) in rejected
    ]


def _totals(index: Index) -> FileTotals:
    return FileTotals(
        tokens=index.tokens,
        answers=len(index.answers),
        truncated=index.truncated,
        rejected=len(index.rejected),
        foreign=index.foreign,
    )
