"""What every worker needs before its first job: the run's configuration, the tokenizer's facts, the model.

A worker is stateless: all it is told is where Redis is. It waits for the collector, which publishes
the run, and for the producer, which knows the tokenizer, and says for what it waits.
"""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import redis

from budget import damage, keys, runbook
from budget.connections import RedisAway
from budget.errors import OutsideFault
from workers.contracts import RunConfig, TokenizerFacts
from workers.errors import WrongModel
from workers.pieces import Pieces, found
from workers.sglang import Model

# Without `answer_s`, an answer may take this long for each token asked for, and never less than ten minutes altogether.
SLOWEST_S_PER_TOKEN = 1.0
SHORTEST_ANSWER_S = 600.0
POLL_S = 0.2
QUIET_S = 2.0


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The run as a worker knows it."""

    config: RunConfig
    facts: TokenizerFacts
    pieces: Pieces | None = None

    def sampling(self, dataset: str) -> dict[str, Any]:
        """What is sent with every request of a dataset: the model's own defaults with the run file's on top."""
        return {**self.facts.generation_config, **self.config.dataset(dataset).sampling}

    def longest_answer_s(self, datasets: Iterable[str]) -> float:
        """How long a request of any of these datasets may take, in seconds."""
        if self.config.answer_s is not None:
            return self.config.answer_s
        tokens = max(int(self.sampling(name)["max_new_tokens"]) for name in datasets)
        return max(SHORTEST_ANSWER_S, tokens * SLOWEST_S_PER_TOKEN)


class NotPublished(OutsideFault):
    """Nobody has published a run in this Redis."""


def join(
    connection: "redis.Redis", *, wait_s: float, stopping: Callable[[], bool], say: Callable[[str], None]
) -> Joined | None:
    """Wait until collector and producer have said what they know; None if told to stop before.

    Args:
        wait_s: how long Redis may be unreachable at the start, in seconds. The collector is waited for without end.

    Raises:
        RedisAway: Redis stayed unreachable.
        OtherProtocol: another version of Tokenmill owns the run.
    """
    started = time.monotonic()
    said: str | None = None
    while not stopping():
        waiting_for = "the collector (`tokenmill collect RUN.toml`)"
        try:
            entry = runbook.published(connection)
            runbook.refuse_other(entry)
            if "config" in entry:
                waiting_for = "the producer (`tokenmill push RUN.toml`), which loads the tokenizer"
                if "tokenizer" in entry:
                    facts = damage.decoded(entry["tokenizer"], TokenizerFacts, keys.RUN, "tokenizer")
                    config = damage.decoded(entry["config"], RunConfig, keys.RUN, "config")
                    return Joined(config=config, facts=facts)
        except RedisAway:
            if time.monotonic() - started > wait_s:
                raise
            waiting_for = "Redis"
        if time.monotonic() - started > QUIET_S and said != waiting_for:
            say(f"waiting for {waiting_for}")
            said = waiting_for
        time.sleep(POLL_S)
    return None


def pieces_of(connection: "redis.Redis", facts: TokenizerFacts) -> Pieces | None:
    """What tells the texts of answers, for a worker of many jobs; without it, it sends them along."""
    digest = facts.pieces_digest
    return found(runbook.pieces(connection, digest), digest) if digest else None


def agree_on_model(connection: "redis.Redis", model: Model, url: str, *, any_weights: bool = False) -> None:
    """The first worker writes which model the run is made with; any other model is refused.

    With `any_weights`, other weights of the same model are not.

    Raises:
        WrongModel: the server's model or weights are not the run's.
    """
    client: Any = connection
    mine = {"model": model.name, "weight_version": model.weight_version}
    client.hsetnx(keys.RUN, "model", json.dumps(mine))
    text = client.hget(keys.RUN, "model").decode("utf-8", "replace")
    known = damage.decoded(text, dict[str, str], keys.RUN, "model")
    if any_weights:
        del mine["weight_version"]
    if found := runbook.differences(known, mine):
        raise WrongModel(
            f"server {url} is not the run's model ({'; '.join(found)}): restart it on that model and weights, or "
            f"give the run another output folder"
        )
