"""One dataset's files and what of them the ledger must still be told.

Takes entries of the results stream, each exactly once into the right file: a job that the file has is
not written again, and where the ledger may believe something else about it, it is to be seeded anew.
"""

import base64
import logging
from collections.abc import Iterator

from budget import failpoints
from results import entries
from results.appender import Appender
from results.entries import Answer, Fields, PiecesOf, Rejection
from results.errors import Damaged
from results.folder import OutputFolder
from results.index import Index, digest_of_job, job_of
from results.jsonl import Tick
from workers.encodings import encode_line

log = logging.getLogger("tokenmill.collector")


class Sink:
    """The files of one dataset.

    `unsettled` holds jobs whose entry in the ledger may not be the file's; `forgotten` those that the
    ledger was just told to forget, and may have been told too late.
    """

    def __init__(self, folder: OutputFolder, dataset: str, pieces_of: PiecesOf) -> None:
        self.dataset = dataset
        self.index = Index(dataset)
        self.unsettled: set[bytes] = set()
        self.forgotten: set[bytes] = set()
        self.foreign: set[str] = set()
        self._folder = folder
        self._pieces_of = pieces_of
        self._answers = Appender(folder.answers(dataset))
        self._rejected = Appender(folder.rejected(dataset))
        self._quarantine = Appender(folder.quarantine(dataset))
        self._pending: dict[Appender, list[bytes]] = {}
        self._damaged: set[bytes] = set()
        self._aside: set[str] = set()

    def open(self, tick: Tick) -> None:
        """Read what is there, mend a torn end, and open the files that exist for appending.

        Raises:
            NotWritable, DiskFault: they cannot be read or written.
        """
        self.index.read_answers(self._answers.path, tick=tick)
        self.index.read_rejected(self._rejected.path, tick=tick)
        for cut in (self._answers.open(self.index.tail), self._reopen_rejected()):
            if cut:
                log.warning("%s: %s", self.dataset, cut)
        self._report()

    def take(self, entry: str, fields: Fields, *, mending: bool) -> None:
        """Take in one entry; nothing is written before `write`.

        Args:
            mending: the ledger was just seeded. If that touched this entry's job, it may have gone over what
                the entry says, so the ledger is told once more.
        """
        try:
            meaning = entries.understand(self.dataset, fields, self._pieces_of)
        except Damaged as damage:
            self._set_aside(entry, fields, damage)
            return
        key = meaning.key
        if mending and (key in self.index.answers or key in self.index.rejected or key in self.forgotten):
            self.unsettled.add(key)
        if isinstance(meaning, Answer):
            self._take_answer(meaning)
        else:
            self._take_rejection(meaning)

    @property
    def is_ahead(self) -> bool:
        """Whether it has taken in what is not written yet."""
        return bool(self._pending)

    def write(self) -> None:
        """Write what was taken in and make it safe. Only then may the entries go from the stream.

        Raises:
            FileChanged, NotWritable, DiskFault: nothing of it counts; the entries must stay.
        """
        pending, self._pending = self._pending, {}
        if failpoints.ACTIVE and pending:
            failpoints.hit("before_sink_write")
        for appender, parts in pending.items():
            appender.append(b"".join(parts))
        if failpoints.ACTIVE and pending:
            failpoints.hit("after_write_before_fsync")
        for appender in pending:
            appender.sync()

    def settled(self) -> Iterator[tuple[bytes, int | None]]:
        """What the ledger is to be told about the unsettled jobs: their tokens, 0 for rejected, None for neither."""
        for key in self.unsettled:
            tokens = self.index.tokens_of(key)
            yield key, (0 if key in self.index.rejected else None) if tokens is None else tokens

    def close(self) -> None:
        for appender in (self._answers, self._rejected, self._quarantine):
            appender.close()

    def _reopen_rejected(self) -> str | None:
        if self._rejected.path.exists():
            return self._rejected.open(self.index.rejected_tail)
        return None

    def _take_answer(self, answer: Answer) -> None:
        known = self.index.tokens_of(answer.key)
        if known is None:
            self.index.answer(answer.key, answer.tokens, answer.cut)
            self._add(self._answers, answer.data)
        elif known != answer.tokens:
            self.unsettled.add(answer.key)

    def _take_rejection(self, rejection: Rejection) -> None:
        if rejection.key in self.index.answers:
            self.unsettled.add(rejection.key)
            return
        if (rejection.key in self.index.rejected) != (rejection.kind == "retried"):
            return
        self.index.note_rejected(rejection.line)
        self._add(self._rejected, rejection.data)

    def _set_aside(self, entry: str, fields: Fields, damage: Damaged) -> None:
        """Keep a damaged entry for people to look at, and have its prompt generated again, once."""
        if entry in self._aside:
            return
        self._aside.add(entry)
        plain = {name.decode("ascii", "replace"): base64.b64encode(value).decode() for name, value in fields.items()}
        self._add(self._quarantine, encode_line({"entry": entry, "damage": str(damage), "fields": plain}))
        job = fields.get(b"job", b"").decode("utf-8", "replace")
        key = digest_of_job(self.dataset, job)
        log.error(
            "%s: a result of %s is damaged (%s); kept in %s, %s",
            self.dataset,
            job or "no job",
            damage,
            self._quarantine.path,
            "it belongs to no prompt of this run" if key is None else "the prompt will be generated again",
        )
        if key is None:
            # Whoever queued it, the ledger ended it; the files never will.
            self.foreign.add(job)
            return
        self.unsettled.add(key)
        if key in self._damaged and key not in self.index.answers and key not in self.index.rejected:
            name = job_of(self.dataset, key)
            line = {"id": name, "dataset": self.dataset, "reason": "damaged", "detail": str(damage)}
            self._take_rejection(
                entries.rejection(self.dataset, name, key, {**line, "attempts": len(self._damaged), "row": None})
            )
        self._damaged.add(key)

    def _add(self, appender: Appender, data: bytes) -> None:
        self._pending.setdefault(appender, []).append(data)

    def _report(self) -> None:
        index = self.index
        for seen, what in (
            (index.broken, "cannot be read"),
            (index.tokenless, "have no completion_tokens"),
        ):
            if seen.count:
                log.warning(
                    "%s: %s lines of %s %s and are not counted; the first is line %s",
                    self.dataset,
                    f"{seen.count:,}",
                    self._answers.path,
                    what,
                    seen.first[0][0],
                )
        if index.duplicates.count:
            number, own = index.duplicates.first[0]
            log.warning(
                "%s: %s lines of %s are duplicates and are not counted; the first is %r at line %s",
                self.dataset,
                f"{index.duplicates.count:,}",
                self._answers.path,
                own,
                number,
            )
        if index.unreadable_rejects.count:
            log.warning(
                "%s: %s lines of %s cannot be read; the first is line %s",
                self.dataset,
                f"{index.unreadable_rejects.count:,}",
                self._rejected.path,
                index.unreadable_rejects.first[0][0],
            )
