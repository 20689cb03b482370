"""The ledger's verbs: what each Lua script is handed, and what its answer means.

Pure functions: each returns a `Call`, which `Ledger` or `AsyncLedger` runs. So the same verb serves
the worker's event loop and the blocking producer and collector, and everything about a verb but its
Lua stands in one place.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from budget import keys
from budget.forecast import bucket

T = TypeVar("T")

ClaimStatus = Literal["ok", "notready", "suspended"]
GateState = Literal["open", "empty", "gated", "complete", "closed", "backlog"]
AdoptStatus = Literal["ok", "notready", "wait", "complete", "done", "taken"]
EnqueueStatus = Literal["ok", "notready", "complete", "exhausted"]

Arg = str | int | bytes

SEED_BATCH = 500
ENQUEUE_BATCH = 300
RENEW_BATCH = 256
DROP_BATCH = 500
RECLAIM_LIMIT = 1000


class Call(Generic[T]):
    """One run of one script: `script` names the Lua file, `parse` turns Redis' answer into a value."""

    __slots__ = ("args", "keys", "parse", "script")

    def __init__(self, script: str, keys: list[str], args: list[Arg], parse: Callable[[Any], T]) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.parse = parse


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker holds. `attempt` counts tries from 1, `failures` what was charged, `deaths` dead workers."""

    dataset: str
    job: str
    token: str
    data: bytes
    attempt: int
    failures: int
    deaths: int
    adopted: bool = False

    @property
    def suspect(self) -> bool:
        """It was in flight in two workers that died: it runs as the only such job of its worker."""
        return self.deaths >= 2


class Gate(msgspec.Struct, frozen=True):
    """What claim found at a dataset: its state, and how many jobs its queue still holds."""

    state: GateState
    queued: int


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of claim: the jobs taken, why there were no more, and how many results of these datasets wait."""

    status: ClaimStatus
    leases: list[Lease]
    gates: dict[str, Gate]
    waiting: int


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """One job in a renewal: what it reserves from now on (tokens), and the bucket of its age."""

    dataset: str
    job: str
    token: str
    reserved: int
    bucket: int = 0
    suspect: bool = False
    adopted: bool = False


Held = Literal["held", "done", "taken"]
_HELD: tuple[Held, ...] = ("held", "done", "taken")


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt to be queued: `worst` is the most its answers can cost, in tokens; `description` is for people."""

    job: str
    data: bytes
    worst: int
    description: str


class Enqueued(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of enqueue: how many were added, and how many jobs the queue holds now."""

    status: EnqueueStatus
    added: int
    queued: int


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A dead worker whose jobs were reclaimed; without a name, leases that nobody could read."""

    worker: str
    requeued: int
    rejected: int


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of adopt."""

    status: AdoptStatus
    attempt: int
    failures: int


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _totals(datasets: Iterable[str]) -> list[str]:
    return [key for name in datasets for key in (keys.spent(name), keys.budget(name))]


def claim(
    *,
    worker: str,
    datasets: Sequence[str],
    all_datasets: Sequence[str],
    k: int,
    nonce: str,
    admission: str,
    reservations: Sequence[int],
    lease_ms: int,
    holds_suspect: bool,
    max_waiting: int,
    now: str,
) -> Call[Claimed]:
    """Take up to `k` jobs of `datasets`, in their order, one of each in turn.

    Args:
        nonce: new for every claim; a repetition (where the answer did not come) is answered alike.
        reservations: tokens that a job of each dataset reserves (unless strict: then its worst case).
        max_waiting: results waiting for the collector beyond which nothing is claimed.
        now: the time in RQ's format, for the job hash.
    """
    served = list(datasets)

    def parse(answer: Any) -> Claimed:
        status, jobs, states, waiting = cast(tuple[bytes, list[Any], list[Any], int], answer)
        leases = [
            Lease(
                dataset=served[int(cast(int, index))],
                job=_text(job),
                token=_text(token),
                data=data,
                attempt=attempt,
                failures=failures,
                deaths=deaths,
            )
            for index, job, token, data, attempt, failures, deaths in jobs
        ]
        gates = {
            name: Gate(cast(GateState, _text(state)), queued)
            for name, (state, queued) in zip(served, states, strict=False)
        }
        return Claimed(status=cast(ClaimStatus, _text(status)), leases=leases, gates=gates, waiting=waiting)

    args: list[Arg] = [nonce, worker, k, lease_ms, admission, int(holds_suspect), max_waiting, now]
    args += [len(served), len(all_datasets), *reservations]
    return Call(
        "claim",
        [keys.RUN, keys.READY, keys.SEEN, keys.claim(worker), keys.RQ_SUSPENDED]
        + [key for name in served for key in keys.block(name)]
        + _totals(all_datasets),
        args,
        parse,
    )


