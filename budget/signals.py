"""The signals that ask a part of a run to end, and how every part catches them."""

import signal
from collections.abc import Callable
from typing import Any

# SIGHUP is what a part gets when the terminal or the ssh connection that it was started from is closed.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def wanted() -> list[signal.Signals]:
    """Those to be caught: not SIGHUP under `nohup`, whose user wants the part to outlive the terminal."""
    return [number for number in ENDING if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]


def catch(handler: Callable[[int, Any], None]) -> None:
    """Have `handler` called for each of them; from the main thread."""
    for number in wanted():
        signal.signal(number, handler)
