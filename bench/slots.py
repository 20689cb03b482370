"""Are the slots full? Four worker processes, four simulated servers, 600 slots, answers of some seconds.

By the servers' own logs: how many of the slots were generating, on average, from the first 2 % to the last 2 %
of the time in which there were prompts to send; and for how long a slot that fell free stayed so, until the
server had the next request (answers that end one after another, and the requests that come after them, are
paired in that order). One cap or none makes no difference here: all prompts of a dataset are wanted.

    python bench/slots.py [--slots 600] [--seconds 40] [--answer 4.0] [--json FILE]
"""

import argparse
import json
import statistics
import tempfile
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import _rig  # pyright: ignore[reportMissingImports]
import msgspec

from budget import keys
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

SERVERS = WORKERS = 4
TOKENS = 400
WORK = (
    "from workers.async_worker import *; from budget import connections, environment as e; "
    "AsyncWorker(['D0'], connection=connections.connect(e.redis_url()), stay=True).work()"
)


class Event(msgspec.Struct):
    event: str
    at: float


class Seen(NamedTuple):
    """One server's window: slot-seconds that were busy, and the seconds that each freed slot stayed free."""

    busy_s: float
    gaps_s: list[float]


def events(log: Path) -> list[Event]:
    return [msgspec.json.decode(line, type=Event) for line in log.read_bytes().splitlines()]


def looked_at(log: list[Event], slots: int, begin: float, end: float) -> Seen:
    busy, gaps, running, last = 0.0, list[float](), 0, begin
    freed: deque[float] = deque()
    for event in log:
        moment = min(max(event.at, begin), end)
        busy += min(running, slots) * (moment - last)
        last = moment
        if event.event == "received":
            running += 1
            if freed and begin <= event.at <= end:
                gaps.append(event.at - freed.popleft())
            if running >= slots:  # none is free any more
                freed.clear()
        else:
            running -= 1
            if begin <= event.at <= end:
                freed.append(event.at)
    return Seen(busy + min(running, slots) * (end - last), gaps)


def run(slots: int, seconds: float, answer_s: float) -> dict[str, Any]:
    each, jobs = slots // SERVERS, round(slots * (seconds / answer_s + 2))
    with ExitStack() as stack:
        connection, url = stack.enter_context(_rig.a_redis())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs, servers = [folder / f"{number}.jsonl" for number in range(SERVERS)], list[SimulatorProcess]()
        for log in logs:
            config = SimulatorConfig(
                max_running_requests=each,
                step_s_base=answer_s / TOKENS,
                step_s_per_request=0.0,
                lengths={"*": LengthSpec(shape="uniform", mean=TOKENS, sigma=0.6)},
                log_path=str(log),
            )
            servers.append(SimulatorProcess.start(config))
            stack.callback(servers[-1].stop, grace_s=0)
        urls = [server.url for server in servers]
        config = _rig.publish(connection, urls, datasets=1, concurrency=slots // WORKERS)
        _rig.enqueue(connection, config, "D0", jobs)
        client: Any = connection
        for _ in range(WORKERS):
            stack.enter_context(_rig.a_process("-c", WORK, redis_url=url))
        _rig.until(lambda: int(client.hlen(keys.done("D0"))) == jobs)
        return figures([events(log) for log in logs], each)


def figures(logs: list[list[Event]], each: int) -> dict[str, Any]:
    received = sorted(event.at for log in logs for event in log if event.event == "received")
    # The workers' own probes come first, and their starts are not what is measured.
    filled = received[each * SERVERS]
    begin, end = filled + 0.02 * (received[-1] - filled), received[-1] - 0.02 * (received[-1] - filled)
    seen = [looked_at(log, each, begin, end) for log in logs]
    gaps = sorted(gap for one in seen for gap in one.gaps_s)
    return {
        "seconds": end - begin,
        "occupancy": sum(one.busy_s for one in seen) / (each * SERVERS * (end - begin)),
        "gap_ms": statistics.median(gaps) * 1000,
        "gap_p99_ms": gaps[int(len(gaps) * 0.99)] * 1000,
        "requests": len(gaps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=600, help="of all servers together")
    parser.add_argument("--seconds", type=float, default=40.0, help="about the length of the run")
    parser.add_argument("--answer", type=float, default=4.0, help="seconds that an answer takes, on average")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = run(options.slots, options.seconds, options.answer)
    print(
        f"{_rig.machine()}; {WORKERS} workers, {SERVERS} servers, {options.slots} slots, answers of {options.answer} s"
    )
    print(
        f"{found['occupancy']:.2%} of the slots busy over {found['seconds']:.0f} s ({found['requests']:,} answers); "
        f"a slot that fell free had its next request after {found['gap_ms']:.0f} ms (median; "
        f"{found['gap_p99_ms']:.0f} ms for one in a hundred)"
    )
    if options.json:
        options.json.write_text(json.dumps({"machine": _rig.machine(), **found}))


if __name__ == "__main__":
    main()
