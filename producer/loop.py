"""The producer: keeps every dataset's queue topped up until the dataset is finished.

It may be killed anywhere. All that it knows is in the prompts and in Redis, and each pass compares the
two; so a start, a restarted Redis and a raised cap are the same thing to it.
"""

import json
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import redis

from budget import damage, keys, runbook, snapshot
from budget.connections import RedisAway, RedisRefuses, check_safe, connect, translated
from budget.errors import OutsideFault, UserProblem
from budget.ledger import Ledger
from budget.locks import Lock
from producer.feed import Feed, Step
from producer.patience import Patience, Saying, passing
from producer.prompt_set import Files, Library
from producer.upkeep import Upkeep, release
from workers.contracts import RunConfig, fingerprint

log = logging.getLogger("tokenmill.producer")

# How often the queues are looked at while nothing has to be done: soon after something was, then less often.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 0.5
AWAY_PAUSE_S = 0.5


def produce(
    config: RunConfig,
    url: str,
    datasets: list[str],
    *,
    stay: bool,
    stop: threading.Event,
    wait_s: float = 60,
    library: Library | None = None,
) -> None:
    """Queue the prompts of `datasets` (none named: all of the run's) until they are finished.

    Args:
        config: the run as the run file has it now.
        url: where Redis is.
        datasets: names of the run's datasets.
        stay: go on when all are finished, for a cap that is raised later.
        stop: set it to end the producer at the next batch.
        wait_s: how long Redis may be unreachable at the start.
        library: where prompts come from; the run file's prompt files by default.

    Raises:
        UserProblem: something in the run file or the prompts must be changed.
        Interrupted: `stop` was set.
        Refused: another producer has a dataset, or the database is another run's.
        OutsideFault: Redis cannot be reached, or refuses for good.
    """
    names = list(dict.fromkeys(datasets)) or [dataset.name for dataset in config.datasets]
    known = {dataset.name for dataset in config.datasets}
    if unknown := [name for name in names if name not in known]:
        raise UserProblem(f"the run has no dataset {unknown[0]!r}; it has {', '.join(sorted(known))}")
    library = library or Files(config)
    library.check([config.dataset(name) for name in names])
    connection = connect(url)
    patience = Patience(stop)
    _reach(connection, patience, wait_s)
    producer = _Producer(config, connection, names, library, patience)
    producer.wait_for_run()
    locks = _lock(connection, names, config.timing.lease_ms, patience)
    upkeep = Upkeep(connection, locks, [dataset.name for dataset in config.datasets], config.timing)
    try:
        upkeep.start()
        patience.check = upkeep.check
        producer.feed(stay)
    finally:
        upkeep.end()
        release(locks)


