"""`tokenmill run`: the whole job on this machine, in one command.

It starts what is missing (a Redis or Valkey, the simulated SGLang), then a collector, a producer and
workers, each the same process that one would start by hand; shows progress; ends when all datasets are
finished. Killed anywhere, the same command continues.
"""

import json
import logging
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import redis
from rich.console import Console

from budget import connections, environment, runbook, signals, snapshot
from budget.connections import RedisAway, RedisRefuses
from budget.errors import Exit, OutsideFault, Problem
from budget.redis_url import rq_options
from results.folder import OutputFolder
from tokenmill import farewell, status, view
from tokenmill.children import Child
from tokenmill.crew import LOOK_S, Crew, servers_now
from tokenmill.embedded import EmbeddedRedis
from tokenmill.own_servers import MAX_RESTARTS, OwnServers
from tokenmill.progress import Progress
from tokenmill.runfile import RunFile

log = logging.getLogger("tokenmill.run")

POLL_S = 0.1
SAME_SIGNAL_S = 1.0


class ChildFailed(Problem):
    """A part of the run ended with a problem; the run ends with its sentence and its exit code."""

    def __init__(self, child: Child) -> None:
        super().__init__(child.last_words())
        self.exit_code = child.exit  # pyright: ignore[reportAttributeAccessIssue]


