"""Workers for the servers of a run: so many processes for each, also for those that join in mid-run."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis

from budget import connections, environment, fleet, signals
from budget.connections import RedisAway, RedisRefuses
from budget.errors import UserProblem
from tokenmill.children import Child, worst_exit
from tokenmill.runfile import RunFile

log = logging.getLogger("tokenmill.run")

POLL_S = 0.1
LOOK_S = 1.0


def servers_now(connection: "redis.Redis", base: Iterable[str]) -> list[str] | None:
    """The servers of the run as they are now; None where Redis cannot say."""
    try:
        return fleet.members(base, fleet.wishes(connection))
    except (RedisAway, RedisRefuses):
        return None


class Crew:
    """The workers of a run's servers. `children` are those that were started, ended ones too.

    Args:
        start: starts one worker for a server.
        number: workers for each server.
        known: servers that have workers already.
    """

    def __init__(self, start: Callable[[str], Child], number: int, known: Iterable[str] = ()) -> None:
        self.children: list[Child] = []
        self._start = start
        self._number = number
        self._known = set(known)

    @property
    def is_at_work(self) -> bool:
        return any(child.running for child in self.children)

    def follow(self, servers: Iterable[str]) -> list[Child]:
        """Start the workers of those servers that have joined since the last call; those it started."""
        now = list(servers)
        new = [url for url in now if url not in self._known]
        self._known = set(now)
        started = [self._start(url) for url in new for _ in range(self._number)]
        self.children += started
        return started

    def supervise(
        self, look: Callable[[], "list[str] | None"], signals: Callable[[], int], goes_on: Callable[[], bool]
    ) -> None:
        """Until no worker is left and `goes_on` says no: pass signals on, and follow what `look` says of servers."""
        passed_on, next_look = 0, 0.0
        while self.is_at_work or goes_on():
            # One at a time: a second signal that is sent before the first is taken is none.
            if passed_on < min(signals(), 2):
                passed_on += 1
                for child in self.children:
                    child.interrupt()
            if not passed_on and time.monotonic() >= next_look:
                next_look = time.monotonic() + LOOK_S
                if (now := look()) is not None:
                    for child in self.follow(now):
                        log.info("started %s", child.name)
            time.sleep(POLL_S)


class Signals:
    """Counts the signals that ask this process to end."""

    def __init__(self) -> None:
        self.count = 0

    def catch(self) -> None:
        signals.catch(self._on_signal)

    def _on_signal(self, *_: Any) -> None:
        self.count += 1


class Work:
    """`tokenmill work`: one worker in this process, or several as its children.

    Args:
        own: the servers of `--server`; without them it works for all of the run's, also those that join.
        overrides: the `--set` options, handed on.
        number: workers for each server.
        metrics: the address and port that they are told to Prometheus on; several count on from it.
    """

    def __init__(
        self,
        file: RunFile,
        url: str,
        *,
        own: list[str],
        overrides: tuple[str, ...],
        number: int,
        concurrency: int | None,
        name: str | None,
        metrics: tuple[str, int] | None,
        stay: bool,
        wait_s: float,
    ) -> None:
        self._file = file
        self._url = url
        self._own = own
        self._number = number
        self._concurrency = concurrency
        self._name = name
        self._metrics = metrics
        self._started = 0
        self._stay = stay
        self._wait_s = wait_s
        self._options = [part for override in overrides for part in ("--set", override)]
        self._options += ["--wait", str(wait_s), *(["--stay"] if stay else [])]
        if concurrency:
            self._options += ["--concurrency", str(concurrency)]
        self._connection = connections.connect(url)
        self._signals = Signals()

    def run(self) -> None:
        """Work until stopped, or until all datasets are finished.

        Raises:
            Problem: a worker failed.
        """
        urls = self._own or self._look()
        if urls is None:
            urls = self._file.config.servers
        if not urls and self._file.config.servers:
            log.info("all servers of the run were removed from it (`tokenmill servers`): nothing to do")
            return
        if not urls:
            raise UserProblem(
                "the run file names no SGLang server: name one in [sglang] servers or with --server; `tokenmill sim` "
                "starts a simulated one"
            )
        if self._number * len(urls) == 1:
            self._here(urls[0])
            return
        self._signals.catch()
        crew = Crew(self._child, self._number)
        crew.follow(urls)
        crew.supervise(self._look, lambda: self._signals.count, lambda: False)
        sys.exit(worst_exit(crew.children))

    def _look(self) -> list[str] | None:
        """The run's servers now; None where this is not followed, or Redis is away."""
        return None if self._own else servers_now(self._connection, self._file.config.servers)

    def _child(self, server: str) -> Child:
        arguments = ["work", str(self._file.path), "--server", server, *self._options, *self._metrics_options()]
        self._started += 1
        return Child(f"a worker for {server}", arguments, None, environment.for_child(redis_url=self._url))

    def _metrics_options(self) -> list[str]:
        """Those of the next process: each has a port of its own."""
        if self._metrics is None:
            return []
        host, port = self._metrics
        return ["--metrics-host", host, "--metrics-port", str(port + self._started if port else 0)]

    def _here(self, server: str) -> None:
        from workers.async_worker import AsyncWorker, new_name
        from workers.metrics import Exporter

        name = self._name or new_name()
        exporter = None if self._metrics is None else Exporter(name, *self._metrics)
        self._started += 1
        queues = [dataset.name for dataset in self._file.config.datasets]
        with connections.translated_at_start(self._url, self._wait_s):
            worker = AsyncWorker(
                queues,
                name=name,
                connection=connections.connect(self._url),
                servers=[server],
                concurrency=self._concurrency or self._file.config.concurrency,
                stay=self._stay,
                wait_s=self._wait_s,
                exporter=exporter,
            )
        crew = Crew(self._child, self._number, known=[server])
        at_work = threading.Event()
        at_work.set()
        # Children are killed when the thread that started them ends: it stays until they have ended.
        follower = threading.Thread(
            target=crew.supervise,
            args=(self._look, lambda: worker.signals + self._signals.count, at_work.is_set),
            daemon=True,
        )
        if not self._own:
            follower.start()
        worker.work()
        at_work.clear()
        if crew.is_at_work:
            self._signals.catch()
        if not self._own:
            follower.join()
        if worker.problem is not None:
            raise worker.problem
        if crew.children:
            sys.exit(worst_exit(crew.children))
