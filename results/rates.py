"""Tokens per second of each dataset over the last minute, for whoever shows the run."""

from collections import deque
from collections.abc import Mapping

WINDOW_S = 60.0


class Rates:
    """Fed with the tokens collected so far, now and then; remembers one window of them."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, dict[str, int]]] = deque()

    def note(self, now: float, tokens: Mapping[str, int]) -> dict[str, float]:
        """Tokens per second of each dataset since the oldest moment of the window; 0 at the first call."""
        self._past.append((now, dict(tokens)))
        while len(self._past) > 2 and self._past[1][0] <= now - WINDOW_S:
            self._past.popleft()
        since, then = self._past[0]
        seconds = now - since
        return {
            name: round((count - then.get(name, count)) / seconds, 1) if seconds > 0 else 0.0
            for name, count in tokens.items()
        }
