"""One run on real SGLang servers that come and go: killed, drained, added and frozen, and what each had in flight.

Two servers are started and a run of your prompts goes on over all that follows: one server is killed (-9) and
started again, the other is told to leave (SIGTERM: it drains), a third one is added to the run, and one is frozen
(SIGSTOP) and thawed once that was noticed. At the end all files must agree (`tokenmill verify`) and no prompt
may have been charged an attempt. A line for each event, then a table of requests in flight between the events.

    python bench/real_fleet.py --serve 'bash serve.sh DIR {port}' --tokenizer MODEL --prompts FILE [--tokens 6000]
"""

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]

from budget import connections
from tokenmill.embedded import EmbeddedRedis

RUN = """
[run]
name = "real-fleet"
output = "out"
[model]
tokenizer = "{tokenizer}"
[sglang]
servers = {servers}
concurrency = 8
[sampling]
temperature = 0.7
max_new_tokens = 48
[timing]
lease_ms = 6000
renew_ms = 1000
sweep_ms = 1000
retry_ms = 500
stall_ms = 15000
[[dataset]]
name = "A1"
prompts = "{prompts}"
max_tokens = {tokens}
"""
PATIENCE_S = 600.0


class Server:
    """A server on a port of its own; it may be several processes, which are signalled together."""

    def __init__(self, name: str, serve: str, folder: Path, step_s: float) -> None:
        self.name = name
        self._step_s = step_s
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = shlex.split(serve.format(port=self.port))
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended: {self._log.read_text(errors='replace')[-2000:]}"
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                if answer.status != 200:
                    return False
            if self._step_s:
                self._slow_down()
            return True
        except OSError:
            return False

    def _slow_down(self) -> None:
        """SGLang's own brake: it sleeps so long at every step, so that a small model keeps a GPU's pace."""
        body = json.dumps({"forward_sleep_time": self._step_s}).encode()
        request = urllib.request.Request(f"{self.url}/slow_down", body, {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=30).close()

    def send(self, number: signal.Signals, *, whole: bool = True) -> None:
        assert self._process is not None
        (os.killpg if whole else os.kill)(self._process.pid, number)

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None and not self.has_ended():
            self.send(signal.SIGKILL)
            self._process.wait()


class Watch(threading.Thread):
    """Looks once a second: requests in flight by server, answers, and the most failures that any job has."""

    def __init__(self, run: Path, redis_url: str) -> None:
        super().__init__(daemon=True)
        self._run_file = run
        self._redis: Any = connections.connect(redis_url)
        self.began = time.monotonic()
        self.events: list[tuple[float, str]] = []
        self.seen: list[tuple[float, dict[str, int]]] = []
        self.states: dict[str, tuple[str, str]] = {}
        self.answers, self.failures = 0, 0
        self.over = threading.Event()

    def say(self, what: str) -> None:
        self.events.append((time.monotonic() - self.began, what))
        print(f"{self.events[-1][0]:6.0f} s  {what} ({self.answers} answers)", flush=True)

    def run(self) -> None:
        while not self.over.wait(1.0):
            status = json.loads(tokenmill(self._run_file, "status", "--json").stdout or "{}")
            if not status:
                continue
            now = time.monotonic() - self.began
            # Of a server that is down nobody asks how much it runs: what its worker has in flight is said there.
            in_flight = {worker["server"]: int(worker["in_flight"]) for worker in status["workers"]}
            self.seen.append((now, in_flight))
            self.states = {server["url"]: (server["state"], server["reason"]) for server in status["servers"]}
            self.answers = sum(dataset["committed"] for dataset in status["datasets"])
            for key in self._redis.scan_iter("rq:job:*", count=1000):
                self.failures = max(self.failures, int(self._redis.hget(key, "failures") or 0))


def tokenmill(run: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tokenmill", arguments[0], str(run), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def until(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.1)


def story(servers: list[Server], run_file: Path, watch: Watch) -> None:
    """What happens to the servers while the run goes on."""
    first, second, third = servers

    def more(count: int, what: str) -> None:
        target = watch.answers + count
        until(what, lambda: watch.answers >= target)

    def down(server: Server) -> bool:
        return watch.states.get(server.url, ("", ""))[0] == "down"

    def up(server: Server) -> bool:
        return watch.states.get(server.url, ("", ""))[0] == "up"

    more(20, "the first answers")
    first.kill()
    watch.say("first: kill -9")
    until("the fault to be noticed", lambda: down(first))
    watch.say(f"first is down ({watch.states[first.url][1]})")
    first.start()
    until("the first server", first.is_ready)
    watch.say("first serves again")
    until("it to be used", lambda: up(first))
    watch.say("first is up")
    more(20, "answers of both")
    second.send(signal.SIGTERM, whole=False)
    watch.say("second: SIGTERM")
    until("it to leave", second.has_ended)
    watch.say("second has left")
    third.start()
    until("the third server", third.is_ready)
    added = tokenmill(run_file, "servers", "add", third.url)
    assert added.returncode == 0, added.stderr
    watch.say("third: added")
    until("it to be used", lambda: up(third))
    watch.say("third is up")
    more(20, "answers of the third")
    first.send(signal.SIGSTOP)
    watch.say("first: SIGSTOP")
    until("the stall to be noticed", lambda: down(first))
    watch.say(f"first is down ({watch.states[first.url][1]})")
    more(10, "answers of the third alone")
    first.send(signal.SIGCONT)
    watch.say("first: SIGCONT")
    until("it to be used", lambda: up(first))
    watch.say("first is up")


def table(watch: Watch, servers: list[Server]) -> None:
    """Requests in flight by server, the mean between one event and the next."""
    print("\n| from | until | " + " | ".join(server.name for server in servers) + " |")
    print("|---|---|" + "---:|" * len(servers))
    ends = [*watch.events[1:], (watch.seen[-1][0] + 1, "the end")]
    for (since, what), (until_s, _) in zip(watch.events, ends, strict=True):
        seen = [in_flight for at, in_flight in watch.seen if since <= at < until_s]
        if seen:
            means = (sum(look.get(server.url, 0) for look in seen) / len(seen) for server in servers)
            print(f"| {what} | {until_s:.0f} s | " + " | ".join(f"{mean:.1f}" for mean in means) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", required=True, help="the command that serves on {port} of 127.0.0.1")
    parser.add_argument("--tokenizer", required=True, help="the served model's tokenizer")
    parser.add_argument("--prompts", required=True, help="a prompt file")
    parser.add_argument("--step", type=float, default=0.1, help="seconds that a server sleeps at each step")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="the cap; lowered once all has happened")
    options = parser.parse_args()
    print(_rig.machine())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-fleet-")))
        redis = stack.enter_context(EmbeddedRedis(folder))
        servers = [Server(name, options.serve, folder, options.step) for name in ("first", "second", "third")]
        for server in servers:
            stack.callback(server.kill)
        for server in servers[:2]:
            server.start()
        for server in servers[:2]:
            until(f"the {server.name} server", server.is_ready)
        run_file = folder / "run.toml"
        run_file.write_text(
            RUN.format(
                tokenizer=Path(options.tokenizer).resolve(),
                prompts=Path(options.prompts).resolve(),
                servers=json.dumps([server.url for server in servers[:2]]),
                tokens=options.tokens,
            )
        )
        os.environ["TOKENMILL_REDIS_URL"] = redis.url
        log = stack.enter_context((folder / "run.log").open("w+"))
        run = subprocess.Popen([sys.executable, "-m", "tokenmill", "run", str(run_file)], stdout=log, stderr=log)
        stack.callback(run.kill)
        watch = Watch(run_file, redis.url)
        watch.start()
        watch.say("the run begins, on first and second")
        story(servers, run_file, watch)
        tokenmill(run_file, "budget", "set", "A1", "0")
        code = run.wait(PATIENCE_S)
        watch.over.set()
        watch.join()
        watch.say("the cap is lowered to 0, and the run ends")
        table(watch, servers)
        verified = tokenmill(run_file, "verify")
        rejected = folder / "out" / "A1" / "rejected.jsonl"
        count = len(rejected.read_bytes().splitlines()) if rejected.exists() else 0
        print(f"\nrun: exit {code}; verify: exit {verified.returncode}; rejected: {count}; "
              f"most attempts that a prompt was charged: {watch.failures}")  # fmt: skip
        if code or verified.returncode or count or watch.failures:
            log.seek(0)
            raise SystemExit(f"{log.read()[-3000:]}\n{verified.stdout}")


if __name__ == "__main__":
    main()
