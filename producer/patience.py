"""Waiting, and saying for what: nobody should have to guess why nothing happens.

A wait ends at once when the producer is told to stop, and when its upkeep has failed (the lock is lost).
"""

import logging
import threading
import time
from collections.abc import Callable

from budget.connections import RedisAway, RedisRefuses, is_passing
from budget.errors import Interrupted

log = logging.getLogger("tokenmill.producer")

SAY_AFTER_S = 2.0
SAY_AGAIN_S = 60.0


class Saying:
    """Logs what is waited for once it has lasted `SAY_AFTER_S`, and again each minute."""

    def __init__(self) -> None:
        self._sentence = ""
        self._since = 0.0
        self._next = 0.0
        self._said = False

    def hold(self, sentence: str) -> None:
        """It still lasts."""
        now = time.monotonic()
        if sentence != self._sentence:
            self._sentence, self._since, self._next = sentence, now, now + SAY_AFTER_S
        if now >= self._next:
            self._next = now + SAY_AGAIN_S
            self._said = True
            lasted = now - self._since
            log.warning("%s%s", sentence, f" ({lasted / 60:.0f} min so far)" if lasted >= SAY_AGAIN_S else "")

    def over(self, sentence: str) -> None:
        """It has ended; `sentence` is logged if anything had been."""
        if self._said:
            log.info("%s", sentence)
        self._sentence, self._said = "", False


class Patience:
    """The producer's way to wait: `stop` ends it, `check` raises what went wrong meanwhile."""

    def __init__(self, stop: threading.Event) -> None:
        self.check: Callable[[], None] = lambda: None
        self._stop = stop

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            Interrupted: the producer was told to stop.
        """
        if self._stop.wait(seconds):
            raise Interrupted("the producer was stopped: run it again to continue")
        self.check()

    def until(self, missing: Callable[[], str | None]) -> None:
        """Wait until `missing` answers None; it answers with what is waited for, as a sentence."""
        saying, pause = Saying(), 0.05
        while True:
            self.pause(0)
            try:
                sentence = missing()
            except (RedisAway, RedisRefuses) as error:
                sentence = passing(error)
            if sentence is None:
                saying.over("the wait is over")
                return
            saying.hold(sentence)
            self.pause(pause)
            pause = min(1.0, pause * 1.5)


def passing(error: RedisAway | RedisRefuses) -> str:
    """What to say about a Redis that is worth waiting for.

    Raises:
        RedisRefuses: the error itself, if waiting mends nothing.
    """
    if not is_passing(error):
        raise error
    return f"the producer waits: {error}"
