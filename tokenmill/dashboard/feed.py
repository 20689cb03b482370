"""Looks at the run again and again, and tells every page that listens: one look, however many pages are open."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator

import msgspec

from tokenmill.dashboard.history import History, Point
from tokenmill.dashboard.source import Details, Look, Source

log = logging.getLogger("tokenmill.dashboard")

PERIOD_S = 2.0
# A page that hears nothing for longer than this (three times as long) takes the connection for dead.
QUIET_S = 10.0


class Feed:
    """The latest look and the history, as server-sent events.

    Args:
        can_act: whether a token is set, so that the page offers its actions.
    """

    def __init__(self, source: Source, *, can_act: bool, period_s: float = PERIOD_S) -> None:
        self.source = source
        self.latest = Look(None, "looking at the run for the first time", Details({}, []))
        self.history = History()
        self.closed = False
        self._can_act = can_act
        self._period_s = period_s
        self._version = 0
        self._changed = asyncio.Event()
        self._at_once = asyncio.Event()
        self._point: Point | None = None

    async def go_on(self) -> None:
        """Look for ever."""
        while True:
            self._at_once.clear()
            try:
                self._take(await asyncio.to_thread(self.source.look))
            except Exception as fault:  # a fault of ours in one look must not end all later ones
                log.exception("the dashboard could not look at the run")
                self._take(Look(self.latest.status, f"a fault in the dashboard itself: {fault!r}", self.latest.details))
            try:
                async with asyncio.timeout(self._period_s):
                    await self._at_once.wait()
            except TimeoutError:
                continue

    def hurry(self) -> None:
        """Something was changed: look now."""
        self._at_once.set()

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self._changed.set()

    def _take(self, look: Look) -> None:
        self.latest = look
        if look.status is not None and look.news is None:
            self._point = Point(
                time=round(time.time(), 1),
                tokens_per_s=round(sum(dataset.tokens_per_s for dataset in look.status.datasets), 1),
                in_flight=sum(worker.in_flight for worker in look.status.workers),
                slots=sum(worker.slots or 0 for worker in look.status.workers),
            )
            self.history.add(self._point)
        else:
            self._point = None
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def events(self) -> AsyncGenerator[bytes]:
        """One page's stream: the history, then each look; details only when they are new to it."""
        yield b"retry: 1000\n\n" + _event("history", {"points": self.history.points})
        told: Details | None = None
        version = -1
        while not self.closed:
            changed = self._changed
            if version != self._version:
                version = self._version
                look = self.latest
                if look.details != told:
                    told = look.details
                    yield _event("details", told)
                yield _event("state", self._state(look))
            try:
                async with asyncio.timeout(QUIET_S):
                    await changed.wait()
            except TimeoutError:
                yield _event("quiet", {})

    def _state(self, look: Look) -> dict[str, object]:
        return {
            "status": look.status,
            "news": look.news,
            "point": self._point,
            "can_act": self._can_act,
            "time": time.time(),
        }


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