def renew(*, worker: str, renewals: Sequence[Renewal], lease_ms: int) -> Call[list[Held]]:
    """Prolong all of a worker's leases as one; the answers are in the order of `renewals`."""
    names = list(dict.fromkeys(renewal.dataset for renewal in renewals))
    index = {name: number for number, name in enumerate(names)}
    args: list[Arg] = [worker, lease_ms, len(renewals)]
    for r in renewals:
        args += [index[r.dataset], r.job, r.token, r.reserved, r.bucket, int(r.suspect), int(r.adopted)]
    return Call(
        "renew",
        [keys.SEEN] + [key for name in names for key in keys.block(name)],
        args,
        lambda answer: [_HELD[code] for code in answer],
    )


class Untold(Exception):
    """Nothing in Redis tells the texts that a record left out: nothing was stored, it must be sent whole."""


def commit(
    *, lease: Lease, worker: str, tokens: int, truncated: bool, line: bytes, told_by: str = ""
) -> Call[tuple[bool, int]]:
    """Store a completion: `line` is what the collector writes, zstd-compressed. Answers (stored, spent).

    Not stored means that the id was done already, which is a success: an earlier answer, or this one
    re-sent, is in the stream or the file. `told_by` is the digest of what tells the texts that `line` has not.

    Raises (calling it):
        Untold: that is not there.
    """

    def parse(answer: Any) -> tuple[bool, int]:
        if answer[0] == 2:
            raise Untold
        return answer[0] == 1, int(answer[1])

    return Call(
        "commit",
        [*keys.block(lease.dataset), keys.rq_job(lease.job), keys.rq_worker(worker), keys.pieces(told_by)],
        [lease.job, lease.token, tokens, bucket(tokens), int(truncated), int(lease.adopted), int(told_by != ""), line],
        parse,
    )


def reject(
    *, dataset: str, job: str, token: str = "", adopted: bool = False, line: bytes
) -> Call[Literal["rejected", "done", "taken"]]:
    """End a prompt that can never work. `line` is its line for rejected.jsonl, zstd-compressed."""
    answers: tuple[Literal["done", "rejected", "taken"], ...] = ("done", "rejected", "taken")
    return Call(
        "reject",
        [*keys.block(dataset), keys.rq_job(job)],
        [job, token, int(adopted), line],
        lambda answer: answers[int(answer)],
    )


Charge = Literal["", "failures", "deaths", "beside"]


Released = Literal["lost", "released", "poison"]
_RELEASED: tuple[Released, ...] = ("lost", "released", "poison")


def release(*, lease: Lease, charge: Charge) -> Call[Released]:
    """Give a job back, charged with nothing, a failed try, a server's death, or one beside a suspect.

    Answers "lost" where the lease was not ours, and "poison" where one death too many has ended it.
    """
    return Call(
        "release",
        [keys.RUN, *keys.block(lease.dataset), keys.rq_job(lease.job)],
        [lease.job, lease.token, charge, int(lease.adopted)],
        lambda answer: _RELEASED[int(answer)],
    )


def reclaim(
    *, datasets: Sequence[str], lease_ms: int, dead: Sequence[str] = (), thorough: bool = False
) -> Call[list[Death]]:
    """Bring back the jobs of workers whose leases have run out, and of those known to be `dead`.

    Args:
        thorough: read every lease, to find those that are damaged before anything runs out.
    """
    return Call(
        "reclaim",
        [keys.SEEN, keys.RUN] + [key for name in datasets for key in keys.block(name)],
        [lease_ms, len(datasets), RECLAIM_LIMIT, int(thorough), *dead],
        lambda answer: [
            Death(worker=_text(name), requeued=requeued, rejected=rejected) for name, requeued, rejected in answer
        ],
    )


