"""What `run` shows while it goes on, on a terminal or in a log, also when nobody reads it any more."""

import os
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live

from tokenmill import screen, view
from tokenmill.state import Status

LINE_EVERY_S = 5.0
LIVE_EVERY_S = 0.5


class Steady(Console):
    """A console that falls silent when its reader has left (`| head`, a closed terminal); the run goes on."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            self._fall_silent()

    def on_broken_pipe(self) -> None:
        self._fall_silent()

    def _fall_silent(self) -> None:
        self.quiet = True
        # What is still in the stream's buffer is written at the end of the process, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Progress:
    """A live table in a terminal; in a log, a line every few seconds. A context manager giving `show()`.

    Args:
        read: how the run is now; None where that cannot be told.
        quiet: show nothing that is not on a terminal.
    """

    def __init__(self, console: Console, read: Callable[[], "Status | None"], *, quiet: bool) -> None:
        self._console = console
        self._read = read
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next = 0.0

    def __enter__(self) -> Callable[[], None]:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (LIVE_EVERY_S if self._live is not None else LINE_EVERY_S)
        now = self._read()
        if now is None:
            self._next = time.monotonic() + LIVE_EVERY_S
        elif self._live is not None:
            self._live.update(screen.live(now, self._console, own_parts=True), refresh=True)
        elif not self._quiet:
            self._console.print(view.log_lines(now), highlight=False, markup=False, soft_wrap=True)
