"""How full one run keeps eight servers, of which one is eight times as fast as another, and when one slows down.

Real processes: a Redis, simulated servers whose speeds are 1x to 8x, and `tokenmill work`-like workers: one
for all servers, or one for each. Counted are the tokens that the servers made in a window, as a share of what
they can make with all their slots busy; then again with the fastest slowed to a tenth in mid-run.

    python bench/fleet.py [--seconds 20] [--slots 16] [--each]
"""

import argparse
import json
import time
import urllib.request
from contextlib import ExitStack
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]

from budget import keys
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

SPEEDS = range(1, 9)
TOKENS = 300
# Seconds a token at speed 1, whatever runs beside it: a full server is slots / STEP_S tokens a second.
STEP_S = 0.04
WORK = (
    "from workers.async_worker import *; from budget import connections, environment as e; "
    "AsyncWorker(['D0'], connection=connections.connect(e.redis_url()), stay=True, servers={servers!r}).work()"
)


def call(url: str, body: Any = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def made(servers: list[SimulatorProcess]) -> list[tuple[float, int]]:
    """When each was asked, and how many tokens it has made until then."""
    return [(time.monotonic(), call(f"{server.url}/simulator/state")["generated_tokens"]) for server in servers]


def shares(servers: list[SimulatorProcess], tops: list[float], seconds: float) -> tuple[float, list[float], int]:
    """The share of the sum of the top speeds, of each server's own, and the longest queue that was seen in any."""
    before, deadline, waiting = made(servers), time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        waiting = max(waiting, *(call(f"{server.url}/simulator/state")["waiting"] for server in servers))
        time.sleep(0.5)
    after = made(servers)
    rates = [(last - first) / (end - begin) for (begin, first), (end, last) in zip(before, after, strict=True)]
    each = [rate / top for rate, top in zip(rates, tops, strict=True)]
    return sum(rates) / sum(tops), each, waiting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each window")
    parser.add_argument("--slots", type=int, default=16, help="of each server")
    parser.add_argument("--each", action="store_true", help="a worker for each server, instead of one for all")
    options = parser.parse_args()
    slots: int = options.slots
    with ExitStack() as stack:
        connection, url = stack.enter_context(_rig.a_redis())
        client: Any = connection
        servers: list[SimulatorProcess] = []
        for speed in SPEEDS:
            config = SimulatorConfig(
                max_running_requests=slots,
                step_s_base=STEP_S / speed,
                step_s_per_request=0.0,
                lengths={"*": LengthSpec(shape="uniform", mean=TOKENS, sigma=0.5)},
            )
            servers.append(SimulatorProcess.start(config))
            stack.callback(servers[-1].stop, grace_s=0)
        urls = [server.url for server in servers]
        tops = [slots * speed / STEP_S for speed in SPEEDS]
        config = _rig.publish(connection, urls, datasets=1, concurrency=4 * slots * len(servers))
        needed = round(sum(tops) / TOKENS * (3 * options.seconds + 60))
        _rig.enqueue(connection, config, "D0", needed)
        for group in [[one] for one in urls] if options.each else [urls]:
            stack.enter_context(_rig.a_process("-c", WORK.format(servers=group), redis_url=url))
        _rig.until(lambda: int(client.hlen(keys.done("D0"))) > 4 * slots * len(servers))
        workers = "one worker each" if options.each else "one worker"
        print(f"{_rig.machine()}; {len(servers)} servers of {slots} slots, {workers}")
        print("| | share of all top speeds | of each server | longest queue |")
        print("|---|---|---|---|")
        for label, slowed in (("speeds 1x to 8x", False), ("the fastest slowed to a tenth", True)):
            if slowed:
                extra = STEP_S / SPEEDS[-1] * 9
                call(f"{urls[-1]}/slow_down", {"forward_sleep_time": extra})
                tops[-1] /= 10
            share, each, waiting = shares(servers, tops, options.seconds)
            print(f"| {label} | {share:.1%} | {', '.join(f'{one:.0%}' for one in each)} | {waiting} |", flush=True)


if __name__ == "__main__":
    main()
