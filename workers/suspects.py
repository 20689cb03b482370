"""Where jobs go that may end servers: to one that has no other such job in flight, of any worker.

One prompt that ends whatever runs it must not end two servers at a time, and its server's death must be
charged to it alone.
"""

import random
import time

from budget.fleet import Board
from workers.server import Server
from workers.servers import Servers

# After no server could take a suspect, none is asked for so long, in seconds.
REST_S = 1.0


class Suspects:
    """The suspects of one worker: at most one at a time, as the ledger gives them out."""

    def __init__(self, servers: Servers, board: Board | None) -> None:
        self._servers = servers
        self._board = board
        self._held: dict[str, Server] = {}
        self._claimed: set[str] = set()
        self._rest_until = 0.0

    @property
    def are_unwelcome(self) -> bool:
        """No suspect is to be claimed now."""
        return bool(self._claimed) or time.monotonic() < self._rest_until

    def claimed(self, job: str) -> None:
        """It is this worker's from now on."""
        self._claimed.add(job)

    def settled(self, job: str) -> None:
        """It is this worker's no longer."""
        self._claimed.discard(job)

    async def seat(self, job: str) -> Server | None:
        """A server for this suspect, which has no other; None where there is none now."""
        for server in self._servers.by_preference():
            if server in self._held.values():
                continue
            if self._board is None or await self._board.seat_suspect(server.url):
                self._held[job] = server
                server.suspect = True
                return server
        self._rest_until = time.monotonic() + REST_S * random.uniform(0.7, 1.3)
        return None

    async def unseat(self, job: str) -> None:
        """It is no longer in flight."""
        server = self._held.pop(job, None)
        if server is not None:
            server.suspect = False
            if self._board is not None:
                await self._board.unseat_suspect(server.url)

    async def keep(self) -> None:
        """Prolong the seats; with each beat."""
        if self._board is not None:
            for server in list(self._held.values()):
                await self._board.keep_suspect(server.url)

    async def is_there_one_beside(self, job: str, server: Server) -> bool:
        """Whether a suspect other than this job is in flight on the server: what ends it is that one's doing."""
        if job in self._held:
            return False
        return server.suspect or (self._board is not None and await self._board.has_suspect(server.url))
