"""The numbers of a report, from the files alone, in one pass without the token ids.

Memory is four bytes an answer and a few examples of what was rejected, whatever the run's size.
"""

import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from results import jsonl
from results.folder import OutputFolder
from results.turns import Turn, TurnFile
from workers.contracts import RunConfig

EXAMPLES = 3
# A row of the file of rejected prompts may be megabytes long.
SHOWN_CHARACTERS = 400
_MOST_BINS = 2048
# Beyond this a time in seconds is no time of a run: the year 5138.
_LAST_TIME = 1e11


class Lengths:
    """How long answers are; `bucket` b holds lengths from 2**(b/2) on."""

    def __init__(self) -> None:
        self.all = array("q")
        self.whole: Counter[int] = Counter()
        self.cut: Counter[int] = Counter()

    def add(self, tokens: int, *, is_cut: bool) -> None:
        self.all.append(tokens)
        (self.cut if is_cut else self.whole)[bucket(tokens)] += 1

    def quantile(self, share: float) -> int:
        """The length that this share of the answers does not pass; 0 where there are none."""
        ordered = sorted(self.all)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0

    def rows(self) -> list[tuple[int, int, int, int]]:
        """(from, to, whole, cut) of each bucket between the shortest and the longest answer."""
        used = [*self.whole, *self.cut]
        if not used:
            return []
        return [(*edges(at), self.whole[at], self.cut[at]) for at in range(min(used), max(used) + 1) if _is_real(at)]


def bucket(tokens: int) -> int:
    at = int(2 * math.log2(tokens))
    # The logarithm's last digit must not put a length below its bucket's first.
    return at + 1 if tokens > edges(at)[1] else at


def edges(at: int) -> tuple[int, int]:
    """The shortest and the longest length in a bucket."""
    return math.ceil(2 ** (at / 2)), math.ceil(2 ** ((at + 1) / 2)) - 1


def _is_real(at: int) -> bool:
    """Below 4 tokens some buckets hold no whole number."""
    first, last = edges(at)
    return first <= last


