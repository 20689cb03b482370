"""Who a process is, so that another one on the same host can tell that it is dead.

A pid alone is not enough (pids are used again), nor a host's name (containers share it): an identity
is the kernel's boot, the pid namespace, the pid and its start time. Where the kernel does not say
these (no /proc), nobody is ever declared dead, and leases run out instead.
"""

import os
import socket
from functools import cache
from pathlib import Path


@cache
def _here() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Clock ticks from boot to the process' start; None if there is no such process, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def identity(pid: int | None = None) -> str:
    """The identity of a process (this one by default); it holds no space."""
    pid = pid or os.getpid()
    return f"{_here()}/{pid}/{_start_time(pid) or ''}" if _here() else f"{socket.gethostname()}/{pid}"


def is_dead(other: str) -> bool:
    """True only if that process was one of this very host and is certainly gone."""
    place, _, rest = other.rpartition("/")
    place, _, pid = place.rpartition("/")
    if not _here() or place != _here() or not pid.isdigit():
        return False
    return _start_time(int(pid)) != rest
