"""Finds servers that take requests and answer none: a frozen scheduler, a dead detokenizer. /health may be 200.

Only answers that stop tell of it. So where requests are in flight and none has been answered for long, the
server is asked for one token. If it answers, the answers are just long; if not, it is at fault, and its
flights are given up.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from budget.errors import Problem
from workers.complaints import Complaints
from workers.limits import Loads
from workers.server import Server
from workers.servers import Servers
from workers.sglang import Broken

LONGEST_LOOK_S = 1.0


class Stalls:
    """Watches one worker's servers.

    Args:
        stall_s: how long a server with requests in flight may be quiet until it is asked, in seconds.
        give_up: called with a server that answers nothing, after it was taken out of use.
    """

    def __init__(self, servers: Servers, stall_s: float, give_up: Callable[[Server], None]) -> None:
        self._servers = servers
        self._stall_s = stall_s
        self._give_up = give_up
        self._complain = Complaints()
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def watch_for_ever(self) -> None:
        try:
            while True:
                await asyncio.sleep(min(LONGEST_LOOK_S, self._stall_s / 4))
                for server in self._servers.all:
                    if self._is_quiet(server) and server.url not in self._asking:
                        task = self._asking[server.url] = asyncio.create_task(self._ask(server))
                        task.add_done_callback(lambda _, url=server.url: self._asking.pop(url))
        finally:
            for task in self._asking.values():
                task.cancel()

    def _is_quiet(self, server: Server) -> bool:
        return server.up and server.in_flight > 0 and time.monotonic() - server.heard_at > self._stall_s

    async def _ask(self, server: Server) -> None:
        loads: Loads | None = None
        with contextlib.suppress(Broken):
            loads = await self._servers.measure(server)
        self._say(server, loads)
        if loads is not None and loads.most and loads.running >= loads.most and loads.throughput > 0:
            server.hear()  # full and at work: a request for one token would only wait
            return
        try:
            problem = await self._servers.probe(server, {})
        except Problem:
            problem = None  # it answers, if not what we like; the next real request will say so
        if problem is None:
            server.hear()
        elif self._is_quiet(server):
            self._servers.fault(server, f"it accepts requests and answers none: {problem}")
            self._give_up(server)

    def _say(self, server: Server, loads: Loads | None) -> None:
        """A request may take long, but nobody should have to guess why nothing comes back."""
        reports = "it does not say what it is doing"
        if loads is not None:
            reports = f"it reports {loads.running} running and {loads.waiting} waiting"
        self._complain(
            f"server {server.url} has answered none of the {server.in_flight} requests in flight for "
            f"{time.monotonic() - server.heard_at:.0f} s ({reports}): asking it for one token"
        )
