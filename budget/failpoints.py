"""Named places where a test makes a process die, stop, raise, or cancel what it is doing.

`TOKENMILL_FAILPOINT=after_http:kill9:nth=7` kills this process when it comes by `after_http` for the
seventh time; several stand with `;` between them. Unset, a place costs one look at a constant:

    if failpoints.ACTIVE:
        failpoints.hit("after_http")

Each place fails once. Actions: `kill9` (SIGKILL, no last words), `raise` (`Injected`, an error that
nobody expects), `stop` (SIGSTOP: frozen until somebody sends SIGCONT), `cancel` (the asyncio task of
the job in question, as an operator or a renewal would).
"""

import asyncio
import logging
import os
import signal

import msgspec

from budget import environment
from budget.errors import UserProblem

log = logging.getLogger("tokenmill.failpoints")

# Worker, collector, producer; in the order in which an answer comes by.
POINTS = (
    "before_claim",
    "after_claim",
    "before_http",
    "after_headers",
    "after_http",
    "before_commit",
    "commit_sent",
    "after_commit",
    "before_sink_write",
    "mid_sink_write",
    "after_write_before_fsync",
    "after_fsync_before_trim",
    "during_rebuild",
    "mid_enqueue_batch",
    "between_batches",
)
ACTIONS = ("kill9", "raise", "stop", "cancel")
# Where a job of its own is under way, in a task of its own.
CANCELLABLE = POINTS[2:8]

ACTIVE = bool(environment.failpoint())


class Injected(RuntimeError):
    """The error that `raise` stands for: not one of ours, so nothing expects it."""


class BadFailpoint(UserProblem):
    """TOKENMILL_FAILPOINT is not as it must be."""


class Failpoint(msgspec.Struct):
    """One place that is to fail at its `left`-th visit from now."""

    action: str
    left: int


def parse(text: str) -> dict[str, Failpoint]:
    """What TOKENMILL_FAILPOINT says, by place.

    Raises:
        BadFailpoint: a word of it is none of ours.
    """
    found: dict[str, Failpoint] = {}
    for part in filter(None, text.split(";")):
        point, _, rest = part.strip().partition(":")
        action, _, nth = rest.partition(":")
        number = nth.removeprefix("nth=") if nth else "1"
        if point not in POINTS:
            raise BadFailpoint(f"TOKENMILL_FAILPOINT: there is no failpoint {point!r}: use one of {', '.join(POINTS)}")
        if action not in ACTIONS:
            raise BadFailpoint(
                f"TOKENMILL_FAILPOINT: {point} cannot do {action!r}: write {point}:ACTION with one of "
                f"{', '.join(ACTIONS)}"
            )
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            raise BadFailpoint(f"TOKENMILL_FAILPOINT: {part.strip()!r} must end with nth= and a number from 1")
        if action == "cancel" and point not in CANCELLABLE:
            raise BadFailpoint(
                f"TOKENMILL_FAILPOINT: nothing can be cancelled at {point}: use one of {', '.join(CANCELLABLE)}"
            )
        found[point] = Failpoint(action, int(number))
    return found


_armed: dict[str, Failpoint] | None = None


def check() -> None:
    """Read the environment at the start of a command, so that a slip there is said at once.

    Raises:
        BadFailpoint: see `parse`.
    """
    global _armed
    if _armed is None:
        _armed = parse(environment.failpoint())


def hit(point: str, job: str = "") -> None:
    """A process comes by `point`, on behalf of `job` where there is one.

    Raises:
        Injected: that is what this place is to do.
        BadFailpoint: the environment was not checked before, and is wrong.
    """
    check()
    assert _armed is not None
    failpoint = _armed.get(point)
    if failpoint is None:
        return
    failpoint.left -= 1
    if failpoint.left == 0:
        log.warning("failpoint %s: %s", point, failpoint.action)
        _fail(point, failpoint.action, job)


def _fail(point: str, action: str, job: str) -> None:
    match action:
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "cancel":
            _cancel(job)
        case _:
            raise Injected(f"failpoint {point}")


def _cancel(job: str) -> None:
    """The task that is named like the job: not the one that came by, where its ending is in other hands."""
    for task in asyncio.all_tasks():
        if task.get_name() == job:
            task.cancel()
