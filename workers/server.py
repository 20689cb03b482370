"""One SGLang server as one worker sees it: up or why not, how busy, how fast, and how much more it takes."""

import asyncio
import random
import time

from budget.fleet import Wish
from workers.limits import Limit, Loads
from workers.sglang import Model

# Tokens per second of one request until the first answer has been timed; only the forecast's start depends on it.
FIRST_SPEED = 30.0
# What an answer still counts in the speed when one more has been timed: about the last thirty decide.
RECENT = 0.97
LONGEST_PAUSE_S = 10.0
# A server that is full again and again, with no answer in between, is no longer only full.
REFUSALS = 3


class Server:
    """One server. `speed` is in tokens per second of one request.

    `wish` is what people want of it; `version` counts how often it came up or went down; `told` is whether
    its fault stands on the board; `tried` is set once it has been tried since it went down; `suspect` is set
    while a job that may end servers is in flight there, of this worker or another. `sent` counts prompts,
    `answered` accepted answers. `pause_s` is how long it was left alone after its last fault; it grows with
    each fault that no accepted answer came between. `heard_at` is when the last answer of any kind came or, with
    nothing in flight before, the oldest request went out (monotonic seconds); `made_at` when it last said that it
    makes tokens.
    """

    def __init__(self, url: str, most: int = 64) -> None:
        self.url = url
        self.wish: Wish = "use"
        self.up = False
        self.reason = "not asked yet"
        self.version = 0
        self.told = False
        self.tried = asyncio.Event()
        self.suspect = False
        self.in_flight = 0
        self.sent = 0
        self.answered = 0
        self.pause_s = 0.0
        self.speed = FIRST_SPEED
        self.tokens = 0
        self.model: Model | None = None
        self.loads: Loads | None = None
        self.limit = Limit(most)
        self.heard_at = 0.0
        self.made_at = 0.0
        self._most_in_flight = 0
        self._recent_tokens = 0.0
        self._recent_s = 0.0
        self._refusals = 0
        self._again_at = 0.0

    # -- up and down

    @property
    def in_use(self) -> bool:
        """Requests may be sent to it."""
        return self.up and self.wish == "use"

    def come_up(self) -> None:
        if not self.up:
            self.up, self.reason, self.told = True, "", False
            self.version += 1
            self._again_at = 0.0
            self.limit.begin(self.loads)
            self.hear()
        self.tried.set()

    def go_down(self, reason: str) -> None:
        self.up, self.reason = False, reason
        self.version += 1
        self.tried.clear()

    # -- how much it takes

    @property
    def room(self) -> int:
        """How many requests more it is to be sent now."""
        if not self.in_use or time.monotonic() < self._again_at:
            return 0
        return max(0, self.limit.now - self.in_flight)

    @property
    def pace(self) -> float:
        """Tokens per second of one request now: what the server says, since slow answers come late, else `speed`."""
        if self.loads is not None and self.loads.running and self.loads.throughput > 0:
            return self.loads.throughput / self.loads.running
        return self.speed

    def depart(self) -> None:
        """A request is sent."""
        if not self.in_flight:
            self.hear()
        self.in_flight += 1
        self.sent += 1
        self._most_in_flight = max(self._most_in_flight, self.in_flight)

    def land(self) -> None:
        """It is no longer in flight."""
        self.in_flight -= 1

    def look(self, loads: Loads | None) -> None:
        """Take in what the server says of its load; None where it says nothing."""
        self.loads = loads
        if loads is not None:
            if loads.running and loads.throughput > 0:
                self.made_at = time.monotonic()
            self.limit.told(loads, self.in_flight, used=self._most_in_flight >= self.limit.now)
        self._most_in_flight = self.in_flight

    def hear(self) -> None:
        """It has answered something, or is sent the first request after none."""
        self.heard_at = time.monotonic()

    def finished(self, tokens: int, seconds: float) -> None:
        """Learn the speed from a completion; recent answers count most.

        Tokens over seconds, not the mean of the answers' own speeds: what is in flight at any moment is
        mostly slow and long requests, and it is their age that the speed has to tell.
        """
        self.hear()
        self._refusals = 0
        self.pause_s = 0.0
        self.answered += 1
        self.tokens += tokens
        self.limit.answered(tokens, self.heard_at, used=self.in_flight >= self.limit.now)
        if seconds <= 0 or tokens <= 0:
            return
        self._recent_tokens = self._recent_tokens * RECENT + tokens
        self._recent_s = self._recent_s * RECENT + seconds
        self.speed = self._recent_tokens / self._recent_s

    def left_alone(self, first_s: float) -> float:
        """How long it is to be left alone now, after one more fault or failed try, in seconds."""
        longest = min(LONGEST_PAUSE_S, 10 * first_s)
        self.pause_s = min(max(2 * self.pause_s, first_s), longest)
        return self.pause_s

    def refused(self, first_s: float) -> bool:
        """It says that it is full, and is left alone for a while, longer each time. Whether it is more than full."""
        if not self.in_flight and not (self.loads and self.loads.running):
            return True  # of what?
        if time.monotonic() >= self._again_at:  # else it is the same moment's refusal of another request
            self._refusals += 1
            self._again_at = time.monotonic() + self.left_alone(first_s) * random.uniform(0.5, 1.5)
            self.limit.refused(self.in_flight)
        return self._refusals >= REFUSALS
