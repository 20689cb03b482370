"""The simulated SGLang server: its life, from a bound port to a drained exit or a crash.

`Simulator` lives on the caller's event loop (in-process tests); `serve` is a whole process. A crash is
SGLang's: everything hangs for a few seconds, then every connection is closed and the process is gone.
"""

import asyncio
import hmac
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from workers.simulator.completions import Completions
from workers.simulator.config import SimulatorConfig
from workers.simulator.control import Control
from workers.simulator.errors import ApiError, unauthorized
from workers.simulator.faults import FaultBox
from workers.simulator.generation import Generation
from workers.simulator.journal import Journal
from workers.simulator.replies import Handler, error_response, hang, json_response, reset, without_client
from workers.simulator.scheduler import Scheduler
from workers.simulator.vocabulary import load_vocabulary

CRASHED = 1
_KEEPALIVE_S = 5.0  # an idle connection is closed after this, as uvicorn does in SGLang
_FLUSH_S = 5.0
_MAX_BODY = 1 << 30
_BACKLOG = 4096
_log = logging.getLogger("tokenmill.simulator")


def _no_http(record: logging.LogRecord) -> bool:
    """Bytes that are not HTTP/1.1 (a router tries HTTP/2 first) are answered 400, without aiohttp's traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log.addFilter(_no_http)
_OPEN_PATHS = ("/health", "/ready", "/metrics")


class Simulator:
    """One simulated server on the running loop. Use `start` and `stop`, or `async with`."""

    def __init__(self, config: SimulatorConfig | None = None) -> None:
        self.config = config or SimulatorConfig()
        self._vocabulary = load_vocabulary(
            self.config.tokenizer, vocab_size=self.config.vocab_size, eos_id=self.config.eos_id
        )
        self._faults = FaultBox(self.config.faults, self.config.seed)
        self._active: set[str] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._site: web.SockSite | None = None
        self._listening = asyncio.Lock()
        self._crashing: asyncio.TimerHandle | None = None
        self._port = 0
        self.crashed = asyncio.Event()

    @property
    def url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def in_flight(self) -> int:
        return self._scheduler.in_flight

    @property
    def state(self) -> dict[str, object]:
        """What GET /simulator/state shows."""
        return self._control.state()

    async def start(self) -> None:
        """Binds the port and serves.

        Raises:
            OSError: the port cannot be bound, or the log file not be opened.
        """
        self._journal = Journal(self.config.log_path)
        self._scheduler = Scheduler(self.config)
        self._generation = Generation(
            self.config, self._vocabulary, self._scheduler, self._journal, self._faults, self.crash
        )
        self._control = Control(self.config, self._vocabulary, self._scheduler, self._journal, self._faults)
        self._control.on_faults = self._apply_faults
        app = web.Application(middlewares=[without_client, self._middleware], client_max_size=_MAX_BODY)
        app.router.add_post("/generate", self._generation.handle)
        app.router.add_put("/generate", self._generation.handle)
        completions = Completions(self.config, self._vocabulary, self._generation)
        app.router.add_post("/v1/chat/completions", completions.handle)
        self._control.add_routes(app.router)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_log,
            handler_cancellation=True,
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        await self._listen()
        self._apply_faults()

    async def stop(self) -> None:
        """Closes everything at once; what is in flight is aborted."""
        for timer in self._timers:
            timer.cancel()
        if self._crashing is not None:
            self._crashing.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_connections()
        await self._close_listener()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            self._scheduler.close()
            self._journal.close()

    async def __aenter__(self) -> "Simulator":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def drain(self, *, accept: bool) -> None:
        """Answers what is in flight. With `accept`, health says 503 and new work is still taken (SIGTERM)."""
        if self._control.status != "crashed":
            self._control.status = "draining"
        if not accept:
            await self._close_listener()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._generation.idle, self.crashed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        # The last answers are in the transports by now; a slow reader gets a while to take them.
        deadline = asyncio.get_running_loop().time() + _FLUSH_S
        while any(t.get_write_buffer_size() for t in self._transports()):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.01)

    def crash(self) -> None:
        """The scheduler process dies: everything hangs, and a few seconds later the whole server is gone."""
        if self._generation.is_crashed:
            return
        self._generation.is_crashed = True
        self._control.status = "crashed"
        self._scheduler.pause("crash")
        loop = asyncio.get_running_loop()
        self._crashing = loop.call_later(self.config.crash_s / self.config.time_scale, self._die)

    def _die(self) -> None:
        self._spawn(self._close_listener())
        self._close_connections()
        self.crashed.set()

    def _transports(self) -> list[asyncio.Transport]:
        server = None if self._runner is None else self._runner.server
        handlers = [] if server is None else server.connections
        return [handler.transport for handler in handlers if isinstance(handler.transport, asyncio.Transport)]

    def _close_connections(self) -> None:
        for transport in self._transports():
            transport.abort()

    async def _listen(self) -> None:
        async with self._listening:
            if self._site is not None or self._runner is None:
                return
            family = socket.AF_INET6 if ":" in self.config.host else socket.AF_INET
            listener = socket.create_server(
                (self.config.host, self._port or self.config.port), family=family, backlog=_BACKLOG
            )
            self._port = listener.getsockname()[1]
            self._control.port = self._port
            self._site = web.SockSite(self._runner, listener, backlog=_BACKLOG)
            await self._site.start()

    async def _close_listener(self) -> None:
        async with self._listening:
            site, self._site = self._site, None
            if site is not None:
                await site.stop()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _apply_faults(self) -> None:
        """Puts the server-wide faults in force, and takes back those that no longer are."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        loop = asyncio.get_running_loop()
        faults = self._faults.server_wide()
        self._set_active({fault.mode for fault in faults})
        for fault in faults:
            if fault.seconds:
                self._timers.append(loop.call_later(fault.seconds, self._lift, fault.mode))

    def _lift(self, mode: str) -> None:
        self._set_active(self._active - {mode})

    def _set_active(self, modes: set[str]) -> None:
        self._active = set(modes)
        self._generation.is_dead = "dead" in modes
        if "dead" in modes:
            self._scheduler.pause("dead")
        else:
            self._scheduler.resume("dead")
        if self._control.status in ("up", "starting"):
            self._control.status = "starting" if "slow_start" in modes else "up"
        self._spawn(self._close_listener() if "refuse" in modes else self._listen())

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        if self._generation.is_crashed:
            await hang()
        if self._active and not path.startswith("/simulator/"):
            if "refuse" in self._active:
                await reset(request)
            if "slow_start" in self._active:
                return web.Response(status=503)
        try:
            if self.config.api_key is not None and not path.startswith(_OPEN_PATHS):
                self._check_key(request.headers.get("Authorization", ""))
            return await handler(request)
        except ApiError as error:
            return error_response(error)
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return json_response({"detail": error.reason}, error.status, allow)

    def _check_key(self, header: str) -> None:
        scheme, _, key = header.partition(" ")
        expected = (self.config.api_key or "").encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.encode("utf-8", "surrogateescape"), expected):
            raise unauthorized()


