"""Faults on demand: what a real server, its GPU and its network do to a client now and then.

Which request is hit is a function of (seed, the fault, the prompt, how often that prompt has come), not
of the order in which requests arrive, so that a test sees the same faults at any concurrency.
"""

import hashlib
import math
from typing import Literal

import msgspec

Mode = Literal[
    "abort",
    "crash",
    "cut_body",
    "dead",
    "drip",
    "error",
    "hang",
    "missing_ids",
    "nan",
    "refuse",
    "reset_after_headers",
    "reset_before_headers",
    "slow_start",
    "unavailable",
    "wrong_ids",
]
SERVER_WIDE: frozenset[Mode] = frozenset(("dead", "refuse", "slow_start"))


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault; the first that matches a request is the one that it gets.

    Before the answer is made: `reset_before_headers` (RST), `hang`, `unavailable` (503, the full
    queue's words), `error` (500), `crash` (the request kills the server, as a token outside the
    vocabulary does). After it was made, tokens spent: `reset_after_headers`, `cut_body` (closed half
    way), `drip` (a byte every `seconds`), `abort` (200, half the answer, finish_reason abort), `nan`
    (matched "NaN happened"), `wrong_ids` (one id less than completion_tokens), `missing_ids`.

    For the whole server, for `seconds` or until the faults are replaced: `refuse` (nobody listens, and
    open connections are reset), `dead` (nothing is generated or answered, /health is 200 all the same),
    `slow_start` (503 everywhere, like a server that is loading).

    `probability` is per attempt; `count` is how many requests it hits at most; `after` is how many
    matching ones it lets pass first; `token` and `dataset` restrict it. `seconds` are of the wall clock;
    0 is forever for `hang` and the server-wide ones.
    """

    mode: Mode
    probability: float = 1.0
    count: int | None = None
    after: int = 0
    token: int | None = None
    dataset: str | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be in [0, 1], got {self.probability:g}")
        if not (self.seconds >= 0 and math.isfinite(self.seconds)):
            raise ValueError(f"seconds must be a finite number of 0 or more, got {self.seconds:g}")


class FaultBox:
    """The faults in force, and how often each has hit."""

    def __init__(self, faults: list[Fault], seed: int) -> None:
        self._seed = seed
        self._faults: list[Fault] = []
        self._matched: list[int] = []
        self.hits: list[int] = []
        self._attempts: dict[bytes, int] = {}
        self.replace(faults)

    @property
    def faults(self) -> list[Fault]:
        return list(self._faults)

    def replace(self, faults: list[Fault]) -> None:
        """Sets the faults anew, with their counts at zero."""
        self._faults = list(faults)
        self._matched = [0] * len(faults)
        self.hits = [0] * len(faults)
        self._attempts.clear()

    def server_wide(self) -> list[Fault]:
        """Those that hit everybody; the server puts them in force when they are set."""
        return [fault for fault in self._faults if fault.mode in SERVER_WIDE]

    def draw(self, input_ids: list[int], dataset: str, prompt: bytes) -> Fault | None:
        """The fault that this attempt meets; `prompt` is a digest that identifies the prompt."""
        if not self._faults:
            return None
        attempt = self._attempts.get(prompt, 0)
        self._attempts[prompt] = attempt + 1
        for index, fault in enumerate(self._faults):
            if fault.mode in SERVER_WIDE or (fault.dataset is not None and fault.dataset != dataset):
                continue
            if fault.token is not None and fault.token not in input_ids:
                continue
            if fault.count is not None and self.hits[index] >= fault.count:
                continue
            if fault.probability < 1 and self._uniform(index, prompt, attempt) >= fault.probability:
                continue
            self._matched[index] += 1
            if self._matched[index] <= fault.after:
                continue
            self.hits[index] += 1
            return fault
        return None

    def _uniform(self, index: int, prompt: bytes, attempt: int) -> float:
        digest = hashlib.blake2b(prompt, digest_size=8, salt=f"{self._seed}:{index}:{attempt}".encode()[:16]).digest()
        return int.from_bytes(digest, "big") / 2**64
