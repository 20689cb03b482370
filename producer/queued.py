"""From a payload to a queued job, from a defect to a line, and how many jobs a queue should hold."""

import datetime
from typing import NamedTuple

from budget.verbs import Queued
from producer.defects import Defect
from workers.contracts import DatasetConfig, Payload, RejectLine, RunConfig
from workers.encodings import encode_job_data, encode_line

# The first batch is small, so that the first worker has something to do at once; each next is four times larger.
FIRST_BATCH = 8
LEAST_HIGH = 1000
DESCRIPTION = 60
# SGLang's own default, where the sampling names none.
DEFAULT_MAX_NEW_TOKENS = 128


class Marks(NamedTuple):
    """A queue that falls below `low` is filled up to `high`."""

    low: int
    high: int

    @classmethod
    def of(cls, config: RunConfig) -> "Marks":
        """Enough for all servers to take four rounds, whatever one worker process per server asks for.

        More would only lie in Redis' memory: prompts of 10,000 tokens are some 30 KB each.
        """
        high = max(LEAST_HIGH, 4 * config.concurrency * max(1, len(config.servers)))
        return cls(low=high // 2, high=high)


def now() -> str:
    """The time in RQ's format."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def to_queued(dataset: DatasetConfig, job: str, payload: Payload) -> Queued:
    """The job as enqueue takes it, with the most that all its turns can cost."""
    longest = payload.max_new_tokens or int(dataset.sampling.get("max_new_tokens") or DEFAULT_MAX_NEW_TOKENS)
    return Queued(
        job=job,
        data=encode_job_data(payload),
        worst=longest * payload.turns,
        description=_shortened(payload.id),
    )


def to_line(dataset: str, prompt_id: str, defect: Defect, row: object) -> bytes:
    """The line for rejected.jsonl."""

    def line(shown: object) -> bytes:
        return encode_line(
            RejectLine(id=prompt_id, dataset=dataset, reason=defect.reason, detail=defect.detail, attempts=0, row=shown)
        )

    try:
        return line(row)
    except RecursionError:
        return line(None)
    except (ValueError, TypeError):
        # A row that JSON cannot hold (NaN): its beginning as text tells enough.
        return line(repr(row)[:10_000])


def _shortened(prompt_id: str) -> str:
    """For `rq info` and dashboards; an id may hold half a surrogate pair, which Redis' client cannot send."""
    text = prompt_id if len(prompt_id) <= DESCRIPTION else prompt_id[: DESCRIPTION - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()
