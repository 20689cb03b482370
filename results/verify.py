"""Verification: every count derived anew from the files, and compared with itself and with the ledger.

It shares with the collector only what decides which lines count (`results.index`); all else, it counts
itself. It may run beside a live job: what can be compared only when nothing moves is then left out, and
the report says so.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import redis

from results import jsonl
from results.folder import OutputFolder
from results.index import Index, Seen, digest_of_job
from results.jsonl import Line
from results.ledgercheck import LedgerCheck
from results.report import DatasetCounts, Findings, Report
from workers.contracts import RunConfig

_AGAIN = "run the job again"
_decode_ids = msgspec.json.Decoder(list[int]).decode


def verify(config: RunConfig, connection: "redis.Redis | None" = None) -> Report:
    """Check the files, and the ledger where there is one.

    Raises:
        RedisAway, RedisRefuses: the ledger cannot be read.
        BadFolder, DiskFault, NotWritable: the files cannot be read.
    """
    findings = Findings()
    folder = OutputFolder(config.output)
    if not folder.path.exists():
        findings.note(f"there is no folder {folder.path} yet: nothing was collected")
    state = folder.state()
    names = [dataset.name for dataset in config.datasets]
    ledger = None
    if connection is not None:
        ledger = LedgerCheck(connection, names, findings, None if state is None else state.id)
    counts: list[DatasetCounts] = []
    for name in names:
        is_live = folder.is_locked()
        index = _Check(folder, name, findings, is_live).run()
        jobs = _dropped(folder, index, findings, is_live)
        counts.append(
            DatasetCounts(
                name=name,
                lines=index.lines,
                answers=len(index.answers),
                tokens=index.tokens,
                truncated=index.truncated,
                foreign=index.foreign,
                rejected=len(index.rejected),
                dropped=jobs,
            )
        )
        if ledger is not None:
            ledger.compare(index)
    return Report(findings=findings.all(), notes=findings.notes, datasets=counts)


def sentences(report: Report) -> list[str]:
    """The report for people: a line for each dataset, then what differs, then what was not compared."""
    said = [
        f"{counts.name}: {counts.answers:,} answers with {counts.tokens:,} tokens, {counts.truncated:,} of them "
        f"truncated, {counts.rejected:,} prompts rejected, {counts.dropped:,} dropped"
        for counts in report.datasets
    ]
    said += [f"difference: {finding}" for finding in report.findings]
    said += [f"note: {note}" for note in report.notes]
    count = len(report.findings)
    said.append("all counts agree" if not count else f"{count:,} differences" if count > 1 else "1 difference")
    return said


class _Check:
    """One dataset's files."""

    def __init__(self, folder: OutputFolder, name: str, findings: Findings, is_live: bool) -> None:
        self._path = folder.answers(name)
        self._rejected = folder.rejected(name)
        self._quarantine = folder.quarantine(name)
        self._name = name
        self._findings = findings
        self._is_live = is_live

    def run(self) -> Index:
        index = Index(self._name)
        index.read_answers(self._path, look=self._look)
        index.read_rejected(self._rejected)
        self._seen("unreadable", index.broken, f"is not JSON ({self._path}): repair or delete the line, then {_AGAIN}")
        self._seen(
            "no tokens",
            index.tokenless,
            f"has no completion_tokens of 1 or more, so it is not counted ({self._path}): delete the line, "
            f"then {_AGAIN}",
        )
        for number, own in index.duplicates.first:
            self._say("duplicate", f"{own!r} stands twice, again at line {number} ({self._path}): delete that line")
        self._rest("duplicate", index.duplicates)
        for partial in index.partial.values():
            self._say(
                "turns missing",
                f"{partial.id!r} at line {partial.number} has {len(partial.seen)} of {partial.turns} turns: delete its "
                f"lines from {self._path} and {_AGAIN}",
            )
        self._seen(
            "unreadable reject", index.unreadable_rejects, f"is no rejected prompt ({self._rejected}): delete the line"
        )
        for tail, path in ((index.tail, self._path), (index.rejected_tail, self._rejected)):
            if tail.cut is None and not tail.unended:
                continue
            if self._is_live:
                self._findings.note(f"{path}: its end was not compared: still running")
            else:
                self._say(
                    "torn end",
                    f"{path} ends with {tail.why or 'a line without its newline'} (line {tail.number or 'last'}): "
                    f"{_AGAIN}, it mends the end first",
                )
        if index.foreign:
            self._findings.note(f"{self._name}: {index.foreign:,} lines of an earlier pipeline count by their tokens")
        if self._quarantine.exists():
            self._findings.note(f"{self._name}: damaged results are kept in {self._quarantine}")
        return index

    def _look(self, line: Line, number: int) -> None:
        if not line.is_own:
            return
        if line.finish_reason not in ("stop", "length"):
            self._say(
                "finish reason",
                f"{line.id!r} at line {number} ended by {line.finish_reason!r}, not stop or length: delete the line "
                f"and {_AGAIN}",
            )
        if line.dataset != self._name:
            self._say(
                "wrong dataset",
                f"{line.id!r} at line {number} is an answer of {line.dataset!r}: move the line to that dataset's file, "
                f"then {_AGAIN}",
            )
        ids = _count(bytes(line.output_ids))
        if ids != line.completion_tokens:
            held = "no list of output_ids" if ids < 0 else f"{ids:,} output_ids"
            self._say(
                "output_ids",
                f"{line.id!r} at line {number} has {held} and completion_tokens {line.completion_tokens:,}: delete the "
                f"line and {_AGAIN}",
            )

    def _seen(self, kind: str, seen: Seen, sentence: str) -> None:
        for number, _ in seen.first:
            self._say(kind, f"line {number} {sentence}")
        self._rest(kind, seen)

    def _rest(self, kind: str, seen: Seen) -> None:
        rest = seen.count - len(seen.first)
        if rest > 0:
            self._say(kind, f"{rest:,} more lines like it ({kind})")

    def _say(self, kind: str, sentence: str) -> None:
        self._findings.add(self._name, kind, sentence)


