"""What every worker needs before its first job: the run's configuration, the tokenizer's facts, the model.

A worker is stateless: all it is told is where Redis is. It waits for the collector, which publishes
the run, and for the producer, which knows the tokenizer, and says for what it waits.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import redis

from budget import damage, keys, runbook
from budget.connections import RedisAway
from budget.errors import OutsideFault, Refused
from workers.contracts import PROTOCOL, RunConfig, TokenizerFacts
from workers.errors import WrongModel
from workers.sglang import Model

POLL_S = 0.2
QUIET_S = 2.0


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The run as a worker knows it."""

    config: RunConfig
    facts: TokenizerFacts

    def sampling(self, dataset: str) -> dict[str, Any]:
        """What is sent with every request of a dataset: the model's own defaults with the run file's on top."""
        return {**self.facts.generation_config, **self.config.dataset(dataset).sampling}


class NotPublished(OutsideFault):
    """Nobody has published a run in this Redis."""


def parse_config(text: str) -> RunConfig:
    """The configuration as the collector published it.

    Raises:
        Refused: another version of Tokenmill wrote it.
    """
    protocol = damage.decoded(text, dict[str, Any], keys.RUN, "config").get("protocol")
    if protocol != PROTOCOL:
        raise Refused(
            f"the run was started by another version of Tokenmill (protocol {protocol}, this is {PROTOCOL}): "
            f"install the same version here"
        )
    return damage.decoded(text, RunConfig, keys.RUN, "config")


def join(
    connection: "redis.Redis", *, wait_s: float, stopping: Callable[[], bool], say: Callable[[str], None]
) -> Joined | None:
    """Wait until collector and producer have said what they know; None if told to stop before.

    Args:
        wait_s: how long Redis may be unreachable at the start, in seconds. The collector is waited for without end.

    Raises:
        RedisAway: Redis stayed unreachable.
        Refused: another version of Tokenmill owns the run.
    """
    started = time.monotonic()
    said: str | None = None
    while not stopping():
        waiting_for = "the collector (`tokenmill collect RUN.toml`)"
        try:
            entry = runbook.published(connection)
            if "config" in entry:
                waiting_for = "the producer (`tokenmill push RUN.toml`), which loads the tokenizer"
                if "tokenizer" in entry:
                    facts = damage.decoded(entry["tokenizer"], TokenizerFacts, keys.RUN, "tokenizer")
                    return Joined(config=parse_config(entry["config"]), facts=facts)
        except RedisAway:
            if time.monotonic() - started > wait_s:
                raise
            waiting_for = "Redis"
        if time.monotonic() - started > QUIET_S and said != waiting_for:
            say(f"waiting for {waiting_for}")
            said = waiting_for
        time.sleep(POLL_S)
    return None


def agree_on_model(connection: "redis.Redis", model: Model, url: str) -> None:
    """The first worker writes which model the run is made with; any other model is refused.

    Raises:
        WrongModel: the server's model or weights are not the run's.
    """
    client: Any = connection
    mine = {"model": model.name, "weight_version": model.weight_version}
    client.hsetnx(keys.RUN, "model", json.dumps(mine))
    text = client.hget(keys.RUN, "model").decode("utf-8", "replace")
    known = damage.decoded(text, dict[str, str], keys.RUN, "model")
    if found := runbook.differences(known, mine):
        raise WrongModel(
            f"server {url} is not the run's model ({'; '.join(found)}): restart it on that model and weights, or "
            f"give the run another output folder"
        )
