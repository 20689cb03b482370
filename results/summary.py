"""What the files alone say of a run's datasets: for status and budget where there is no Redis to ask."""

from collections.abc import Iterable

import msgspec

from results import jsonl
from results.disk import translated
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


def file_totals(output: str, names: Iterable[str]) -> dict[str, FileTotals]:
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


def _totals(index: Index) -> FileTotals:
    return FileTotals(
        tokens=index.tokens,
        answers=len(index.answers),
        truncated=index.truncated,
        rejected=len(index.rejected),
        foreign=index.foreign,
    )


def rejected_now(output: str, name: str, reason: str | None = None) -> list[tuple[str, str]]:
    """The prompts of a dataset that are rejected now, for one reason or for any: (job, id) each, in the file's order.

    Raises:
        DiskFault, NotWritable: a file cannot be read.
    """
    folder = OutputFolder(output)
    rejected = read_index(folder, name).rejected
    path = folder.rejected(name)
    found: dict[str, str] = {}
    if not rejected:
        return []
    with translated(path), path.open("rb") as file:
        for _, raw in jsonl.lines(file):
            line = jsonl.loads(raw)
            if isinstance(line, str) or not isinstance(line.get("id"), str):
                continue
            job = str(line.get("job") or job_id(name, line["id"]))
            if reason is None or line.get("reason") == reason:
                found[job] = line["id"]
            else:
                found.pop(job, None)  # rejected again for another reason, or taken back
    return [(job, own) for job, own in found.items() if digest_of_job(name, job) in rejected]
