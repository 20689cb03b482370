"""What a contender's processes cost, by /proc: CPU with its dead children's, and memory, sampled while it runs."""

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.2
# The memory of a process takes the kernel a millisecond to add up, so it is looked at more rarely.
_MEMORY_EVERY = 3
# What a process has that was looked at while it ended.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def _fields(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def family(roots: Iterable[int]) -> set[int]:
    """These processes and all their descendants, as far as they live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(*_GONE):
                children.setdefault(int(_fields(entry.name)[1]), []).append(int(entry.name))
    found: set[int] = set()
    left = [pid for pid in roots if Path(f"/proc/{pid}").exists()]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of these processes and of the children that they have buried."""
    total = 0
    for pid in pids:
        with contextlib.suppress(*_GONE):
            total += sum(map(int, _fields(pid)[11:15]))
    return total / _TICKS


def buried_cpu_s() -> float:
    """The same of all children that this process has waited for, and theirs: exact where sampling is not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory_mb(pids: Iterable[int]) -> float:
    """Resident memory; a page that several share counts once (PSS), or forks would seem to cost what they do not."""
    kilobytes = 0
    for pid in pids:
        with contextlib.suppress(*_GONE):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1024


class Watch(threading.Thread):
    """Samples a contender: the CPU that it had used when `has_begun` came true, and the most memory it had."""

    def __init__(self, roots: Callable[[], list[int]], has_begun: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self._roots = roots
        self._has_begun = has_begun
        self._over = threading.Event()
        self.cpu_before_s: float | None = None
        self.peak_mb = 0.0

    def run(self) -> None:
        turn = 0
        used = 0.0
        while not self._over.wait(_EVERY_S):
            pids = family(self._roots())
            if self.cpu_before_s is None:
                # What was used until the sample before the first request: all of it was for the start.
                if self._has_begun():
                    self.cpu_before_s = used
                else:
                    used = cpu_s(pids)
            if turn % _MEMORY_EVERY == 0:
                self.peak_mb = max(self.peak_mb, memory_mb(pids))
            turn += 1

    def stop(self) -> None:
        self._over.set()
        self.join()
