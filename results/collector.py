"""The collector: the one process that owns the output folder.

It tells the ledger what the files hold, then brings every result from Redis into them: whole jobs are
written, fsynced, and only then taken out of the stream. So the files are the truth at every moment, and
Redis may be killed, emptied or restored beneath it: it looks each second whether it is still the Redis
that was seeded, and seeds it again where it is not.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from redis.backoff import NoBackoff
from redis.retry import Retry

from budget import connections, failpoints, keys, runbook, snapshot, verbs
from budget.connections import RedisAway, RedisDamaged, RedisRefuses
from budget.ledger import Ledger
from budget.locks import Lock
from budget.sweep import sentence, sweep
from results import dropped, seeding
from results.entry import Entry
from results.folder import OutputFolder
from results.piece_store import PieceStore
from results.rates import Rates
from results.sink import Sink
from results.stream import Batch, Stream
from workers.contracts import RunConfig

log = logging.getLogger("tokenmill.collector")

# Small batches are gathered for so long, so that a slow trickle of answers costs five fsyncs a second at most.
_GATHER_S = 0.2
_BLOCK_S = 0.5
_LOOK_S = 1.0
_SAY_S = 60.0

T = TypeVar("T")


class Collector:
    """One run's collector; `run` is all of it.

    Args:
        stop: ends it after it has written what waits.
        stay: do not leave when all datasets are finished.
        wait_s: how long a Redis that cannot be reached is waited for at the start.
    """

    def __init__(
        self, config: RunConfig, url: str, *, stop: threading.Event, stay: bool = False, wait_s: float = 60.0
    ) -> None:
        self._config = config
        self._url = url
        self._stop = stop
        self._stay = stay
        self._wait_s = wait_s
        self._names = [dataset.name for dataset in config.datasets]
        self._folder = OutputFolder(config.output)
        self._connection = connections.connect(url)
        # It has its own way of waiting, which says so and can be stopped.
        self._connection.set_retry(Retry(NoBackoff(), 1))
        self._pieces = PieceStore(self._connection, self._folder)
        self._sinks = {name: Sink(self._folder, name, self._pieces.find) for name in self._names}
        self._ledger = Ledger(self._connection)
        self._stream = Stream(self._connection, self._names)
        lease_ms = config.timing.lease_ms
        self._lock = Lock(self._connection, keys.COLLECTOR_LOCK, lease_ms, f"the collector of run {config.name!r}")
        # Everything that must happen within a lease happens three times in one.
        self._beat_s = min(_LOOK_S, lease_ms / 3000)
        self._sweep_s = min(config.timing.sweep_ms, lease_ms / 3) / 1000
        self._run_id = ""
        self._seeded = False
        self._mending = False
        self._next_renew = self._next_look = self._next_sweep = 0.0
        self._rates = Rates()
        self._said: dict[str, float] = {}
        self._progress: tuple[float, int] = (0.0, 0)

    def run(self) -> bool:
        """Collect until all datasets are finished (True), or `stop` is set (False).

        Raises:
            FolderTaken, Held, LockLost: another collector has the folder or the run.
            AnotherRun, OtherProtocol, BadFolder, Changed: the database or the folder is not this run's.
            RedisAway, RedisUnsafe: Redis cannot be reached in time, or is unsafe.
            NotWritable, DiskFault, FileChanged: the files cannot be written; nothing was lost.
        """
        self._folder.prepare(self._names)
        self._folder.lock()
        try:
            if not self._await_start():
                return False
            for warning in connections.check_safe(self._connection):
                log.warning("%s", warning)
            # Before the lock, which could only say that somebody has it.
            self._folder.refuse_another(self._connection)
            if not self._once_allowed(self._lock.acquire):
                return False
            try:
                return self._work()
            finally:
                self._calmly(self._lock.release)
        finally:
            for sink in self._sinks.values():
                sink.close()
            self._folder.unlock()
            self._connection.close()

    def _await_start(self) -> bool:
        """Wait for Redis; False if `stop` came first."""
        deadline = time.monotonic() + self._wait_s
        while not self._stop.is_set():
            try:
                self._run_id = runbook.run_id(self._connection)
                return True
            except RedisAway as problem:
                where = connections.without_secret(self._url)
                if time.monotonic() >= deadline:
                    raise RedisAway(
                        f"no Redis at {where} for {self._wait_s:.0f} s ({problem}): start it, or correct "
                        f"TOKENMILL_REDIS_URL"
                    ) from problem
                self._say("away", f"waiting up to {self._wait_s:.0f} s for Redis at {where}: {problem}")
            self._stop.wait(min(0.2, self._wait_s))
        return False

    def _once_allowed(self, action: Callable[[], None]) -> bool:
        """Do a step of the start as soon as a Redis that is full lets it; False if `stop` came first."""
        while not self._stop.is_set():
            try:
                action()
                return True
            except RedisRefuses as problem:
                if not connections.is_passing(problem):
                    raise
                self._say("refuses", f"waiting, nothing is lost: {problem}")
            self._stop.wait(self._beat_s)
        return False

    def _work(self) -> bool:
        entry = Entry(self._connection, self._config, self._folder)
        # Before the files are read: a database that is another's is refused at once.
        if not self._once_allowed(lambda: entry.publish(start=True)):
            return False
        for sink in self._sinks.values():
            sink.open(self._tick)
        ready = False
        while True:
            try:
                if self._stop.is_set():
                    self._leave(entry)
                    return False
                if not self._seeded:
                    self._seed(entry, again=ready)
                    ready = True
                if self._look(entry):
                    self._leave(entry)
                    return True
                if self._seeded:
                    self._collect(block_s=min(_BLOCK_S, self._beat_s))
            except RedisAway as problem:
                self._say("away", f"waiting for Redis, nothing is lost: {problem}")
                self._stop.wait(self._beat_s)
            except RedisRefuses as problem:
                if isinstance(problem, RedisDamaged) or not (ready or connections.is_passing(problem)):
                    raise
                self._say("refuses", f"waiting, nothing is lost: {problem}")
                self._stop.wait(self._beat_s)

    def _seed(self, entry: Entry, *, again: bool) -> None:
        """Bring stream, files and ledger together, and open the gate for workers and producers."""
        run_id = runbook.run_id(self._connection)
        if again or run_id != self._run_id:
            log.info("Redis was restarted or emptied: seeding the files into it again")
            entry.publish()
            self._pieces.restore()
            entry.restore_facts()
        self._run_id = run_id
        restarted = again or runbook.was_restarted(self._connection)
        # What an earlier batch took in before it failed: the ledger must hear of nothing that no file has.
        self._write()
        doubtful = {name: seeding.unknown(self._connection, s.index, self._tick) for name, s in self._sinks.items()}
        left = self._stream.lengths()
        while any(count > 0 for count in left.values()):
            batch = self._collect(block_s=None)
            left = {name: left[name] - len(batch.entries.get(name, ())) for name in batch.entries}
        changed = forgotten = 0
        for name, sink in self._sinks.items():
            changed += seeding.seed_all(self._ledger, sink.index, self._tick)
            forgotten += seeding.forget(self._ledger, sink, doubtful[name], self._tick)
            if restarted:
                self._ledger(verbs.recount(dataset=name))
        # Entries that came meanwhile may say more than what was just seeded over them.
        self._mending = True
        if runbook.run_id(self._connection) != run_id:
            raise RedisAway("it was restarted while it was being seeded")
        entry.set_ready(run_id)
        if restarted:
            self._renew_log()
        self._seeded = True
        answers = sum(len(sink.index.answers) for sink in self._sinks.values())
        tokens = sum(self._tokens().values())
        self._progress = (time.monotonic(), answers)
        log.info(
            "the files hold %s answers with %s tokens; %s entries of the ledger were corrected, %s forgotten",
            f"{answers:,}",
            f"{tokens:,}",
            f"{changed:,}",
            f"{forgotten:,}",
        )

    def _renew_log(self) -> None:
        """What a Redis that was killed left half written in its file must not be read again."""
        try:
            runbook.renew_log(self._connection)
        except (RedisAway, RedisRefuses) as problem:
            # It may be at it already, or this user may not ask for it: the run goes on.
            log.debug("Redis does not write its append-only file anew: %s", problem)

    def _collect(self, block_s: float | None) -> Batch:
        """One batch from the streams into the files: written, fsynced, and only then taken out of Redis."""
        batch = self._stream.read(None if block_s is None else max(1, int(block_s * 1000)))
        for name, found in batch.entries.items():
            for entry, fields in found:
                self._tick()
                self._sinks[name].take(entry, fields, mending=self._mending)
        self._write()
        if batch.entries:
            if failpoints.ACTIVE:
                failpoints.hit("after_fsync_before_trim")
            self._stream.remove(batch)
        settled = sum(seeding.settle(self._ledger, sink) for sink in self._sinks.values())
        if self._said.pop("away", None):
            log.info("Redis is back")
        # What was settled just now may have gone over an entry that came after this batch was read.
        self._mending = settled > 0 or (self._mending and (batch.full or not self._seeded))
        if not self._mending:
            for sink in self._sinks.values():
                sink.forgotten.clear()
        if batch.entries and not batch.full and block_s is not None:
            self._stop.wait(min(_GATHER_S, self._beat_s))
        return batch

    def _write(self) -> None:
        """All that was taken in; more than the last batch, where one before it failed half way."""
        for sink in self._sinks.values():
            if sink.is_ahead:
                sink.write()

    def _tick(self) -> None:
        """Keep the lock while something takes long."""
        now = time.monotonic()
        if now >= self._next_renew:
            self._next_renew = now + self._beat_s
            self._calmly(self._lock.renew)

    def _look(self, entry: Entry) -> bool:
        """What is done each second; True when all datasets are finished."""
        self._tick()
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + self._beat_s
        if not entry.is_seeded():
            self._seeded = False
            return False
        self._when_allowed(lambda: self._pieces.note(entry.tokenizer))
        if now >= self._next_sweep:
            self._next_sweep = now + self._sweep_s
            self._sweep()
        self._tell()
        self._when_allowed(lambda: entry.note_rates(self._rates.note(now, self._tokens())))
        return not self._stay and snapshot.read(self._connection, self._names).all_finished()

    def _sweep(self) -> None:
        deaths = self._when_allowed(
            lambda: sweep(self._ledger, self._names, self._config.timing.lease_ms, thorough=True)
        )
        for death in deaths or []:
            log.warning("%s", sentence(death))

    def _tell(self) -> None:
        now = time.monotonic()
        answers = sum(len(sink.index.answers) for sink in self._sinks.values())
        if now - self._progress[0] < _SAY_S or answers == self._progress[1]:
            return
        log.info(
            "%s answers more, %s in all, with %s tokens",
            f"{answers - self._progress[1]:,}",
            f"{answers:,}",
            f"{sum(self._tokens().values()):,}",
        )
        self._progress = (now, answers)

    def _tokens(self) -> dict[str, int]:
        return {name: sink.index.tokens for name, sink in self._sinks.items()}

    def _leave(self, entry: Entry) -> None:
        """Write what still waits, and what was dropped; where Redis is away it keeps that for the next start."""
        try:
            while self._collect(block_s=None).full:
                self._tick()
            for name in self._names:
                dropped.write(self._connection, self._folder.dropped(name), name)
            entry.is_seeded()  # keeps what was said since the last look
        except (RedisAway, RedisRefuses) as problem:
            log.warning("left before all was written, Redis keeps it for the next start: %s", problem)

    def _when_allowed(self, action: Callable[[], T]) -> T | None:
        """Run what a Redis that is full or cannot write refuses; results must flow out of it all the same."""
        try:
            return action()
        except RedisDamaged:
            raise
        except RedisRefuses as problem:
            self._say("refuses", f"{problem}")
            return None

    def _calmly(self, action: Callable[[], None]) -> None:
        try:
            self._when_allowed(action)
        except RedisAway as problem:
            log.debug("%s", problem)

    def _say(self, about: str, what: str) -> None:
        """Once, and then each minute while it lasts."""
        now = time.monotonic()
        if now - self._said.get(about, -_SAY_S) >= _SAY_S:
            log.warning("%s", what)
            self._said[about] = now
