"""Room for a worker's name on RQ's list: whose entry may be taken off it, and who is told to choose another."""

import os
import socket
from typing import Any

import redis

from budget import keys, process, sweep
from budget.errors import Refused
from budget.ledger import Ledger
from workers.contracts import RunConfig


class NameTaken(Refused):
    """A worker of this name is listed, and may be alive."""

    def __init__(self, name: str, host: str = "") -> None:
        where = f" on {host}" if host else ""
        super().__init__(
            f"a worker named {name} is at work{where} already: give this one another --name, or none; one that was "
            f"killed on another machine is listed for a minute or so"
        )


def make_room(connection: "redis.Redis", name: str, config: RunConfig) -> None:
    """Take off the list whom this name belonged to: a worker that died on this host, its jobs brought back first,
    or a start of our own in which Redis went away.

    Raises:
        NameTaken: whoever has the name may be alive.
    """
    client: Any = connection
    entry: dict[bytes, bytes] = client.hgetall(keys.rq_worker(name))
    if not entry or b"death" in entry:
        return
    datasets = [dataset.name for dataset in config.datasets]
    identity = entry.get(sweep.PROCESS_FIELD.encode(), b"").decode("utf-8", "replace")
    if process.is_dead(identity):
        sweep.sweep(Ledger(connection), datasets, config.timing.lease_ms)
    elif identity == process.identity() or (not identity and _is_own(entry)):
        sweep.unlist(connection, name, datasets)
    else:
        raise NameTaken(name, entry.get(b"hostname", b"").decode("utf-8", "replace"))


def _is_own(entry: dict[bytes, bytes]) -> bool:
    """Whether RQ's fields name this very process, of which ours were not written any more."""
    return (entry.get(b"pid"), entry.get(b"hostname")) == (str(os.getpid()).encode(), socket.gethostname().encode())
