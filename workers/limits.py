"""How many requests of one worker a server has at a time: as many as it can run, and hardly one that waits.

A request that waits in SGLang's queue is claimed and leased for nothing: it cannot go to another server, and
dies with that one. Numbers in, numbers out; no clock and no network in here.
"""

import msgspec

# Where a server tells no loads, its first requests; it is found out by their answers whether more bring more.
FIRST_UNTOLD = 16
# Where it tells no limit of its own, its first requests; doubled while nothing waits.
FIRST_UNBOUNDED = 64
# A queue was seen: from then on the limit grows by so much of itself, not twofold.
STEP = 1 / 8
# More in flight must bring at least this share of what would be proportional, or it only lengthens the answers.
WORTHWHILE = 0.3
HOLD = 10


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """What /v1/loads says, over all ranks. `most` can run at a time, None where it does not say.

    `throughput` is in tokens per second over all that runs.
    """

    running: int = 0
    waiting: int = 0
    most: int | None = None
    throughput: float = 0.0


class Limit:
    """The limit of one worker at one server.

    Args:
        most: it never exceeds this, whatever the server takes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._value = float(min(most, FIRST_UNTOLD))
        self._told = False
        self._congested = False
        self._climb = Climb()

    @property
    def now(self) -> int:
        return max(1, min(self._most, round(self._value)))

    def begin(self, loads: Loads | None) -> None:
        """The server has come up, and this is its load before anything of this worker's."""
        self._told, self._congested = loads is not None, False
        self._climb = Climb()
        if loads is None:
            first = FIRST_UNTOLD
        elif loads.most is None:
            first = FIRST_UNBOUNDED
        else:
            first = loads.most - loads.running - loads.waiting
        self._value = float(max(1, min(self._most, first)))

    def told(self, loads: Loads, in_flight: int, *, used: bool) -> None:
        """A look at the server's load.

        Args:
            in_flight: this worker's own requests there at that moment.
            used: whether all of the limit has been in use since the last look.
        """
        self._told = True
        if loads.waiting > 0:
            self._congested = True
            # Of what waits, this worker takes back its share; others do the same.
            share = min(1.0, in_flight / (loads.running + loads.waiting))
            self._set(min(self._value, in_flight - loads.waiting * share))
        elif used:
            step = max(1.0, self._value * STEP) if self._congested else self._value
            if loads.most is not None:
                # What others do not use, and not what seems free: all may have ended there a moment ago.
                others = max(0, loads.running - in_flight)
                step = min(step, max(0.0, loads.most - others - self._value))
            self._set(self._value + step)

    def answered(self, tokens: int, now: float, *, used: bool) -> None:
        """An answer has come; only where the server tells no loads does it say anything of the limit."""
        if not self._told:
            self._set(self._climb.answered(tokens, now, self._value, used=used))

    def refused(self, in_flight: int) -> None:
        """It said that it is full: half of what it has is enough for now."""
        self._congested = True
        self._set(min(self._value, max(1, in_flight) / 2))

    def _set(self, value: float) -> None:
        self._value = max(1.0, min(float(self._most), value))


class Climb:
    """Finds the limit of a server that tells no loads: up while that brings tokens, else back, and again later.

    It counts the tokens of as many answers as were in flight: one generation. The first generation after a
    change still belongs to what was before, and is passed over.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._answers = 0
        self._tokens = 0
        self._skip = False
        self._before: tuple[float, float] | None = None
        self._hold = 0
        self._cautious = False

    def answered(self, tokens: int, now: float, level: float, *, used: bool) -> float:
        """Count an answer at `now` seconds; returns the limit from now on, given the one so far."""
        if self._began is None or not used:
            self._began, self._answers, self._tokens = now, 0, 0
            return level
        self._answers += 1
        self._tokens += tokens
        if self._answers < level or now <= self._began:
            return level
        rate = self._tokens / (now - self._began)
        self._began, self._answers, self._tokens = now, 0, 0
        if self._skip:
            self._skip = False
            return level
        return self._judge(rate, level)

    def _judge(self, rate: float, level: float) -> float:
        if self._before is not None:
            lower, its_rate = self._before
            self._before = None
            if rate / its_rate - 1 < WORTHWHILE * (level / lower - 1):
                self._hold, self._cautious, self._skip = HOLD, True, True
                return lower
        if self._hold > 0:
            self._hold -= 1
            return level
        self._before, self._skip = (level, rate), True
        return level * (1 + STEP) + 1 if self._cautious else level * 2
