"""How an attempt ends in the ledger: which verb an outcome becomes. Shared by all kinds of worker."""

from typing import Any

import msgspec

from budget import verbs
from budget.verbs import Call, Lease
from workers import outcomes
from workers.attempt import Completion
from workers.contracts import Payload, RejectLine, RunConfig
from workers.encodings import encode_line, pack_lines, pack_records
from workers.pieces import Pieces

# A prompt is charged at most so many failures before it is rejected; of deaths `budget.rules.is_poison` decides.
MAX_FAILURES = 3


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What to tell the ledger, what to say of it, and how many tokens were made in vain."""

    call: Call[Any]
    kind: str
    detail: str
    wasted: int


def settle(
    outcome: "Completion | outcomes.Outcome",
    *,
    lease: Lease,
    payload: Payload | None,
    worker: str,
    config: RunConfig,
    pieces: Pieces | None = None,
) -> Settlement:
    """The settlement of an attempt's outcome. A run's fault gives the job back, charged with nothing.

    `pieces`: a text that they tell does not travel.
    """
    match outcome:
        case Completion(truncated=True) if config.truncated == "reject":
            detail = f"the answer was cut after {outcome.records[-1].completion_tokens} tokens"
            return _reject(lease, payload, "truncated", detail, outcome.tokens)
        case Completion():
            line, told_by = pack_records(outcome.records, pieces)
            call = verbs.commit(
                lease=lease,
                worker=worker,
                tokens=outcome.tokens,
                truncated=outcome.truncated,
                line=line,
                told_by=told_by,
            )
            return Settlement(call=call, kind="commit", detail="", wasted=0)
        case outcomes.Reject(reason=reason, detail=detail, wasted=wasted):
            return _reject(lease, payload, reason, detail, wasted)
        case outcomes.Retry(reason=reason, detail=detail, wasted=wasted):
            if lease.failures + 1 >= MAX_FAILURES:
                return _reject(lease, payload, reason, f"{detail} ({MAX_FAILURES} times)", wasted)
            return _release(lease, "failures", detail, wasted)
        case outcomes.ServerFault(detail=detail, wasted=wasted, broke=True, beside=True):
            return _release(lease, "beside", detail, wasted)
        case outcomes.ServerFault(detail=detail, wasted=wasted, broke=True):
            return _release(lease, "deaths", detail, wasted)
        case outcomes.ServerFault(detail=detail, wasted=wasted):
            return _release(lease, "", detail, wasted)
        case outcomes.RunFault(detail=detail):
            return _release(lease, "", detail, 0)
        case outcomes.Accept():
            raise AssertionError("an accepted answer is settled as a completion")


def hostile(lease: Lease, detail: str) -> Settlement:
    """A job whose data is not ours: rejected, nothing of it run or imported."""
    return _reject(lease, None, "hostile_job", detail, 0)


def _release(lease: Lease, charge: verbs.Charge, detail: str, wasted: int) -> Settlement:
    return Settlement(call=verbs.release(lease=lease, charge=charge), kind="release", detail=detail, wasted=wasted)


def _reject(lease: Lease, payload: Payload | None, reason: str, detail: str, wasted: int) -> Settlement:
    row: dict[str, Any] = {"job": lease.job}
    if payload is not None:
        row = msgspec.to_builtins(payload)
    line = RejectLine(
        id=payload.id if payload else lease.job,
        dataset=lease.dataset,
        reason=reason,
        detail=detail,
        attempts=lease.attempt,
        row=row,
    )
    call = verbs.reject(
        dataset=lease.dataset,
        job=lease.job,
        token=lease.token,
        adopted=lease.adopted,
        line=pack_lines([encode_line(line)]),
    )
    return Settlement(call=call, kind="reject", detail=f"{reason}: {detail}", wasted=wasted)