def _reach(connection: "redis.Redis", patience: Patience, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    saying = Saying()
    while True:
        patience.pause(0)
        try:
            for warning in check_safe(connection):
                log.warning("%s", warning)
        except RedisAway as error:
            left = until - time.monotonic()
            if left <= 0:
                raise OutsideFault(
                    f"{error}; waited {wait_s:.0f} s: start Redis, or correct TOKENMILL_REDIS_URL"
                ) from error
            saying.hold(f"the producer waits for Redis: {error}")
            patience.pause(min(AWAY_PAUSE_S, left))
        else:
            saying.over("Redis answers")
            return


def _lock(connection: "redis.Redis", names: Sequence[str], lease_ms: int, patience: Patience) -> list[Lock]:
    taken: list[Lock] = []
    try:
        for name in names:
            lock = Lock(connection, keys.producer_lock(name), lease_ms, f"the producer of {name}")
            patience.until(lock.acquire)
            taken.append(lock)
    except BaseException:
        release(taken)
        raise
    return taken


class _Producer:
    """One run of the producer over its datasets."""

    def __init__(
        self, config: RunConfig, connection: "redis.Redis", names: list[str], library: Library, patience: Patience
    ) -> None:
        self._config = config
        self._connection = connection
        self._names = names
        self._all = [dataset.name for dataset in config.datasets]
        self._library = library
        self._patience = patience
        self._run_id = ""
        self._noted = False
        self._feeds = [Feed(Ledger(connection), config, name, library, self._note_tokenizer) for name in names]

    def wait_for_run(self) -> None:
        """Wait until the collector has published this run and read its files into this Redis.

        Raises:
            Changed: a dataset of the published run differs from the run file's.
            OtherProtocol: the database is another version's.
        """
        self._patience.until(self._missing)

    def _missing(self) -> str | None:
        entry = runbook.published(self._connection)
        collector = f"the collector of run {self._config.name!r}"
        start = "start `tokenmill collect` on the machine that has the output folder"
        if not entry:
            return f"the producer waits for {collector}: {start}"
        runbook.refuse_other(entry)
        # Not refusals: the collector of this very run may be about to publish it.
        if entry.get("name", self._config.name) != self._config.name:
            return (
                f"the producer waits for {collector}: this Redis database holds run {entry['name']!r} so far; {start}, "
                f"and if that is refused, use another database number, or `tokenmill reset` with that run's run file"
            )
        if absent := [name for name in self._names if f"fingerprint:{name}" not in entry]:
            return f"the producer waits for {collector} to know {', '.join(absent)}: start it again with this run file"
        if not runbook.is_ready(self._connection):
            return f"the producer waits for {collector} to read the result files into Redis: {start}"
        for name in self._names:
            if found := runbook.differences(runbook.fingerprint_of(entry, name), fingerprint(self._config, name)):
                raise runbook.changed(name, found)
        return None

    def prepare(self) -> None:
        """Tell Redis what this producer knows; done again whenever Redis was seeded anew.

        The tokenizer of a run that is complete is loaded and compared only before a prompt is queued after
        all: loading it would be most of what it takes to find such a run complete.

        Raises:
            Changed: answers were collected under another tokenizer or template.
        """
        self._run_id = runbook.run_id(self._connection)
        self._noted = False
        state = snapshot.read(self._connection, self._all)
        is_told = "tokenizer" in runbook.published(self._connection)
        if not (is_told and all(state.complete(name) for name in self._names)):
            self._note_tokenizer()
        caps = {name: self._config.dataset(name).max_tokens for name in self._names}
        for name, written in runbook.apply_file_caps(self._connection, caps).items():
            log.log(logging.WARNING if written.over else logging.INFO, "%s: %s", name, written.said)
        for feed in self._feeds:
            feed.reset()
            feed.clear_exhausted()

    def _is_known(self) -> bool:
        """Whether this is still the Redis that `prepare` wrote to: it may be emptied and filled between two looks."""
        client: Any = self._connection
        with translated():
            noted = client.hexists(keys.RUN, "tokenizer")
        return bool(noted) and runbook.is_ready(client) and runbook.run_id(client) == self._run_id

    def _note_tokenizer(self) -> None:
        if self._noted:
            return
        facts = self._library.tokenizer_facts()
        text = runbook.published(self._connection).get("tokenizer", "{}")
        before = damage.decoded(text, dict[str, Any], keys.RUN, "tokenizer")
        hashes = ("tokenizer_hash", "template_hash")
        found = runbook.differences(
            {name: str(before[name]) for name in hashes if name in before}, {name: str(facts[name]) for name in hashes}
        )
        if found:
            raise runbook.Changed(
                f"the run was collected under another tokenizer or chat template ({'; '.join(found)}): put "
                f"{self._config.tokenizer} back as it was, or give the run another output folder and Redis database"
            )
        if (packed := self._library.pieces()) is not None:
            runbook.lay_down_pieces(self._connection, facts["pieces_digest"], packed)
        runbook.note_facts(self._connection, {"tokenizer": json.dumps(facts)})
        self._noted = True

    def feed(self, stay: bool) -> None:
        """The loop: a batch for each dataset in turn, until all are finished."""
        pause, trouble, collector = FIRST_PAUSE_S, Saying(), Saying()
        finished: set[str] = set()
        prepared = ready = False
        while True:
            self._patience.pause(0)
            try:
                if not ready:
                    if prepared:
                        log.warning("Redis was restarted or emptied: its run must be read into it from the files")
                    self.wait_for_run()
                    self.prepare()
                    prepared = ready = True
                state = snapshot.read(self._connection, self._all)
                steps = [feed.step(state) for feed in self._feeds]
                idle = all(step is Step.WAITS for step in steps)
                ready = Step.NOT_READY not in steps and (not idle or self._is_known())
            except (RedisAway, RedisRefuses) as error:
                trouble.hold(passing(error))
                self._patience.pause(AWAY_PAUSE_S)
                continue
            trouble.over("Redis works again: the producer goes on")
            if not ready:
                continue
            if idle and self._is_over(state, stay, finished, collector):
                return
            pause = min(LAST_PAUSE_S, pause * 1.3) if idle else FIRST_PAUSE_S
            self._patience.pause(pause if idle else 0)

    def _is_over(self, state: snapshot.RunState, stay: bool, finished: set[str], collector: Saying) -> bool:
        unwritten = 0
        for feed in self._feeds:
            if state.finished(feed.name):
                if feed.name not in finished:
                    finished.add(feed.name)
                    log.info("%s is finished", feed.name)
            else:
                finished.discard(feed.name)
                held = state.dataset(feed.name)
                if state.complete(feed.name) and not held.leased and not held.queued:
                    unwritten += held.waiting
        if unwritten:
            collector.hold("the producer waits for the collector to write the last results to the files")
        return not stay and len(finished) == len(self._feeds) and all(feed.told for feed in self._feeds)
