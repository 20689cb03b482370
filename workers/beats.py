"""A worker's beat: its heartbeat and state for RQ and `status`, the news of its servers, and the sweep for the dead."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from rq.utils import now, utcformat
from rq.worker import BaseWorker, WorkerStatus
from rq.worker_registration import register

from budget import connections, keys, process, sweep
from budget.connections import RedisAway, RedisRefuses
from budget.ledger import Ledger
from workers.contracts import RunConfig
from workers.engine import Engine
from workers.fleet import Fleet

log = logging.getLogger("tokenmill.worker")

LONGEST_PERIOD_S = 2.0


class Beats:
    """The beats of one worker."""

    def __init__(self, worker: BaseWorker, engine: Engine, fleet: Fleet, config: RunConfig) -> None:
        self._worker = worker
        self._engine = engine
        self._fleet = fleet
        self._names = [dataset.name for dataset in config.datasets]
        self._timing = config.timing
        self._next_heartbeat = 0.0

    async def go_on_for_ever(self) -> None:
        ledger = Ledger(self._worker.connection)
        period = min(self._timing.renew_ms / 1000, LONGEST_PERIOD_S)
        since_sweep = math.inf
        while True:
            await self._fleet.look()
            await self._engine.suspects.keep()
            await self._ignoring_redis(self._beat)
            if since_sweep >= self._timing.sweep_ms / 1000:
                since_sweep = 0.0
                await self._ignoring_redis(lambda: self._sweep(ledger))
            await asyncio.sleep(period)
            since_sweep += period

    async def _ignoring_redis(self, step: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(step)
        except (RedisAway, RedisRefuses):
            return  # the engine says so; this is only for being seen

    def _sweep(self, ledger: Ledger) -> None:
        for death in sweep.sweep(ledger, self._names, self._timing.lease_ms):
            log.warning("%s", sweep.sentence(death))

    def _beat(self) -> None:
        worker, engine = self._worker, self._engine
        state = WorkerStatus.BUSY if engine.flights else WorkerStatus.IDLE
        if engine.suspended:
            state = WorkerStatus.SUSPENDED
        client: Any = worker.connection
        with connections.translated(), client.pipeline(transaction=False) as pipe:
            # Redis was emptied, or this process was frozen for long; RQ's heartbeat alone may have made a hash since.
            is_listed = client.hexists(worker.key, sweep.PROCESS_FIELD)
            if not is_listed:
                pipe.hset(worker.key, mapping={**worker.serialize(), sweep.PROCESS_FIELD: process.identity()})
                register(worker, pipe)
            if engine.endings.has_lost_pieces and (pieces := engine.joined.pieces) is not None:
                pipe.set(keys.pieces(pieces.digest), pieces.packed)
            servers = list(engine.servers.all)
            if worker.get_state() != state:
                worker.set_state(state, pipe)
            pipe.hset(
                worker.key,
                mapping={
                    "state": state.value,
                    "in_flight": len(engine.flights),
                    "slots": engine.slots,
                    "servers": ",".join(server.url for server in servers),
                },
            )
            # Its entry lasts for two leases.
            is_due = not is_listed or time.monotonic() >= self._next_heartbeat
            if is_due:
                worker.heartbeat(pipeline=pipe)
            for server in servers:
                seen = {"state": "up" if server.up else "down", "seen": utcformat(now())}
                if not server.up:
                    seen["reason"] = server.reason
                elif server.loads is not None:
                    seen |= {
                        "running": str(server.loads.running),
                        "waiting": str(server.loads.waiting),
                        "tokens_per_s": f"{server.loads.throughput:.1f}",
                    }
                pipe.hset(keys.server(server.url), mapping=seen)
            self._waste_to(pipe)
            pipe.execute()
            engine.endings.has_lost_pieces = False
            if is_due:
                self._next_heartbeat = time.monotonic() + self._timing.lease_ms / 6000

    def _waste_to(self, pipe: Any) -> None:
        """Absolute numbers under this worker's name, so that saying them twice counts them once."""
        for dataset, tokens in self._engine.wasted.items():
            pipe.hset(keys.wasted(dataset), self._worker.name, tokens)

    def tell_waste(self) -> None:
        """The last word on wasted tokens, when the worker leaves."""
        client: Any = self._worker.connection
        try:
            with connections.translated(), client.pipeline(transaction=False) as pipe:
                self._waste_to(pipe)
                pipe.execute()
        except (RedisAway, RedisRefuses) as problem:
            log.warning("could not note the last wasted tokens: %s", problem)