class LocalRun:
    """One run on this machine.

    Args:
        overrides: the `--set` options, handed on to every part.
        workers: worker processes per server.
        as_json: the last line of standard output is the final status as JSON; nothing else is printed there.
    """

    def __init__(
        self,
        file: RunFile,
        *,
        overrides: tuple[str, ...],
        workers: int,
        wait_s: float,
        as_json: bool,
        console: Console,
    ) -> None:
        self.file = file
        self.config = file.config
        self._overrides = overrides
        self._wait_s = wait_s
        self._as_json = as_json
        self._console = console
        self._children: list[Child] = []
        self._crew: list[Child] = []
        self._crew_of_servers = Crew(self._start_worker, workers)
        self._base: list[str] = []
        self._joined: set[Child] = set()
        self._next_look = 0.0
        self._are_started = False
        self._collector: Child | None = None
        self._producer: Child | None = None
        self._own = OwnServers(file, None, self._say)
        self._signals = 0
        self._url = ""
        self._connection: redis.Redis | None = None
        self._started = time.monotonic()
        self._spent_before: dict[str, int] | None = None
        self._signalled_at = -SAME_SIGNAL_S
        self._out_of_time = False
        self._simulates = False

    def run(self) -> Exit:
        """Run to the end. Returns the exit code; raises `Problem` where a part fails."""
        signals.catch(self._on_signal)
        url = environment.redis_url()
        if url:
            return self._with_redis(url)
        with EmbeddedRedis(self.file.output) as server:
            self._own = OwnServers(self.file, server, self._say)
            self._say(f"no Redis is named: started one of its own ({Path(server.binary).name})")
            return self._with_redis(server.url)

    def _with_redis(self, url: str) -> Exit:
        self._url = url
        self._connection = connections.connect(url)
        self._refuse_another()
        try:
            # It stays: what was finished may go on under a raised cap or with new prompts, as the producer finds out.
            self._collector = self._child("collector", ["collect"], ("--stay",))
            self._producer = self._child("producer", ["push"])
            with self._progress() as show:
                self._supervise(show)
            return self._finish()
        finally:
            for child in reversed(self._children):
                child.end(10)
            self._own.stop()

    def _refuse_another(self) -> None:
        """As the collector does at its start, but before anything of another run is shown, or noted in its Redis."""
        assert self._connection is not None
        with suppress(RedisAway, RedisRefuses):  # the parts wait for it, and say so
            OutputFolder(self.file.output).refuse_another(self._connection)

    # -- parts

    def _child(self, name: str, command: list[str], options: tuple[str, ...] = ()) -> Child:
        logs = self.file.output / ".tokenmill" / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutsideFault(f"the output folder {self.file.output} is not writable: {error.strerror}") from error
        sets = [part for override in self._overrides for part in ("--set", override)]
        arguments = [*command, str(self.file.path), *sets, "--wait", str(self._wait_s), *options]
        child = Child(name, arguments, logs / f"{name}.log", environment.for_child(redis_url=self._url))
        self._children.append(child)
        return child

    def _start_workers(self) -> None:
        self._base = self.config.servers
        assert self._connection is not None
        servers = servers_now(self._connection, self._base)
        if servers is None:
            servers = self._base
        if not servers and not self._base:
            self._base = servers = [self._own.simulate()]
            self._simulates = True
            self._note_simulation()
            self._say("no SGLang server is named: started the simulated one, whose answers have no meaning")
        self._are_started = True
        self._crew_of_servers.follow(servers)
        if not servers:
            self._say(
                "all servers of the run were removed from it: `tokenmill servers RUN.toml add URL` brings one back"
            )
        if not self._as_json:
            self._say(f"queue depths and workers, in another terminal: rq info {rq_options(self._url)}")

    def _note_simulation(self) -> None:
        """Whoever looks at the run, now or later, is told that its answers have no meaning."""
        assert self._connection is not None
        with suppress(RedisAway, RedisRefuses):
            runbook.note_facts(self._connection, {runbook.SIMULATED: "1"})

    def _start_worker(self, server: str) -> Child:
        child = self._child(f"worker-{len(self._crew) + 1}", ["work"], ("--server", server))
        self._crew.append(child)
        return child

    def _follow_servers(self) -> None:
        """Workers for servers that join in mid-run. One that fails ends nothing but itself."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        assert self._connection is not None
        servers = servers_now(self._connection, self._base)
        if servers is None:
            return
        for child in self._crew_of_servers.follow(servers):
            self._joined.add(child)
            self._say(f"a server joins the run: started {child.name}")

    # -- going on

    def _supervise(self, show: Callable[[], None]) -> None:
        """Until the producer has left: it alone knows the prompts, and leaves when all is finished and written."""
        assert self._collector is not None and self._producer is not None
        while True:
            show()
            self._own.look_after()
            for child in list(self._children):
                self._look_after(child)
            if not self._producer.running and self._producer.exit is Exit.DONE and self._is_finished():
                self._collector.end(10)
                return
            if self._signals or self._is_out_of_time():
                self._wind_down(show)
                return
            if self._are_started:
                self._follow_servers()
            elif self._has_work():
                self._start_workers()
            time.sleep(POLL_S)

    def _look_after(self, child: Child) -> None:
        """A killed part is started again: nothing is lost by it. One that fails ends the run."""
        if child.running:
            return
        if child.killed and child.restarts < MAX_RESTARTS:
            self._say(f"{child.name} was killed (signal {-child.process.returncode}): started again")
            child.restart()
        elif child in self._joined:
            self._joined.discard(child)
            self._children.remove(child)
            if child.killed or child.exit is not Exit.DONE:
                self._say(f"{child.name} left: {child.last_words()}")
        elif child.killed or child.exit is not Exit.DONE:
            raise ChildFailed(child)

    def _is_finished(self) -> bool:
        state = self._state()
        return state is not None and state.all_finished()

    def _has_work(self) -> bool:
        state = self._state()
        return state is not None and any(dataset.queued for dataset in state.datasets)

    def _is_out_of_time(self) -> bool:
        hours = self.config.max_hours
        if hours is None or time.monotonic() - self._started < hours * 3600:
            return False
        self._out_of_time = True
        self._say(f"{hours:g} hours are over: finishing what is in flight")
        return True

    def _wind_down(self, show: Callable[[], None]) -> None:
        """Workers drain first, then the results are written, then the others leave."""
        if self._signals:
            self._say("stopping: finishing what is in flight; Ctrl-C again to stop at once")
        asked, running = 0, True
        while running:
            wanted = 2 if self._signals > 1 else 1
            if asked < wanted:
                asked = wanted
                for child in self._crew:
                    child.interrupt()
            show()
            self._own.look_after()
            running = any(child.running for child in self._crew)
            time.sleep(POLL_S)
        assert self._collector is not None and self._producer is not None
        self._producer.end(10)
        deadline = time.monotonic() + 10
        while self._collector.running and time.monotonic() < deadline:
            state = self._state()
            if state is None or not any(dataset.waiting for dataset in state.datasets):
                break
            time.sleep(POLL_S)
        self._collector.end(10)

    def _on_signal(self, *_: Any) -> None:
        # Ctrl-C under `make` may arrive twice; only a second one of a person's own means at once.
        if time.monotonic() - self._signalled_at > SAME_SIGNAL_S:
            self._signals += 1
        self._signalled_at = time.monotonic()

    # -- being seen

    def _state(self) -> snapshot.RunState | None:
        assert self._connection is not None
        try:
            if not runbook.is_ready(self._connection):
                return None
            return snapshot.read(self._connection, [dataset.name for dataset in self.config.datasets])
        except (RedisAway, RedisRefuses):
            return None

    def _status(self) -> status.Status | None:
        assert self._connection is not None
        if self._state() is None:
            return None
        try:
            now = status.online(self.config, self._connection, self._url)
            if self._spent_before is None:
                self._spent_before = {dataset.name: dataset.spent for dataset in now.datasets}
            return now
        except (RedisAway, RedisRefuses):
            return None

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def _progress(self) -> Progress:
        return Progress(self._console, self._status, quiet=self._as_json)

    # -- the end

    def _finish(self) -> Exit:
        for child in [*self._crew, *([self._producer] if self._producer else [])]:
            try:
                child.process.wait(15)
            except subprocess.TimeoutExpired:
                child.end(5)
        if self._simulates:
            self._note_simulation()
        final = self._status()
        interrupted = self._signals > 0 or self._out_of_time
        if final is None:
            raise OutsideFault("Redis went away at the end: run the same command again, the files have everything")
        if not self._crew and not interrupted:
            self._say("already complete: every dataset has its tokens or no prompts left; no request was sent")
        seconds = time.monotonic() - self._started
        self._console.print(view.summary(final, seconds if self._crew else None, self._spent_before or {}))
        farewell.tell_next(self.file, final, self._say, interrupted=interrupted)
        if not self._signals:  # somebody waits for the end
            farewell.write_report(self.file, final, self._say, worked=bool(self._crew))
        if self._as_json:
            print(json.dumps(msgspec.to_builtins(final)))
        return Exit.INTERRUPTED if interrupted else Exit.DONE
