"""Where the dashboard looks: the run's Redis while there is one, else its files."""

import time
from collections.abc import Mapping

import msgspec
import redis

from budget import ages, connections, environment
from budget.errors import Problem
from budget.forecast import STARTS
from tokenmill import embedded, status, watching
from tokenmill.dashboard.rejects import Rejected, Rejects
from tokenmill.runfile import RunFile
from tokenmill.state import Status

# Reading the files takes longer the more there is in them.
FILES_EVERY_S = 30.0
DETAILS_EVERY_S = 10.0
# A histogram of fewer columns looks like a chart of something else.
FEWEST = 12


class Lengths(msgspec.Struct, frozen=True):
    """A dataset's finished answers by length: how many from each of `starts` (tokens) to the next one, or to `end`."""

    starts: list[int]
    counts: list[int]
    end: int


class Details(msgspec.Struct, frozen=True):
    """What changes slowly."""

    lengths: dict[str, Lengths]
    rejects: list[Rejected]


class Look(msgspec.Struct, frozen=True):
    """One look. `news` is what keeps the state from being read; `status` is then the last known one, if any."""

    status: Status | None
    news: str | None
    details: Details


class Source:
    """Looks at one run; blocking, and used by one thread at a time."""

    def __init__(self, file: RunFile) -> None:
        self.file = file
        self._names = [dataset.name for dataset in file.config.datasets]
        self._rejects = Rejects(file.output, self._names)
        self._connection: tuple[redis.Redis, str] | None = None
        self._last: Status | None = None
        self._details = Details({}, [])
        self._details_at = -DETAILS_EVERY_S
        self._files_at = -FILES_EVERY_S

    def connection(self) -> "tuple[redis.Redis, str] | None":
        """The run's Redis; None where none is named, and the run's own is not running."""
        url = environment.redis_url() or embedded.live_url(self.file.output)
        if url is None:
            return None
        if self._connection is None or self._connection[1] != url:
            self._connection = connections.connect(url), url
        return self._connection

    def look(self) -> Look:
        """The run as it is now; what is wrong with Redis or the files is its news."""
        try:
            where = self.connection()
            if where is None:
                self._look_at_files()
                news = "the run's own Redis is not running: this is what the files say"
            else:
                self._files_at = -FILES_EVERY_S
                watching.refuse_strangers(self.file.config, where[0])
                self._last = status.online(self.file.config, *where)
                news = None
            self._look_closer(where)
        except Problem as problem:
            news = f"{problem}; " + ("waiting" if self._last is None else "what is shown is from before")
        return Look(self._last, news, self._details)

    def _look_at_files(self) -> None:
        if time.monotonic() - self._files_at >= FILES_EVERY_S:
            self._last = status.offline(self.file.config)
            self._files_at = time.monotonic()

    def _look_closer(self, where: "tuple[redis.Redis, str] | None") -> None:
        if time.monotonic() - self._details_at < DETAILS_EVERY_S:
            return
        lengths = self._details.lengths
        if where is not None:
            found = ages.read(where[0], self._names)
            lengths = {name: histogram(found[name].finished) for name in self._names if found[name].finished}
        self._details = Details(lengths, self._rejects.read())
        self._details_at = time.monotonic()


def histogram(finished: Mapping[int, int]) -> Lengths:
    """The counts of the ledger's buckets, every two of them (a quarter wider each) made one."""
    first = min(finished) // 2
    last = min(max(max(finished) // 2, first + FEWEST - 1), (len(STARTS) - 1) // 2)
    starts = [STARTS[2 * at] for at in range(first, last + 1)]
    counts = [finished.get(2 * at, 0) + finished.get(2 * at + 1, 0) for at in range(first, last + 1)]
    after = 2 * (last + 1)
    return Lengths(starts, counts, STARTS[after] if after < len(STARTS) else STARTS[-1])
