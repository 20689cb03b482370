"""`workers.AsyncWorker`: an RQ worker that keeps hundreds of requests in flight on one event loop.

`tokenmill work` and `rq worker -w workers.AsyncWorker A1 B2` start the same thing. Towards RQ it is a
worker like any other: registered, with a heartbeat and a state that `rq info` shows, obeying
`rq suspend`, RQ's commands and signals (the first SIGTERM or SIGINT drains, the second gives everything
back at once). It forces RQ's JSON serializer: nothing is ever unpickled.
"""

import asyncio
import logging
import math
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import redis
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from budget import connections, environment, garbage, process, signals, snapshot, sweep
from budget.connections import RedisAway, RedisRefuses
from budget.errors import Interrupted, Problem
from budget.fleet import Board
from budget.ledger import AsyncLedger
from workers import addresses, births
from workers.background import end
from workers.beats import Beats
from workers.complaints import Complaints
from workers.contracts import RunConfig
from workers.engine import Engine
from workers.errors import RunFault
from workers.fleet import Fleet
from workers.joining import Joined, agree_on_model, join, pieces_of
from workers.metrics import Exporter
from workers.pieces import Pieces
from workers.servers import PROBE_S, Servers
from workers.sglang import Client, Model

log = logging.getLogger("tokenmill.worker")

# Redis connections of a worker: claims, renewals and sweeps beside the commits of all slots.
CONNECTIONS = 16
PUBSUB_PAUSE_S = 2.0
START_PAUSE_S = 1.0


