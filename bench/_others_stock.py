"""Stock RQ workers as a contender: so many processes of `rq worker` on a Redis that outlives them."""

import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _others_rq  # pyright: ignore[reportMissingImports]
import _rig  # pyright: ignore[reportMissingImports]
import rq
from _others_contenders import Contender, Task  # pyright: ignore[reportMissingImports]
from _others_server import MOST_TOKENS  # pyright: ignore[reportMissingImports]
from rq.intermediate_queue import IntermediateQueue
from rq.registry import StartedJobRegistry

from budget import connections
from tokenmill.embedded import EmbeddedRedis

QUEUE = "others"
START_S = 120.0
# RQ takes a job for abandoned when it was silent for a minute more than it may last, and looks every ten minutes.
LONG_AFTER_S = 86_400


class Stock(Contender):
    """A process holds one request; all of them wait for jobs before the first is queued."""

    knows_tokens = True

    def __init__(self, worker_class: str, most: int) -> None:
        super().__init__()
        self._worker_class = worker_class
        self._most = most
        self.name = f"rq {worker_class}"
        self.version = f"rq {rq.__version__}"  # pyright: ignore[reportPrivateImportUsage]
        self._home = tempfile.TemporaryDirectory(prefix="tm-bench-")
        self._redis: EmbeddedRedis | None = None
        self._connection: Any = None
        self._redis_pid: int | None = None
        self._abandoned: set[str] = set()

    def slots(self, in_flight: int) -> int:
        return min(in_flight, self._most)

    @property
    def queue(self) -> Any:
        return rq.Queue(QUEUE, connection=self._connection)

    def prepare(self, task: Task) -> None:
        if self._redis is None:
            self._redis = EmbeddedRedis(Path(self._home.name))
            self._redis.start()
            self._connection = connections.connect(self._redis.url)
            self._redis_pid = int(self._connection.info("server")["process_id"])
        self._connection.flushall()
        self._abandoned = set()

    def command(self, task: Task, *, again: bool) -> list[str]:
        assert self._redis is not None
        return [sys.executable, "-m", "rq.cli", "worker", "-q", "-c", "_others_rq", "-w",
                f"rq.worker.{self._worker_class}", "--url", self._redis.url, QUEUE]  # fmt: skip

    def start(self, task: Task, *, again: bool = False) -> None:
        super().start(task, again=again)
        for _ in range(self.slots(task.in_flight) - 1):
            self.spawn(task, self.command(task, again=again))
        if again:
            return
        self._await_workers()
        output = str(self.output(task))
        jobs = [
            rq.Queue.prepare_data(
                _others_rq.ask,
                args=(one.id, one.messages, task.url, output, MOST_TOKENS, task.budget),
                retry=rq.Retry(max=3),
            )
            for one in task.prompts
        ]
        self.queue.enqueue_many(jobs)

    def _await_workers(self) -> None:
        """Until all wait for jobs.

        Raises:
            Failed: one of them has ended.
            TimeoutError: they do not come up.
        """
        own = set(Contender.pids(self))

        def are_idle() -> bool:
            Contender.is_over(self)
            workers = rq.Worker.all(connection=self._connection)
            return {worker.pid for worker in workers if worker.get_state() == "idle"} >= own

        _rig.until(are_idle, START_S)

    def pids(self) -> list[int]:
        """Redis too: it is a part of the cost, as it is in a tool that starts its own."""
        return super().pids() + ([] if self._redis_pid is None else [self._redis_pid])

    def _begun(self) -> set[str]:
        """Jobs that a worker has taken and not ended; which of them are a dead worker's, RQ does not know yet."""
        # In the order in which a job goes through them, or one on its way would be in neither.
        between = self._between()
        registry = StartedJobRegistry(QUEUE, connection=self._connection)
        return between | {str(id) for id in registry.get_job_ids(cleanup=False)}

    def _between(self) -> set[str]:
        return {id.decode() for id in self._connection.lrange(self.queue.intermediate_queue_key, 0, -1)}

    def is_over(self) -> bool:
        """All jobs are done, but those that were a killed worker's."""
        Contender.is_over(self)
        return self.queue.count == 0 and self._begun() <= self._abandoned

    def kill(self) -> None:
        super().kill()
        if self._connection is not None:
            self._abandoned = self._begun()

    def leave(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        super().leave()

    def clean_up(self) -> int:
        """RQ's own maintenance with its clock put forward, instead of ten minutes of waiting."""
        found, self._abandoned = len(self._abandoned), set()
        later = time.time() + LONG_AFTER_S
        StartedJobRegistry(QUEUE, connection=self._connection).cleanup(timestamp=later)
        # Jobs that were popped and not yet registered: given back a minute after they were first seen there.
        queue = self.queue
        popped = IntermediateQueue(queue.intermediate_queue_key, connection=self._connection)
        for id in popped.get_job_ids():
            self._connection.set(popped.get_first_seen_key(id), time.time() - LONG_AFTER_S)
        popped.cleanup(rq.SimpleWorker([queue], connection=self._connection), queue)
        return found

    def close(self) -> None:
        super().close()
        if self._redis is not None:
            self._redis.stop()
        self._home.cleanup()