class Timeline:
    """Tokens by when their answers came, in bins that widen as the run grows."""

    def __init__(self) -> None:
        self.width_s = 1
        self._bins: Counter[int] = Counter()

    def add(self, when: float, tokens: int) -> None:
        if not 0 < when < _LAST_TIME:
            return
        self._bins[int(when) // self.width_s] += tokens
        if len(self._bins) > _MOST_BINS:
            self.width_s *= 2
            halved: Counter[int] = Counter()
            for at, count in self._bins.items():
                halved[at // 2] += count
            self._bins = halved

    def rows(self, most: int) -> list[tuple[int, int, int]]:
        """(from, to, tokens) in at most so many bins of the same width, from the first answer to the last."""
        if not self._bins:
            return []
        first, last = min(self._bins), max(self._bins)
        step = -(-(last - first + 1) // most)
        tokens = [0] * -(-(last - first + 1) // step)
        for at, count in self._bins.items():
            tokens[(at - first) // step] += count
        start, width = first * self.width_s, step * self.width_s
        return [(start + index * width, start + (index + 1) * width, count) for index, count in enumerate(tokens)]


class Server(msgspec.Struct):
    answers: int = 0
    tokens: int = 0
    truncated: int = 0
    seconds: float = 0.0


class Example(msgspec.Struct, frozen=True):
    id: str
    detail: str
    row: str


class Rejects(msgspec.Struct):
    """The prompts that are rejected for one reason now, and the first of them."""

    count: int = 0
    examples: list[Example] = []


class DatasetFacts(msgspec.Struct, kw_only=True):
    """One dataset. `tokens` are all that count towards the cap, `beside` those in lines that are no answers of ours."""

    name: str
    cap: int | None
    prompts: int
    answers: int
    tokens: int
    beside: int
    truncated: int
    lengths: Lengths
    left_out: dict[str, int]
    rejects: dict[str, Rejects]
    dropped: int

    @property
    def rejected(self) -> int:
        return sum(rejects.count for rejects in self.rejects.values())


class Facts(msgspec.Struct, kw_only=True):
    """All that a report shows."""

    run: str
    simulated: bool
    datasets: list[DatasetFacts]
    servers: dict[str, Server]
    models: dict[tuple[str, str], int]
    timeline: Timeline
    tokenizer: str
    made_with: dict[str, str]


def gather(config: RunConfig, *, caps: Mapping[str, int | None] | None = None, simulated: bool = False) -> Facts:
    """Read the run's files.

    Args:
        caps: the caps as they are now; the run file's where they are not known.

    Raises:
        BadFolder, DiskFault, NotWritable: the files cannot be read.
    """
    folder = OutputFolder(config.output)
    state = folder.state()
    facts = Facts(
        run=config.name,
        simulated=simulated,
        datasets=[],
        servers={},
        models={},
        timeline=Timeline(),
        tokenizer=config.tokenizer,
        made_with={} if state is None else _texts(state.facts.get("tokenizer", "{}")),
    )
    for dataset in config.datasets:
        cap = dataset.max_tokens if caps is None else caps.get(dataset.name, dataset.max_tokens)
        facts.datasets.append(_dataset(folder, dataset.name, cap, facts))
    return facts


def _dataset(folder: OutputFolder, name: str, cap: int | None, facts: Facts) -> DatasetFacts:
    source = TurnFile(folder.answers(name), name, Turn)
    lengths, prompts, tokens, truncated = Lengths(), 0, 0, 0
    for turns in source.jobs():
        prompts += 1
        for turn in turns:
            is_cut = turn.finish_reason == "length"
            count = turn.completion_tokens
            tokens += count
            truncated += is_cut
            lengths.add(count, is_cut=is_cut)
            facts.timeline.add(turn.created_at, count)
            made_by = (turn.model, turn.weight_version)
            facts.models[made_by] = facts.models.get(made_by, 0) + 1
            server = facts.servers.setdefault(turn.server, Server())
            server.answers += 1
            server.tokens += count
            server.truncated += is_cut
            server.seconds += max(0.0, turn.latency_s)
    return DatasetFacts(
        name=name,
        cap=cap,
        prompts=prompts,
        answers=len(lengths.all),
        tokens=tokens + source.tokens_beside,
        beside=source.tokens_beside,
        truncated=truncated,
        lengths=lengths,
        left_out=dict(source.left_out.most_common()),
        rejects=_rejects(folder.rejected(name), source),
        dropped=sum(1 for _, _, raw in jsonl.numbered(folder.dropped(name)) if raw.strip()),
    )


def _rejects(path: Path, source: TurnFile[Turn]) -> dict[str, Rejects]:
    """The last line of an id counts, and an answer outweighs it. Read twice, so that only examples are kept."""
    now: dict[str, int] = {}
    for number, line in enumerate(jsonl.rejected_lines(path)):
        now.pop(line.id, None)
        if not line.retried and not source.knows(line.id):
            now[line.id] = number
    valid = set(now.values())
    found: dict[str, Rejects] = {}
    number = -1
    for _, _, raw in jsonl.numbered(path):
        line = jsonl.parse_rejected(raw)
        if isinstance(line, str):
            continue
        number += 1
        if number not in valid:
            continue
        rejects = found.setdefault(line.reason, Rejects())
        rejects.count += 1
        if len(rejects.examples) < EXAMPLES:
            plain = jsonl.loads(raw)
            assert not isinstance(plain, str)
            rejects.examples.append(
                Example(shown(line.id), shown(plain.get("detail", "")), shown(plain.get("row"), as_json=True))
            )
    return dict(sorted(found.items(), key=lambda item: -item[1].count))


def shown(value: Any, *, as_json: bool = False) -> str:
    """A value's beginning, for people."""
    # Half surrogate pairs in it are made visible where it gets into the page.
    text = json.dumps(value, ensure_ascii=False) if as_json else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _texts(data: str) -> dict[str, str]:
    """The texts in a fact that the run's parts noted; none where it is not as they write it."""
    plain = jsonl.loads(data.encode("utf-8", "replace"))
    return {} if isinstance(plain, str) else {name: value for name, value in plain.items() if isinstance(value, str)}