class AsyncWorker(BaseWorker):
    """An RQ worker with many jobs in flight.

    Beside RQ's own arguments it takes what `tokenmill work` knows: `concurrency` (slots), `servers` (urls
    instead of the run's), `stay` (do not leave when all is finished), `wait_s` (how long Redis and the
    servers may be away at the start), `exporter` (tells Prometheus of it). `rq worker` passes none of these;
    then the environment is asked (TOKENMILL_CONCURRENCY, TOKENMILL_SERVERS), else the run's own configuration.
    """

    def __init__(
        self,
        queues: Any,
        name: str | None = None,
        *args: Any,
        concurrency: int | None = None,
        servers: list[str] | None = None,
        stay: bool = False,
        wait_s: float = 60.0,
        exporter: Exporter | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs["serializer"] = JSONSerializer
        super().__init__(queues, name, *args, **kwargs)
        self.problem: Problem | None = None
        self._concurrency = concurrency
        self._own_servers = servers
        self._stay = stay
        self._wait_s = wait_s
        self._exporter = exporter
        self._lease_s = 30.0
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals = 0
        self._stopped_early = False
        self._is_born = False
        self._complain = Complaints()

    @property
    def signals(self) -> int:
        """How often it was asked to end."""
        return self._signals

    # -- RQ's side

    def _set_connection(self, connection: "redis.Redis") -> "redis.Redis":
        """RQ would raise the socket's time-out to minutes, for a blocking pop that this worker never makes."""
        return connection

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's heartbeat, but a killed worker is listed no longer than a lease and a bit, not eight minutes."""
        super().heartbeat(math.ceil(self._lease_s * 2), pipeline)

    def get_heartbeat_ttl(self, job: Any, working_time: float = 0.0) -> int:
        return math.ceil(self._lease_s * 2)

    def handle_payload(self, message: Any) -> None:
        """RQ's commands: `stop-job` may mean any job in flight; the others are RQ's own business."""
        from rq.command import parse_payload

        payload = parse_payload(message)
        if payload.get("command") != "stop-job":
            super().handle_payload(message)
        elif self._loop is not None and self._engine is not None:
            self._loop.call_soon_threadsafe(self._engine.stop_job, str(payload.get("job_id")))

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """RQ's thread for commands ends on anything but a lost connection; then a worker would be deaf."""
        if not isinstance(exc, redis.RedisError | OSError):
            log.debug("listening for RQ's commands failed (%s: %s); trying again", type(exc).__name__, exc)
        time.sleep(PUBSUB_PAUSE_S)

    def unsubscribe(self) -> None:
        """RQ's closes the connection under a thread that has not ended within a second, which then fails loudly.

        The thread closes it itself when it ends; one that Redis keeps waiting ends with the process.
        """
        if self.pubsub is None or self.pubsub_thread is None:
            return
        self.pubsub_thread.stop()
        with suppress(redis.RedisError, OSError):
            self.pubsub.unsubscribe()  # its answer wakes the thread
        self.pubsub_thread.join(timeout=PUBSUB_PAUSE_S + 1)

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        date_format: str = "%H:%M:%S",
        log_format: str = "%(asctime)s %(message)s",
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        with_scheduler: bool = False,
        dequeue_strategy: Any = None,
    ) -> bool:
        """Work until stopped, or until all datasets are finished. Returns whether it ended well.

        Of RQ's options only the log's are used: this worker is never one job at a time. What went wrong
        is in `problem`; `rq worker` prints it.
        """
        try:
            asyncio.run(self._work(logging_level, date_format, log_format))
        except Interrupted as interrupted:
            self.problem = interrupted
            log.info("%s", interrupted)
        except Problem as problem:
            self.problem = problem
            log.error("%s", problem)
        return self.problem is None

    async def _work(self, logging_level: str | None, date_format: str, log_format: str) -> None:
        self._loop = asyncio.get_running_loop()
        for number in signals.wanted():
            self._loop.add_signal_handler(number, self._on_signal)
        joined = await asyncio.to_thread(self._join)
        if joined is None:
            raise Interrupted("stopped before there was anything to do")
        self._lease_s = joined.config.timing.lease_ms / 1000
        facts, pieces = joined.facts, list[Pieces | None]()
        await self._when_allowed(lambda: pieces.append(pieces_of(self.connection, facts)))
        joined = msgspec.structs.replace(joined, pieces=pieces[0])
        # Its user may be another than the collector's.
        await self._when_allowed(lambda: connections.check_safe(self.connection))
        await self._when_allowed(lambda: self._register(joined.config, logging_level, date_format, log_format))
        garbage.search_less()
        try:
            await self._serve(joined)
        finally:
            await asyncio.to_thread(self._leave)
        if self._stopped_early:
            raise Interrupted("stopped; run the same command again to continue")

    def _join(self) -> Joined | None:
        return join(
            self.connection,
            wait_s=self._wait_s,
            stopping=lambda: self._signals > 0,
            say=lambda text: log.info("%s", text),
        )

    def _register(self, config: RunConfig, logging_level: str | None, date_format: str, log_format: str) -> None:
        with connections.translated():
            if not self._is_born:
                births.make_room(self.connection, self.name, config)
                self.bootstrap(logging_level, date_format, log_format)
                self._is_born = True
            self.heartbeat()

    def register_birth(self) -> None:
        """RQ's, with the process that the name stands for."""
        try:
            super().register_birth()
        except ValueError as error:  # somebody else has taken it since there was room
            raise births.NameTaken(self.name) from error
        self.connection.hset(self.key, sweep.PROCESS_FIELD, process.identity())

    def _leave(self) -> None:
        try:
            with connections.translated():
                self.teardown()
        except (RedisAway, RedisRefuses) as problem:
            log.warning("could not take this worker off RQ's list: %s", problem)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopped_early = True
        if self._engine is None:
            return
        if self._signals == 1:
            log.info("draining: %d requests in flight; again to give them back at once", len(self._engine.flights))
            self._engine.stop()
        else:
            log.warning("giving everything back")
            self._engine.abandon()

    def _on_time_over(self, hours: float) -> None:
        log.info("%g hours are over: finishing what is in flight", hours)
        self._stopped_early = True
        if self._engine is not None:
            self._engine.stop()

    # -- the work

    async def _serve(self, joined: Joined) -> None:
        config = joined.config
        datasets = [name for name in self.queue_names() if name in {dataset.name for dataset in config.datasets}]
        if not datasets:
            names = ", ".join(dataset.name for dataset in config.datasets)
            raise RunFault(f"none of the queues {', '.join(self.queue_names())} is a dataset of the run ({names})")
        slots = self._concurrency or environment.worker_concurrency() or config.concurrency
        client = Client(environment.sglang_api_key(), joined.longest_answer_s(datasets))
        redis_client = connections.async_twin(self.connection, CONNECTIONS)
        wake = asyncio.Event()
        timing = config.timing
        servers = Servers(
            client, self._servers(config), timing.retry_ms / 1000, wake.set,
            most=slots, probe_s=min(PROBE_S, timing.stall_ms / 1000),
        )  # fmt: skip
        board = Board(redis_client, self.name, timing.lease_ms)
        fleet = self._fleet(joined, servers, board, datasets)
        try:
            await fleet.start(self._wait_s, lambda: self._signals > 0)
            if self._signals:
                return
            log.info("working for run %s: up to %d requests in flight", config.name, slots)
            engine = self._engine = Engine(
                worker=self.name,
                joined=joined,
                ledger=AsyncLedger(redis_client),
                servers=servers,
                datasets=datasets,
                concurrency=slots,
                stay=self._stay,
                finished=lambda: self._all_finished(config, datasets),
                board=board,
            )
            engine.changed = wake
            if self._exporter is not None:
                self._exporter.engine = engine
            if config.max_hours is not None:
                asyncio.get_running_loop().call_later(config.max_hours * 3600, self._on_time_over, config.max_hours)
            beats = Beats(self, engine, fleet, config)
            beating = asyncio.create_task(beats.go_on_for_ever())
            beating.add_done_callback(engine.ended)
            try:
                await engine.run()
            finally:
                await end(beating)
                await asyncio.to_thread(beats.tell_waste)
        finally:
            await servers.close()
            await client.close()
            await redis_client.aclose()

    def _servers(self, config: RunConfig) -> list[str]:
        urls = addresses.chosen(self._own_servers, config.servers)
        if not urls:
            raise RunFault("the run names no SGLang server: start one (`tokenmill sim` simulates one) and name it "
                             "in [sglang] servers or with --server")  # fmt: skip
        return urls

    def _fleet(self, joined: Joined, servers: Servers, board: Board, datasets: list[str]) -> Fleet:
        samplings: list[dict[str, Any]] = []
        for name in datasets:
            if (sampling := joined.sampling(name)) not in samplings:
                samplings.append(sampling)

        async def agree(model: Model, url: str, patient: bool) -> None:
            def step() -> None:
                with connections.translated():
                    agree_on_model(self.connection, model, url, any_weights=joined.config.any_weights)

            await (self._when_allowed(step) if patient else asyncio.to_thread(step))

        return Fleet(
            servers,
            [server.url for server in servers.all],
            board,
            own=bool(self._own_servers or environment.worker_servers()),
            facts=joined.facts,
            samplings=samplings,
            agree=agree,
        )

    async def _when_allowed(self, step: Callable[[], object]) -> None:
        """Run a step of the start, however long Redis is full or away.

        Raises:
            Interrupted: a signal came meanwhile.
            RedisRefuses: waiting does not mend it.
        """
        while True:
            try:
                await asyncio.to_thread(step)
                return
            except (RedisAway, RedisRefuses) as problem:
                if not connections.is_passing(problem):
                    raise
                if self._signals:
                    raise Interrupted("stopped before there was anything to do") from problem
                self._complain(f"{problem}; this worker starts as soon as it can")
            await asyncio.sleep(START_PAUSE_S * random.uniform(0.5, 1.0))

    def _all_finished(self, config: RunConfig, datasets: list[str]) -> bool:
        state = snapshot.read(self.connection, [dataset.name for dataset in config.datasets])
        return state.all_finished(datasets)


def new_name() -> str:
    """A worker's name that says where it runs."""
    return f"{socket.gethostname().split('.')[0]}-{process.identity().split('/')[-2]}"