async def serve(
    config: SimulatorConfig, *, ready: Callable[[str], None] = lambda url: None, lifeline: int | None = None
) -> int:
    """Serves until SIGTERM (drains, exit code 0), SIGINT (takes nothing new, drains, 0) or a crash (1).

    A second signal ends it at once. `ready` is called with the URL when requests can come. `lifeline`
    is the reading end of a pipe: when its other end closes, as the death of a parent closes it, the
    server ends at once.
    """
    # A connection is a file, and the usual limit of 1,024 is what one well-filled server has in flight.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    if lifeline is not None:

        def cut() -> None:
            if not os.read(lifeline, 4096):
                loop.remove_reader(lifeline)
                # Once to stop, once more not to drain: whoever wanted the answers is gone.
                signals.put_nowait(signal.SIGINT)
                signals.put_nowait(signal.SIGINT)

        loop.add_reader(lifeline, cut)
    simulator = Simulator(config)
    await simulator.start()
    tasks: list[asyncio.Task[Any]] = []
    try:
        ready(simulator.url)
        crashed = loop.create_task(simulator.crashed.wait())
        first = loop.create_task(signals.get())
        tasks += [crashed, first]
        await asyncio.wait({crashed, first}, return_when=asyncio.FIRST_COMPLETED)
        if first.done() and not crashed.done():
            drained = loop.create_task(simulator.drain(accept=first.result() == signal.SIGTERM))
            second = loop.create_task(signals.get())
            tasks += [drained, second]
            await asyncio.wait({drained, second, crashed}, return_when=asyncio.FIRST_COMPLETED)
        return CRASHED if simulator.crashed.is_set() else 0
    finally:
        if lifeline is not None:
            loop.remove_reader(lifeline)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await simulator.stop()
