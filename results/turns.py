"""Reading a result file as whole jobs, each with all its turns, every line accounted for.

What comes out of here is what exports and reports are made of, so it holds what `results.index` counts
as answers and nothing else; each line that is not given out is counted under a reason. Memory is one
job and a few bytes for each id, whatever the file's size; the file may grow meanwhile.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from results import disk, jsonl
from results.index import digest
from workers import contracts

# Why a line is not given out.
BROKEN = "unreadable"
TORN = "torn_end"
TOKENLESS = "no_tokens"
FOREIGN = "earlier_pipeline"
MALFORMED = "malformed"
STRANGER = "wrong_dataset"
UNFINISHED = "not_finished"
MISCOUNTED = "ids_differ"
DUPLICATE = "duplicate"
INCOMPLETE = "turns_missing"


class Turn(msgspec.Struct, kw_only=True):
    """What is read of every line: a few fields, so that a report need not hold the ids."""

    id: str
    turn: int
    turns: int
    completion_tokens: int
    dataset: str = ""
    prompt_tokens: int = 0
    finish_reason: Any = ""
    model: str = ""
    weight_version: str = ""
    server: str = ""
    worker: str = ""
    latency_s: float = 0.0
    created_at: float = 0.0

    def problem(self, dataset: str) -> str | None:
        """Why this line is no answer of the dataset; None where it is one."""
        return STRANGER if self.dataset not in ("", dataset) else None


class Answer(Turn, kw_only=True):
    """A line with all that training needs. The ids stay as JSON until somebody wants the numbers."""

    input_ids: msgspec.Raw
    output_ids: msgspec.Raw
    text: str
    messages: list[dict[str, Any]]
    sampling: dict[str, Any]
    tools: str = contracts.NO_TOOLS

    @property
    def asked(self) -> "Ids":
        return Ids.trusted(bytes(self.input_ids))

    @property
    def said(self) -> "Ids":
        return Ids.trusted(bytes(self.output_ids))

    def problem(self, dataset: str) -> str | None:
        if found := super().problem(dataset):
            return found
        if self.finish_reason not in ("stop", "length"):
            return UNFINISHED
        asked, said = Ids.read(bytes(self.input_ids)), Ids.read(bytes(self.output_ids))
        if asked is None or said is None:
            return MALFORMED
        self.input_ids, self.output_ids = msgspec.Raw(asked.data), msgspec.Raw(said.data)
        return MISCOUNTED if said.count != self.completion_tokens else None


_DIGITS = b"0123456789"
_AS_ZERO = bytes.maketrans(_DIGITS, b"0" * 10)
# A number of nine digits is below the highest; JSON has no leading zeros.
_TEN_DIGITS = b"0" * 10
_HIGHEST = 2**31
_numbers = msgspec.json.Decoder(list[int]).decode


class Ids(msgspec.Struct, frozen=True):
    """Token ids as compact JSON and how many they are.

    Most exports only copy them: an answer of 4,000 tokens is checked so in a fifth of the time that parsing takes.
    """

    data: bytes
    count: int

    @classmethod
    def read(cls, raw: bytes) -> "Ids | None":
        """Checked: whole numbers from 0 to 2**31 - 1, nothing else; None where they are not."""
        rest = raw.translate(None, _DIGITS)
        if rest == b"[" + b"," * (len(rest) - 2) + b"]" and _TEN_DIGITS not in raw.translate(_AS_ZERO):
            return cls(raw, 0 if raw == b"[]" else len(rest) - 1)
        try:
            numbers = _numbers(raw)
        except msgspec.DecodeError:
            return None
        if any(not 0 <= number < _HIGHEST for number in numbers):
            return None
        return cls.of(numbers)

    @classmethod
    def trusted(cls, data: bytes) -> "Ids":
        """From what `read` has checked."""
        return cls(data, 0 if data == b"[]" else data.count(b",") + 1)

    @classmethod
    def of(cls, numbers: list[int]) -> "Ids":
        return cls(msgspec.json.encode(numbers), len(numbers))

    def numbers(self) -> list[int]:
        return _numbers(self.data)

    def __add__(self, other: "Ids") -> "Ids":
        if not self.count or not other.count:
            return self if self.count else other
        return Ids(self.data[:-1] + b"," + other.data[1:], self.count + other.count)


T = TypeVar("T", bound=Turn)


class TurnFile(Generic[T]):
    """One dataset's answers, read once. The counts are whole when `jobs` has ended.

    `lines` are all that are not blank: those given out and those in `left_out`. `mended` lines held half
    a surrogate pair, which neither UTF-8 nor Arrow can hold. `tokens_beside` are tokens that count
    towards the budget in lines that are not given out.
    """

    def __init__(self, path: Path, dataset: str, kind: type[T], *, hashed: bool = False) -> None:
        self.path = path
        self.dataset = dataset
        self.lines = 0
        self.size = 0
        self.left_out: Counter[str] = Counter()
        self.mended = 0
        self.tokens_beside = 0
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self._sum = hashlib.sha256() if hashed else None
        self._seen: set[bytes] = set()

    @property
    def sha256(self) -> str:
        """Of what was read of it."""
        return "" if self._sum is None else self._sum.hexdigest()

    def knows(self, prompt_id: str) -> bool:
        """Whether a prompt's answer was given out."""
        return digest(self.dataset, prompt_id) in self._seen

    def jobs(self) -> Iterator[list[T]]:
        """Each job's turns, in their order.

        Raises:
            DiskFault, NotWritable: the file cannot be read. One that is not there holds nothing.
        """
        group: list[T] = []
        for turn in self._turns():
            if isinstance(turn, str):
                self.left_out[turn] += 1
                continue
            if group and not _follows(group, turn):
                self._incomplete(group)
                group = []
            group.append(turn)
            if len(group) < turn.turns:
                continue
            whole, group = group, []
            key = digest(self.dataset, turn.id)
            if whole[0].turn > 1:
                self._incomplete(whole)
            elif key in self._seen:
                self.left_out[DUPLICATE] += len(whole)
            else:
                self._seen.add(key)
                yield whole
        self._incomplete(group, at_end=True)

    def _incomplete(self, group: list[T], *, at_end: bool = False) -> None:
        if group:
            self.left_out[INCOMPLETE] += len(group)
        if not at_end:
            self.tokens_beside += sum(turn.completion_tokens for turn in group)

    def _turns(self) -> Iterator["T | str"]:
        """Each line that is not blank: its turn, or the reason why it is none."""
        unreadable: bytes | None = None
        for raw in self._raw():
            turn = self._read(raw)
            if turn == "blank":
                continue
            if unreadable is not None:
                yield BROKEN
            unreadable = raw if turn == BROKEN else None
            self.lines += 1
            if turn != BROKEN:
                yield turn
        if unreadable is not None:
            yield TORN if jsonl.is_torn(unreadable) else BROKEN

    def _raw(self) -> Iterator[bytes]:
        """The lines that the file had when it was opened: what is being appended now may be half a line."""
        with disk.translated(self.path):
            try:
                file = self.path.open("rb", buffering=1 << 20)
            except FileNotFoundError:
                return
            with file:
                end = file.seek(0, 2)
                file.seek(0)
                for offset, raw in jsonl.lines(file):
                    if offset >= end:
                        return
                    line = raw[: end - offset]
                    self.size += len(line)
                    if self._sum is not None:
                        self._sum.update(line)
                    yield line

    def _read(self, raw: bytes) -> "T | str":
        try:
            turn = self._decode(raw)
        except (msgspec.DecodeError, RecursionError):
            turn = self._read_slowly(raw)
            if isinstance(turn, str):
                return turn
        if not 0 < turn.completion_tokens <= jsonl.MOST_TOKENS:
            return TOKENLESS
        if turn.turns < 1 or turn.turn < 0:
            self.tokens_beside += turn.completion_tokens
            return FOREIGN
        found = turn.problem(self.dataset)
        if found is not None:
            self.tokens_beside += turn.completion_tokens
        return found or turn

    def _read_slowly(self, raw: bytes) -> "T | str":
        """What msgspec refuses: another pipeline's line, half a surrogate pair, a line that is none."""
        line = jsonl.parse(raw)
        if isinstance(line, str):
            return {"broken": BROKEN, "tokenless": TOKENLESS}.get(line, line)
        if not line.is_own:
            self.tokens_beside += line.completion_tokens
            return FOREIGN
        plain = jsonl.loads(raw)
        assert not isinstance(plain, str)
        own = str(line.id).encode("utf-8", "backslashreplace").decode()
        try:
            turn = self._decode(msgspec.json.encode({**_whole(plain), "id": own}))
        except (msgspec.DecodeError, RecursionError, TypeError):
            self.tokens_beside += line.completion_tokens
            return MALFORMED
        self.mended += 1
        return turn


def _follows(group: list[T], turn: T) -> bool:
    last = group[-1]
    return turn.id == last.id and turn.turns == last.turns and turn.turn == last.turn + 1


def _whole(value: Any) -> Any:
    """The same value with U+FFFD in the place of each half surrogate pair."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_whole(key): _whole(held) for key, held in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_whole(held) for held in value]  # pyright: ignore[reportUnknownVariableType]
    return value