def _count(raw: bytes) -> int:
    """How many ids a list holds as it stands in a line that is JSON; -1 if it is no list of whole numbers.

    Of a list as we write it the commas alone are left without its digits; parsing it takes five times as long.
    """
    rest = raw.translate(None, b"0123456789")
    if len(raw) > 2 and rest == b"[" + b"," * (len(rest) - 2) + b"]":
        return len(rest) - 1
    try:
        return len(_decode_ids(raw)) if raw else 0
    except msgspec.DecodeError:
        return -1


def _dropped(folder: OutputFolder, index: Index, findings: Findings, is_live: bool) -> int:
    """Compare the snapshot of the dropped prompts with the answers; returns how many it holds."""
    path = folder.dropped(index.dataset)
    count, both = 0, Seen()
    unreadable = Seen()
    for number, job in _jobs(path):
        count += 1
        key = digest_of_job(index.dataset, job)
        if key is None:
            unreadable.add(number)
        elif key in index.answers or key in index.rejected:
            both.add(number, job)
    if unreadable.count:
        findings.add(
            index.dataset,
            "unreadable drop",
            f"{unreadable.count:,} lines of {path} name no job of it, the first is line {unreadable.first[0][0]}: "
            f"{_AGAIN}",
        )
    if both.count:
        answers = folder.answers(index.dataset)
        is_old = answers.exists() and answers.stat().st_mtime_ns > path.stat().st_mtime_ns
        if is_live or is_old:
            findings.note(f"{path} is older than the answers, so it was not compared")
        else:
            findings.add(
                index.dataset,
                "dropped and done",
                f"{both.count:,} prompts of {path} are answered or rejected too, the first is {both.first[0][1]} at "
                f"line {both.first[0][0]}: {_AGAIN}",
            )
    return count


def _jobs(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, job) of each line of dropped.jsonl; "" where it names none."""
    for number, _, raw in jsonl.numbered(path):
        plain = jsonl.loads(raw)
        job = "" if isinstance(plain, str) else plain.get("job")
        yield number, job if isinstance(job, str) else ""
