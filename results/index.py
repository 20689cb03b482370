"""What a dataset's files hold: the answered jobs with their tokens, and the rejected ones.

The files are the truth that the ledger is seeded from, so this is where it is decided what counts:
a job once, with all its turns; a line of an earlier pipeline by its tokens. Memory is one small entry
a job, whatever the answers' lengths.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from results import jsonl
from results.jsonl import Line, Tick
from workers.contracts import job_id

_HEX = 24
_EXAMPLES = 3

Look = Callable[[Line, int], None]


def digest(dataset: str, prompt_id: str) -> bytes:
    """A prompt's job in 12 bytes: what stands in its job's id as hex."""
    return bytes.fromhex(job_id(dataset, prompt_id)[-_HEX:])


def digest_of_job(dataset: str, job: str) -> bytes | None:
    """The same from the job's id; None if it is no job of that dataset."""
    name, _, text = job.rpartition("-")
    if name != dataset or len(text) != _HEX:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def job_of(dataset: str, key: bytes) -> str:
    return f"{dataset}-{key.hex()}"


class Seen(msgspec.Struct):
    """How often something was met, and where first: (line number, what)."""

    count: int = 0
    first: list[tuple[int, str]] = []

    def add(self, number: int, what: str = "", times: int = 1) -> None:
        self.count += times
        if len(self.first) < _EXAMPLES:
            self.first.append((number, what))


class _Group(msgspec.Struct):
    """Adjacent lines of one job. `parts`: (turn, tokens, cut)."""

    key: bytes
    id: str
    number: int
    offset: int
    turns: int
    parts: list[tuple[int, int, bool]]

    @property
    def is_whole(self) -> bool:
        return len(self.parts) == self.turns and self.starts

    @property
    def starts(self) -> bool:
        return self.parts[0][0] in (0, 1)


class Partial(msgspec.Struct):
    """A job of which some turns are missing, or stand apart from the others."""

    id: str
    number: int
    turns: int
    seen: set[int]


class Tail(msgspec.Struct, frozen=True):
    """What must be done to the file's end before anything is appended: cut it at `cut`, or end its last line."""

    cut: int | None = None
    number: int = 0
    why: str = ""
    unended: bool = False


