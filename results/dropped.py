"""dropped.jsonl: which prompts were not needed because their dataset had its tokens.

A snapshot, replaced as a whole; while a run goes on the truth is the set in Redis.
"""

from pathlib import Path
from typing import Any

import redis

from budget import keys
from budget.connections import translated
from results import disk
from workers.encodings import encode_line


def write(connection: "redis.Redis", path: Path, dataset: str) -> int:
    """Write the dataset's dropped jobs, sorted so that the same set is the same file; returns how many.

    Raises:
        NotWritable, DiskFault: the old snapshot is untouched.
    """
    client: Any = connection
    with translated():
        jobs = sorted(set(client.sscan_iter(keys.dropped(dataset), count=1000)))
    if jobs or path.exists():
        disk.replace(path, (encode_line({"job": job.decode("utf-8", "replace")}) for job in jobs))
    return len(jobs)
