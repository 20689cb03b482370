"""What the server did: counts for everybody, and one JSON line per event for those who count tokens.

A line is written with one system call before the client can see the answer, so that a log read after a
SIGKILL still knows every token that was generated.
"""

import os
import time

import msgspec

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Counts(msgspec.Struct, kw_only=True):
    """Of one dataset, or of all. `tokens` are those of ended requests, wasted ones included."""

    received: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    tokens: int = 0
    finished_tokens: int = 0


class Journal:
    """Events: `received`, then exactly one of `finished`, `aborted` and `failed` per request."""

    def __init__(self, path: str | None) -> None:
        self._file = None if path is None else os.open(path, _FLAGS, 0o644)
        self.total = Counts()
        self.datasets: dict[str, Counts] = {}
        self.peak_in_flight = 0

    @property
    def in_flight(self) -> int:
        total = self.total
        return total.received - total.finished - total.aborted - total.failed

    def received(self, rid: str, dataset: str, prompt_tokens: int, length: int) -> None:
        for counts in (self.total, self._of(dataset)):
            counts.received += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self._write(
            {"event": "received", "rid": rid, "dataset": dataset, "prompt_tokens": prompt_tokens, "length": length}
        )

    def finished(self, rid: str, dataset: str, tokens: int) -> None:
        for counts in (self.total, self._of(dataset)):
            counts.finished += 1
            counts.tokens += tokens
            counts.finished_tokens += tokens
        self._write({"event": "finished", "rid": rid, "dataset": dataset, "tokens": tokens})

    def aborted(self, rid: str, dataset: str, tokens: int) -> None:
        for counts in (self.total, self._of(dataset)):
            counts.aborted += 1
            counts.tokens += tokens
        self._write({"event": "aborted", "rid": rid, "dataset": dataset, "tokens": tokens})

    def failed(self, rid: str, dataset: str, tokens: int, reason: str) -> None:
        for counts in (self.total, self._of(dataset)):
            counts.failed += 1
            counts.tokens += tokens
        self._write({"event": "failed", "rid": rid, "dataset": dataset, "tokens": tokens, "reason": reason})

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _of(self, dataset: str) -> Counts:
        counts = self.datasets.get(dataset)
        if counts is None:
            counts = self.datasets[dataset] = Counts()
        return counts

    def _write(self, event: dict[str, object]) -> None:
        if self._file is not None:
            event["at"] = time.time()
            os.write(self._file, msgspec.json.encode(event) + b"\n")
