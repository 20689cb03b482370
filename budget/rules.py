"""When a dataset is complete, when it is finished, and when a prompt is poison: one function each, used everywhere.

`complete` and `is_poison` have twins in `lua/prelude.lua`, since the scripts must judge inside their atomic step;
a test holds them together.
"""

from typing import Literal

import msgspec

Reason = Literal["budget", "prompts"]

# Dead workers and servers that a prompt is charged with until it is poison: at the fewest, and at the most.
FEWEST_DEATHS = 4
MOST_DEATHS = 8


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about one dataset. `cap` is None where there is none; `open` is False until a cap is known."""

    spent: int
    cap: int | None
    open: bool = True
    committed: int = 0
    max_samples: int | None = None
    full: bool = False
    exhausted: bool = False
    queued: int = 0
    intermediate: int = 0
    leased: int = 0
    waiting: int = 0


def complete(facts: Facts, total_spent: int = 0, total_cap: int | None = None) -> Reason | None:
    """Why the dataset takes no more jobs, or None while it does.

    Args:
        facts: the dataset's.
        total_spent: tokens spent over all of the run's datasets.
        total_cap: the run's cap over all datasets, None where it has none.
    """
    if facts.cap is not None and facts.spent >= facts.cap:
        return "budget"
    if total_cap is not None and total_spent >= total_cap:
        return "budget"
    if facts.max_samples is not None and facts.committed >= facts.max_samples:
        return "budget"
    if facts.full:
        return "budget"
    if facts.exhausted:
        return "prompts"
    return None


def finished(facts: Facts, total_spent: int = 0, total_cap: int | None = None) -> bool:
    """Complete, nothing queued or leased, and every result written to the files."""
    return (
        complete(facts, total_spent, total_cap) is not None
        and facts.queued == 0
        and facts.leased == 0
        and facts.waiting == 0
    )


def is_poison(deaths: int, others: int) -> bool:
    """Whether a prompt is what ends the workers and servers that it is sent to.

    Where others die too, for whatever reason, an innocent prompt is soon in flight in four of the dead; so each
    such death but the first, which may be a coincidence, asks for one more of its own. One that ends all that it
    touches gets there all the same.

    Args:
        deaths: workers and servers that died with it in flight.
        others: those that died without it since it became a suspect.
    """
    return deaths >= min(MOST_DEATHS, FEWEST_DEATHS + max(0, others - 1))
