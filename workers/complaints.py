"""Says what is in the way: at once, and then each minute while it lasts."""

import logging
import time

log = logging.getLogger("tokenmill.worker")

MINUTE_S = 60.0


class Complaints:
    """Called with what is in the way."""

    def __init__(self) -> None:
        self._said = -MINUTE_S

    def __call__(self, sentence: str) -> None:
        if time.monotonic() - self._said > MINUTE_S:
            self._said = time.monotonic()
            log.warning("%s", sentence)
