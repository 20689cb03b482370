"""The ledger at one moment, read in one pipeline: what status, the producer and the collector judge by."""

from collections.abc import Sequence
from typing import Any

import msgspec
import redis

from budget import damage, keys, rules
from budget.connections import translated


class DatasetState(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset's numbers. Tokens: cap (None: none), spent, reserved, wasted; all others count prompts.

    `inputs` is None until the producer has counted the prompts. `foreign` counts entries of `done` that
    name none of them (lines of an earlier pipeline).
    """

    name: str
    cap: int | None
    open: bool
    spent: int
    reserved: int
    committed: int
    rejected: int
    truncated: int
    dropped: int
    queued: int
    intermediate: int
    leased: int
    waiting: int
    done: int
    wasted: int
    inputs: int | None
    foreign: int
    exhausted: bool
    full: bool
    max_samples: int | None

    @property
    def facts(self) -> rules.Facts:
        return rules.Facts(
            spent=self.spent,
            cap=self.cap,
            open=self.open,
            committed=self.committed,
            max_samples=self.max_samples,
            full=self.full,
            exhausted=self.exhausted,
            queued=self.queued,
            intermediate=self.intermediate,
            leased=self.leased,
            waiting=self.waiting,
        )

    @property
    def unsent(self) -> int | None:
        """Prompts that were never queued; None until they are counted."""
        if self.inputs is None:
            return None
        return max(0, self.inputs - (self.done - self.foreign) - self.dropped - self.queued - self.leased)


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """All datasets of a run, in the run file's order, and the cap over them."""

    datasets: list[DatasetState]
    total_cap: int | None

    @property
    def total_spent(self) -> int:
        return sum(dataset.spent for dataset in self.datasets)

    def dataset(self, name: str) -> DatasetState:
        """The dataset of that name.

        Raises:
            KeyError: it was not read.
        """
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        raise KeyError(name)

    def complete(self, name: str) -> rules.Reason | None:
        return rules.complete(self.dataset(name).facts, self.total_spent, self.total_cap)

    def finished(self, name: str) -> bool:
        return rules.finished(self.dataset(name).facts, self.total_spent, self.total_cap)

    def all_finished(self, names: Sequence[str] | None = None) -> bool:
        return all(self.finished(name) for name in (names or [dataset.name for dataset in self.datasets]))


_FIELDS = [
    "cap", "reserved", "committed", "rejected", "truncated", "inputs", "foreign", "exhausted", "full", "max_samples",
]  # fmt: skip


def read(connection: "redis.Redis", datasets: Sequence[str]) -> RunState:
    """The state of `datasets`; pass all of the run's, or a total cap is judged by a part.

    Raises:
        RedisAway, RedisRefuses: as the ledger's verbs.
        RedisDamaged: a key holds something else than a number.
    """
    client: Any = connection
    with translated(), client.pipeline(transaction=False) as pipe:
        size = ask(pipe, datasets)
        return parse(datasets, pipe.execute()[:size])


def ask(pipe: Any, datasets: Sequence[str]) -> int:
    """Put the questions of `read` into a pipeline; returns how many answers there will be for `parse`."""
    pipe.hget(keys.RUN, "max_tokens_total")
    for name in datasets:
        pipe.hmget(keys.budget(name), _FIELDS)
        pipe.get(keys.spent(name))
        pipe.scard(keys.dropped(name))
        pipe.llen(keys.rq_queue(name))
        pipe.llen(keys.rq_intermediate(name))
        pipe.hlen(keys.leases(name))
        pipe.xlen(keys.results(name))
        pipe.hlen(keys.done(name))
        pipe.hvals(keys.wasted(name))
    return 1 + _ANSWERS * len(datasets)


_ANSWERS = 9


def parse(datasets: Sequence[str], answers: Sequence[Any]) -> RunState:
    """The state from the answers to what `ask` asked."""
    total_cap = answers[0]
    states = [
        _state(name, answers[1 + number * _ANSWERS : 1 + (number + 1) * _ANSWERS])
        for number, name in enumerate(datasets)
    ]
    return RunState(datasets=states, total_cap=damage.optional(total_cap, keys.RUN, "max_tokens_total"))


def _state(name: str, answers: Sequence[Any]) -> DatasetState:
    fields: dict[str, bytes | None] = dict(zip(_FIELDS, answers[0], strict=True))

    def count(field: str) -> int:
        return damage.whole(fields[field], keys.budget(name), field)

    def optional(field: str) -> int | None:
        return damage.optional(fields[field], keys.budget(name), field)

    return DatasetState(
        name=name,
        cap=optional("cap"),
        open=fields["cap"] is not None,
        spent=damage.whole(answers[1], keys.spent(name)),
        reserved=count("reserved"),
        committed=count("committed"),
        rejected=count("rejected"),
        truncated=count("truncated"),
        dropped=answers[2],
        queued=answers[3],
        intermediate=answers[4],
        leased=answers[5],
        waiting=answers[6],
        done=answers[7],
        wasted=_sum(answers[8], keys.wasted(name)),
        inputs=optional("inputs"),
        foreign=count("foreign"),
        exhausted=fields["exhausted"] == b"1",
        full=fields["full"] == b"1",
        max_samples=optional("max_samples"),
    )


def _sum(values: list[bytes], key: str) -> int:
    """A value for each worker that ever was, so the quick way first."""
    try:
        return sum(map(int, values))
    except ValueError:
        return sum(damage.whole(value, key) for value in values)
