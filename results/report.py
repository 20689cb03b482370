"""What a verification found: differences, each one sentence with its mend, and what could not be compared."""

from collections import Counter

import msgspec

# So many sentences of one kind about one dataset; of the rest, how many there are.
_EACH = 5


class DatasetCounts(msgspec.Struct, kw_only=True):
    """One dataset's numbers, derived from the files alone."""

    name: str
    lines: int = 0
    answers: int = 0
    tokens: int = 0
    truncated: int = 0
    foreign: int = 0
    rejected: int = 0
    dropped: int = 0


class Report(msgspec.Struct, kw_only=True):
    """The outcome: `findings` are differences, `notes` say what was not compared and why."""

    findings: list[str] = []
    notes: list[str] = []
    datasets: list[DatasetCounts] = []

    @property
    def is_good(self) -> bool:
        return not self.findings


class Findings:
    """Collects sentences without letting one broken file fill the memory or the screen."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._said: list[str] = []
        self._count: Counter[tuple[str, str]] = Counter()

    def add(self, dataset: str, kind: str, sentence: str) -> None:
        self._count[dataset, kind] += 1
        if self._count[dataset, kind] <= _EACH:
            self._said.append(f"{dataset}: {sentence}")

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def all(self) -> list[str]:
        rest = [
            f"{dataset}: {count - _EACH:,} more like it ({kind})"
            for (dataset, kind), count in self._count.items()
            if count > _EACH
        ]
        return self._said + rest