class Index:
    """One dataset's jobs as its files have them; `answers` holds tokens x 2 + cut by the job's digest."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.answers: dict[bytes, int] = {}
        self.rejected: set[bytes] = set()
        self.tokens = 0
        self.truncated = 0
        self.lines = 0
        self.foreign = 0
        self.broken = Seen()
        self.tokenless = Seen()
        self.duplicates = Seen()
        self.partial: dict[bytes, Partial] = {}
        self.unreadable_rejects = Seen()
        self.tail = Tail()
        self.rejected_tail = Tail()
        self._aliases: dict[bytes, bytes] = {}
        self._group: _Group | None = None

    def tokens_of(self, key: bytes) -> int | None:
        """What the job's answer cost; None where it has none."""
        value = self.answers.get(key)
        return None if value is None else value >> 1

    def entries(self) -> Iterator[tuple[str, int, bool]]:
        """All jobs as `verbs.seed` takes them: (job, tokens, cut), 0 tokens for a rejected one."""
        for key, value in self.answers.items():
            yield job_of(self.dataset, key), value >> 1, bool(value & 1)
        for key in self.rejected:
            yield job_of(self.dataset, key), 0, False

    def answer(self, key: bytes, tokens: int, cut: bool) -> None:
        """Count a job's answer, which it has none of yet. An id with an answer is not rejected."""
        self.answers[key] = tokens << 1 | cut
        self.tokens += tokens
        self.truncated += cut
        self.rejected.discard(key)

    def reject(self, key: bytes) -> None:
        if key not in self.answers:
            self.rejected.add(key)

    def read_answers(self, path: Path, *, tick: Tick | None = None, look: Look | None = None) -> None:
        """Count all of raw_responses.jsonl; `look` sees each line that counts, `tick` is called now and then.

        Raises:
            DiskFault, NotWritable: it cannot be read. A file that is not there holds nothing.
        """
        last: tuple[int, int, bytes, bool] | None = None
        for number, offset, raw in jsonl.numbered(path, tick):
            line = jsonl.parse(raw)
            if line == "blank":
                continue
            if last is not None and last[3]:
                self.broken.add(last[1])
            last = (offset, number, raw, line == "broken")
            if line == "tokenless":
                self.tokenless.add(number)
            elif isinstance(line, Line):
                self.lines += 1
                if look is not None:
                    look(line, number)
                if line.is_own:
                    self._own(line, number, offset)
                else:
                    self._foreign(line, raw)
        self.tail = self._judge(last, self._group)
        if self.tail.cut is None or self._group is None or self.tail.cut > self._group.offset:
            self._close()
        if last is not None and last[3] and self.tail.cut is None:
            self.broken.add(last[1])
        self._group = None

    def read_rejected(self, path: Path, *, tick: Tick | None = None) -> None:
        """Read rejected.jsonl, after the answers: the last line of an id counts.

        Raises:
            DiskFault, NotWritable: it cannot be read.
        """
        last: tuple[int, int, bytes, bool] | None = None
        for number, offset, raw in jsonl.numbered(path, tick):
            line = jsonl.parse_rejected(raw)
            if line == "blank":
                continue
            if last is not None and last[3]:
                self.unreadable_rejects.add(last[1])
            last = (offset, number, raw, isinstance(line, str))
            if not isinstance(line, str):
                self.note_rejected(line)
        self.rejected_tail = self._judge(last, None)
        if last is not None and last[3] and self.rejected_tail.cut is None:
            self.unreadable_rejects.add(last[1])

    def note_rejected(self, line: jsonl.RejectedLine) -> bytes:
        """What a line of rejected.jsonl changes; returns the job that it is about."""
        own = digest(self.dataset, line.id)
        key = (digest_of_job(self.dataset, line.job) if line.job else None) or self._aliases.get(own, own)
        if key != own:
            self._aliases[own] = key
        if line.retried:
            self.rejected.discard(key)
        else:
            self.reject(key)
        return key

    def _own(self, line: Line, number: int, offset: int) -> None:
        own = str(line.id)
        key = digest(self.dataset, own)
        part = (line.turn, line.completion_tokens, line.is_cut)
        group = self._group
        if (
            group is not None
            and group.key == key
            and group.turns == line.turns
            and len(group.parts) < group.turns
            and line.turn == group.parts[-1][0] + 1
        ):
            group.parts.append(part)
        else:
            self._close()
            self._group = group = _Group(key, own, number, offset, line.turns, [part])
        if group.is_whole:
            self._close()

    def _foreign(self, line: Line, raw: bytes) -> None:
        """Lines of an earlier pipeline with one id are its samples or turns: each counts by its tokens."""
        self._close()
        self.foreign += 1
        key = digest(self.dataset, jsonl.own_id(line, raw))
        known = self.answers.get(key)
        if known is None:
            self.answer(key, line.completion_tokens, line.is_cut)
        else:
            self.answers[key] = known + (line.completion_tokens << 1)
            self.tokens += line.completion_tokens

    def _close(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        tokens = sum(part[1] for part in group.parts)
        cut = any(part[2] for part in group.parts)
        partial = self.partial.get(group.key)
        if partial is None and group.key in self.answers:
            self.duplicates.add(group.number, group.id, len(group.parts))
        elif partial is None and group.is_whole:
            self.answer(group.key, tokens, cut)
        elif partial is None:
            self.partial[group.key] = Partial(group.id, group.number, group.turns, {part[0] for part in group.parts})
            self.answer(group.key, tokens, cut)
        else:
            self._complete(group, partial)

    def _complete(self, group: _Group, partial: Partial) -> None:
        fresh = [part for part in group.parts if part[0] not in partial.seen]
        if len(fresh) < len(group.parts):
            self.duplicates.add(group.number, group.id, len(group.parts) - len(fresh))
        partial.seen.update(part[0] for part in fresh)
        added = sum(part[1] for part in fresh)
        value = self.answers[group.key] + (added << 1)
        cut = any(part[2] for part in fresh) and not value & 1
        self.answers[group.key] = value | cut
        self.tokens += added
        self.truncated += cut
        if len(partial.seen) >= partial.turns:
            del self.partial[group.key]

    def _judge(self, last: tuple[int, int, bytes, bool] | None, group: _Group | None) -> Tail:
        """What is to be done to the end of a file whose last line is `last` (offset, number, line, unreadable)."""
        if last is None:
            return Tail()
        offset, number, raw, unreadable = last
        torn = unreadable and jsonl.is_torn(raw)
        if group is not None and group.starts and group.key not in self.partial:
            return Tail(
                group.offset,
                group.number,
                f"the answer of {group.id!r}, of which only {len(group.parts)} of {group.turns} turns are there",
            )
        if torn:
            return Tail(offset, number, f"a torn line of {len(raw)} bytes")
        return Tail(unended=not raw.endswith(b"\n"))