def adopt(
    *,
    dataset: str,
    job: str,
    token: str,
    worker: str,
    lease_ms: int,
    admission: str,
    reservation: int,
    all_datasets: Sequence[str],
) -> Call[Adopted]:
    """Lease a job that a stock RQ worker has popped."""
    return Call(
        "adopt",
        [keys.RUN, keys.READY, *keys.block(dataset), keys.rq_job(job), *_totals(all_datasets)],
        [job, token, worker, lease_ms, admission, reservation, len(all_datasets)],
        lambda answer: Adopted(status=cast(AdoptStatus, _text(answer[0])), attempt=answer[1], failures=answer[2]),
    )


def drop(*, dataset: str, all_datasets: Sequence[str], limit: int = DROP_BATCH) -> Call[tuple[int, int]]:
    """Drop queued jobs of a complete dataset. Answers (dropped, or -1 if it is not complete; still queued)."""
    return Call(
        "drop",
        [keys.RUN, *keys.block(dataset), *_totals(all_datasets)],
        [limit, len(all_datasets), dataset],
        lambda answer: (int(answer[0]), int(answer[1])),
    )


def enqueue(
    *,
    dataset: str,
    jobs: Sequence[Queued],
    all_datasets: Sequence[str],
    lease_ms: int,
    now: str,
    everything: bool = False,
    pass_ends_with: int | None = None,
    inputs: int | None = None,
) -> Call[Enqueued]:
    """Queue prompts that are neither done, leased nor queued. At most `ENQUEUE_BATCH` a call.

    Args:
        everything: queue also those whose hash says queued, if nothing is queued or in flight at all.
        pass_ends_with: set by the call that ends a pass over the prompts: how many the pass queued before it.
        inputs: how many prompts the dataset has, once it is known.
    """
    args: list[Arg] = [
        len(jobs),
        len(all_datasets),
        int(everything),
        -1 if pass_ends_with is None else pass_ends_with,
        now,
        lease_ms,
        dataset,
        -1 if inputs is None else inputs,
    ]
    for job in jobs:
        args += [job.job, job.data, job.worst, job.description]
    return Call(
        "enqueue",
        [keys.RUN, keys.READY, keys.SEEN, keys.RQ_QUEUES, *keys.block(dataset)]
        + [keys.rq_job(job.job) for job in jobs]
        + _totals(all_datasets),
        args,
        lambda answer: Enqueued(status=cast(EnqueueStatus, _text(answer[0])), added=answer[1], queued=answer[2]),
    )


def retry(*, dataset: str, lines: Sequence[tuple[str, bytes]]) -> Call[int]:
    """Bring rejected prompts back: (job, line for rejected.jsonl) each. Answers how many were rejected indeed."""
    return Call("retry", keys.block(dataset), [part for pair in lines for part in pair], int)


def seed(*, dataset: str, entries: Iterable[tuple[str, int, bool]]) -> Call[tuple[int, int]]:
    """Tell the ledger what the files hold: (job, tokens, truncated) each, tokens 0 for a rejected one.

    At most `SEED_BATCH` a call. Answers (entries that changed, spent).
    """
    return _seed("seed", dataset, entries)


def forget(*, dataset: str, jobs: Iterable[str]) -> Call[tuple[int, int]]:
    """Take out of `done` what is in neither file nor stream; the end of a whole seeding."""
    return _seed("forget", dataset, ((job, 0, False) for job in jobs))


def recount(*, dataset: str) -> Call[tuple[int, int]]:
    """Count anew what is derived from `done` and the leases, after Redis was started again. Answers (0, spent)."""
    return _seed("recount", dataset, ())


def _seed(mode: str, dataset: str, entries: Iterable[tuple[str, int, bool]]) -> Call[tuple[int, int]]:
    args: list[Arg] = [mode]
    for job, (tokens, truncated) in {job: (tokens, truncated) for job, tokens, truncated in entries}.items():
        args += [job, tokens, int(truncated)]
    return Call("seed", keys.block(dataset), args, lambda answer: (int(answer[0]), int(answer[1])))
