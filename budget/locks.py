"""Locks in Redis with an owner's name: one producer for each dataset, one collector for each run.

A lock expires with a lease. Its value says who holds it, so that a second owner is told whom it meets,
and a dead owner on the caller's own host is taken over at once.
"""

import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import redis
from redis.exceptions import WatchError

from budget import process
from budget.connections import translated
from budget.errors import Refused


class Held(Refused):
    """Another process holds the lock."""


class LockLost(Refused):
    """The lock ran out (this process was frozen, or Redis was emptied) and another process has it now."""


class _Owner(msgspec.Struct, frozen=True):
    token: str
    host: str
    pid: int
    process: str


def _decode(value: bytes | None) -> _Owner | None:
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=_Owner)
    except msgspec.DecodeError:
        return None


def is_held(connection: "redis.Redis", key: str) -> bool:
    """Whether somebody has the lock who is not known to be dead."""
    client: Any = connection
    with translated():
        owner = _decode(client.get(key))
    return owner is not None and not process.is_dead(owner.process)


class Lock:
    """One lock; `what` says in an error what it guards, e.g. "the collector of run kimi"."""

    def __init__(self, connection: "redis.Redis", key: str, lease_ms: int, what: str) -> None:
        self._connection = connection
        self._key = key
        self._lease_ms = lease_ms
        self._what = what
        self._owner = _Owner(secrets.token_hex(8), socket.gethostname(), os.getpid(), process.identity())

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            Held: a live process has it, or one on another host that has not run out yet.
        """
        with translated():
            self._swap(takeable=lambda owner: owner is None or process.is_dead(owner.process))

    def renew(self) -> None:
        """Prolong it; takes it again where it was lost and nobody has it.

        Raises:
            LockLost: somebody else has it by now.
        """
        try:
            with translated():
                self._swap(takeable=lambda owner: owner is None)
        except Held as error:
            raise LockLost(f"{self._what} was taken over while this process was away: {error}") from error

    def release(self) -> None:
        """Give it up, if it is still this process' own."""
        client: Any = self._connection
        with translated(), client.pipeline() as pipe:
            try:
                pipe.watch(self._key)
                if _decode(pipe.get(self._key)) == self._owner:
                    pipe.multi()
                    pipe.delete(self._key)
                    pipe.execute()
            except WatchError:
                return

    def _swap(self, takeable: Callable[[_Owner | None], bool]) -> None:
        client: Any = self._connection
        while True:
            with client.pipeline() as pipe:
                try:
                    pipe.watch(self._key)
                    owner = _decode(pipe.get(self._key))
                    if owner != self._owner and not takeable(owner):
                        left = max(0, pipe.pttl(self._key)) / 1000
                        raise Held(
                            f"{self._what} is already running: process {owner.pid if owner else '?'} on "
                            f"{owner.host if owner else '?'}; if that one is gone, its lock ends in {left:.0f} s"
                        )
                    pipe.multi()
                    pipe.set(self._key, msgspec.json.encode(self._owner), px=self._lease_ms)
                    pipe.execute()
                    return
                except WatchError:
                    continue
