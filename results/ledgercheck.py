"""The ledger compared with the files and with itself.

Two kinds of comparison. What one transaction of Redis shows must agree at any moment: reservations and
ages with leases. What spans files and ledger is compared only where nothing moved from before the files
were read until after the ledger was.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from budget import damage, keys, runbook, snapshot
from budget.connections import translated
from budget.forecast import bucket
from budget.snapshot import DatasetState, RunState
from results.index import Index, Seen, digest_of_job, job_of
from results.report import Findings

_SEED = "run the job again, its collector seeds the ledger from the files"
# A seeding moves the counters by differences, so it cannot mend what disagrees within the ledger itself.
_RESET = "free the database with `tokenmill reset` and run the job again; the files stay"
_SCAN_AT_ONCE = 1000


# A lease as lua/prelude.lua packs it: what it reserves, and the bucket of its age.
_LEASE = re.compile(rb"\S+ (\d+) \d+ (\d+) \d \d .*", re.DOTALL)
_MENDS = "a running collector mends it within a lease; run the job again"


class _Done:
    """What `done` and `dropped` say, against the files: jobs that only one has, and those that both tell apart."""

    def __init__(self) -> None:
        self.stray = Seen()
        self.missing = Seen()
        self.differing = Seen()
        self.dropped = Seen()
        self.total = 0


class LedgerCheck:
    """Make it before the files are read, then `compare` each dataset's index."""

    def __init__(
        self, connection: "redis.Redis", names: Sequence[str], findings: Findings, output_id: str | None
    ) -> None:
        self._client: Any = connection
        self._connection = connection
        self._names = names
        self._findings = findings
        entry = runbook.published(connection)
        self._why = ""
        if not entry or output_id is None:
            self._why = "no run is published in this Redis, so only the files were checked: start the job"
        elif entry.get("output_id") != output_id:
            self._why = "this Redis belongs to another output folder, so only the files were checked"
        elif not runbook.is_ready(connection):
            self._why = "the files are not seeded into this Redis yet, so only the files were checked: start the job"
        if self._why:
            findings.note(self._why)
        self._before: RunState = snapshot.read(connection, names)

    def compare(self, index: Index) -> None:
        """Compare one dataset; uses up the index."""
        if self._why:
            return
        name = index.dataset
        self._leases(name)
        tokens, answers, rejected = index.tokens, len(index.answers), len(index.rejected)
        ages = Counter(bucket(value >> 1) for value in index.answers.values())
        done = self._scan(index)
        with translated():
            counted: dict[bytes, bytes] = self._client.hgetall(keys.ages(name))
        state = snapshot.read(self._connection, self._names)
        now = state.dataset(name)
        if _moved(self._before.dataset(name), now):
            self._findings.note(f"{name}: ledger and files were not compared: still running")
            return
        self._name_each(name, done)
        mend = _SEED if done.stray.count or done.missing.count or done.differing.count else _RESET
        self._equal(name, "tokens", "the files hold {} tokens, the counter says {}", tokens, now.spent, mend)
        self._equal(name, "sum", "the counter says {} tokens, its entries sum up to {}", now.spent, done.total, _RESET)
        self._equal(name, "done", "the files hold {} ended prompts, the ledger {}", answers + rejected, now.done, mend)
        self._equal(name, "committed", "the files hold {} answers, the ledger counts {}", answers, now.committed, mend)
        self._equal(name, "rejected", "the files hold {} rejected prompts, the ledger {}", rejected, now.rejected, mend)
        finished = _counts(name, counted, b"c")
        for number in sorted(set(finished) | set(ages)):
            self._equal(
                name,
                "lengths",
                f"the files hold {{}} answers in bucket {number} of lengths, the forecast counts {{}}",
                ages[number],
                finished.get(number, 0),
                mend,
            )
        self._conserved(name, state)

    def _leases(self, name: str) -> None:
        """Reservations, ages and expiries against the leases, in one transaction."""
        with translated(), self._client.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.leases(name))
            pipe.hget(keys.budget(name), "reserved")
            pipe.hgetall(keys.ages(name))
            pipe.zrange(keys.expiry(name), 0, -1)
            leases, reserved, ages, expiry = pipe.execute()
        parsed: list[list[bytes]] = []
        for job, value in leases.items():
            if found := _LEASE.fullmatch(value):
                parsed.append(list(found.groups()))
            else:
                shown = job.decode("utf-8", "replace")
                self._say(name, "lease", f"the lease of {shown} cannot be read: {_MENDS}")
        held = sum(int(parts[0]) for parts in parsed)
        self._equal(
            name,
            "reserved",
            "the leases reserve {} tokens, the ledger says {}",
            held,
            damage.whole(reserved, keys.budget(name), "reserved"),
            _MENDS,
        )
        by_age = Counter(int(parts[1]) for parts in parsed)
        flying = _counts(name, ages, b"f")
        for number in sorted(set(by_age) | set(flying)):
            self._equal(
                name,
                "ages",
                f"{{}} jobs in flight are in bucket {number} of ages, the forecast counts {{}}",
                by_age[number],
                flying.get(number, 0),
                _RESET,
            )
        if set(expiry) != set(leases):
            self._say(
                name,
                "expiry",
                f"{len(leases):,} jobs are leased and {len(expiry):,} have an expiry, and they are not the same: "
                f"{_RESET}",
            )

    def _scan(self, index: Index) -> _Done:
        """Go through `done` and `dropped`, in parts, so that Redis serves others meanwhile."""
        found, rejected = _Done(), set[bytes]()
        for job, tokens in self._entries(keys.done(index.dataset)):
            key = digest_of_job(index.dataset, job)
            held = None if key is None else index.answers.get(key)
            if key is None or (held is None and key not in index.rejected):
                found.stray.add(0, f"{job} with {tokens:,} tokens")
                found.total += tokens
            elif held is None:
                rejected.add(key)
                if tokens:
                    found.differing.add(0, f"{job}: rejected in the files, {tokens:,} tokens in the ledger")
                    found.total += tokens
            elif held >= 0:  # A scan may bring an entry twice; those met are kept as negative numbers.
                index.answers[key] = -1 - held
                found.total += tokens
                if tokens != held >> 1:
                    found.differing.add(0, f"{job}: {held >> 1:,} tokens in the files, {tokens:,} in the ledger")
        for key, held in index.answers.items():
            if held >= 0:
                found.missing.add(0, job_of(index.dataset, key))
        for key in index.rejected - rejected:
            found.missing.add(0, job_of(index.dataset, key))
        for job in self._members(keys.dropped(index.dataset)):
            key = digest_of_job(index.dataset, job)
            if key is not None and (key in index.answers or key in index.rejected):
                found.dropped.add(0, job)
        return found

    def _entries(self, key: str) -> Iterator[tuple[str, int]]:
        cursor: int = 0
        while True:
            part: dict[bytes, bytes]
            with translated():
                cursor, part = self._client.hscan(key, cursor, count=_SCAN_AT_ONCE)
            for job, value in part.items():
                yield job.decode("utf-8", "replace"), damage.whole(value, key, job.decode("utf-8", "replace"))
            if not cursor:
                return

    def _members(self, key: str) -> Iterator[str]:
        cursor: int = 0
        while True:
            part: list[bytes]
            with translated():
                cursor, part = self._client.sscan(key, cursor, count=_SCAN_AT_ONCE)
            for job in part:
                yield job.decode("utf-8", "replace")
            if not cursor:
                return

    def _name_each(self, name: str, done: _Done) -> None:
        for kind, seen, what in (
            ("stray", done.stray, "the ledger has as done and no file has"),
            ("missing", done.missing, "the files have and the ledger has not"),
            ("differing", done.differing, "files and ledger tell apart"),
            ("dropped and done", done.dropped, "are dropped in the ledger and ended in the files"),
        ):
            if seen.count:
                self._say(name, kind, f"{seen.count:,} prompts {what}, the first is {seen.first[0][1]}: {_SEED}")

    def _conserved(self, name: str, state: RunState) -> None:
        """inputs = committed + rejected + dropped + queued + leased + unsent, as far as nothing is under way."""
        now = state.dataset(name)
        if now.inputs is None or now.queued or now.leased or now.intermediate:
            return
        ended = now.done - now.foreign + now.dropped
        if ended > now.inputs:
            # Each id is there once, as is checked elsewhere: so these are prompts that somebody took out since.
            self._findings.note(
                f"{name}: its files have {now.inputs:,} prompts now, and {ended:,} are answered, rejected or dropped: "
                f"rows were taken out of them"
            )
        elif state.complete(name) == "prompts" and ended != now.inputs:
            self._say(
                name,
                "conservation",
                f"all {now.inputs:,} prompts are said to have ended, and {ended:,} are answered, rejected or dropped: "
                f"run the job again",
            )

    def _equal(self, name: str, kind: str, sentence: str, first: int, second: int, mend: str) -> None:
        if first != second:
            self._say(name, kind, f"{sentence.format(f'{first:,}', f'{second:,}')}: {mend}")

    def _say(self, name: str, kind: str, sentence: str) -> None:
        self._findings.add(name, kind, sentence)


def _counts(name: str, fields: dict[bytes, bytes], kind: bytes) -> dict[int, int]:
    """The counts of one kind in a dataset's ages, by bucket.

    Raises:
        RedisDamaged: something else stands there.
    """
    key = keys.ages(name)
    named = {field.decode("utf-8", "replace"): value for field, value in fields.items() if field[:1] == kind}
    return {
        damage.whole(field[1:].encode(), key, field): damage.whole(value, key, field) for field, value in named.items()
    }


def _moved(before: DatasetState, now: DatasetState) -> bool:
    still = (before.spent, before.done, before.rejected, before.committed, before.waiting)
    return now.waiting > 0 or still != (now.spent, now.done, now.rejected, now.committed, now.waiting)
