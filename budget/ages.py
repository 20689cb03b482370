"""What the forecast is made from, read in one pipeline: answers by length, jobs in flight by age, and the cap.

One read serves all datasets of a worker; it is repeated at every revision, so it asks for no more than
the forecast needs.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import redis
import redis.asyncio

from budget import damage, keys
from budget.connections import translated


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset's answers by length and jobs in flight by age (bucket -> count), and how near its cap is.

    `worst` is the most tokens that a job enqueued so far can cost, 0 where none is known; `cap` is None
    where there is none or it is not known yet.
    """

    finished: dict[int, int] = {}
    in_flight: dict[int, int] = {}
    worst: int = 0
    cap: int | None = None
    spent: int = 0
    reserved: int = 0

    @property
    def remaining(self) -> int | None:
        """Tokens that may still be reserved; below 0 where more is reserved than the cap leaves."""
        return None if self.cap is None else self.cap - self.spent - self.reserved


def read(connection: "redis.Redis", datasets: Sequence[str]) -> dict[str, Ages]:
    """The ages of `datasets`.

    Raises:
        RedisAway, RedisRefuses: as the ledger's verbs.
    """
    client: Any = connection
    with translated(), client.pipeline(transaction=False) as pipe:
        _ask(pipe, datasets)
        return _parse(datasets, pipe.execute())


async def read_async(connection: "redis.asyncio.Redis", datasets: Sequence[str]) -> dict[str, Ages]:
    """`read` for the worker's event loop."""
    client: Any = connection
    with translated():
        async with client.pipeline(transaction=False) as pipe:
            _ask(pipe, datasets)
            return _parse(datasets, await pipe.execute())


def _ask(pipe: Any, datasets: Sequence[str]) -> None:
    for name in datasets:
        pipe.hgetall(keys.ages(name))
        pipe.hmget(keys.budget(name), "worst", "cap", "reserved")
        pipe.get(keys.spent(name))


def _parse(datasets: Sequence[str], answers: list[Any]) -> dict[str, Ages]:
    found: dict[str, Ages] = {}
    for number, name in enumerate(datasets):
        counts, (worst, cap, reserved), spent = answers[3 * number : 3 * number + 3]
        finished: dict[int, int] = {}
        in_flight: dict[int, int] = {}
        for field, count in counts.items():
            # A counter below 0 can only come from a Redis that lost its newest writes; seeding mends it.
            # What is no count of ours only feeds a forecast: it is left out.
            if field[1:].isdigit() and (number_of := int(damage.shown_number(count))) > 0:
                (finished if field[:1] == b"c" else in_flight)[int(field[1:])] = number_of
        found[name] = Ages(
            finished=finished,
            in_flight=in_flight,
            worst=damage.whole(worst, keys.budget(name), "worst"),
            cap=damage.optional(cap, keys.budget(name), "cap"),
            spent=damage.whole(spent, keys.spent(name)),
            reserved=damage.whole(reserved, keys.budget(name), "reserved"),
        )
    return found
