"""What one Redis carries: jobs a second, its CPU and commands per job, and the longest time it was kept busy.

Three things against a Redis of its own, without any server:

    throughput  drivers in processes of their own claim batches of 64 and commit an answer of 1,400 tokens for
                each, over the path that a worker's calls take, as fast as they can. Printed are jobs a second,
                Redis' CPU per job (1 / that is what one Redis carries, whatever drives it), and commands per job.
    longest     the slowest call of each kind, by Redis' own slow log: `--queued` prompts are queued and all of
                them dropped, 1,024 leases renewed with all reservations revised, and a dead worker's taken back.
    idle        what a worker costs that has nothing to do: commands (those inside scripts included) and CPU time
                a second.

    python bench/ledger.py [--seconds 8] [--drivers 2] [--queued 100000] [--json FILE]
"""

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]
import redis
from rq.utils import now, utcformat

from budget import connections, keys, verbs
from budget.ledger import AsyncLedger, Ledger
from workers.contracts import Message, Record, RunConfig
from workers.encodings import encode_line, pack_lines
from workers.simulator.config import SimulatorConfig
from workers.simulator.process import SimulatorProcess

TOKENS = 1400
CLAIMED = 64
LEASED = 1024
IDLE_S = 20.0
SLOW_US = 1000
IDLE = (
    "from workers.async_worker import *; from budget import connections, environment as e; "
    "AsyncWorker(['D0'], connection=connections.connect(e.redis_url()), stay=True).work()"
)


def claim(config: RunConfig, worker: str, k: int) -> "verbs.Call[verbs.Claimed]":
    names = [dataset.name for dataset in config.datasets]
    return verbs.claim(
        worker=worker, datasets=names, all_datasets=names, k=k, nonce=secrets.token_hex(8), admission="drain",
        reservations=[0] * len(names), lease_ms=600_000, holds_suspect=False, max_waiting=10**9,
        now=utcformat(now()),
    )  # fmt: skip


def line() -> bytes:
    """A record of 1,400 tokens, packed as a worker packs it."""
    ids = [(number * number) % 31_991 for number in range(TOKENS)]
    messages: list[Message] = [{"role": "user", "content": " ".join(f"w{number % 997}" for number in range(300))}]
    made = Record(
        id="0", dataset="D0", turn=1, turns=1, prompt_tokens=300, completion_tokens=TOKENS, finish_reason="stop",
        matched="2", input_ids=ids[:300], output_ids=ids, text=" ".join(f"w{number}" for number in ids),
        messages=messages, sampling={"max_new_tokens": 4096}, model="model", weight_version="default",
        server="http://gpu0:30000", worker="w", attempt=1, rid=secrets.token_hex(16), latency_s=1.0, created_at=1.0,
    )  # fmt: skip
    return pack_lines([encode_line(made)])


async def drive(url: str, config: RunConfig, worker: str) -> int:
    """Claims and commits until the queue is empty; how many."""
    connection: Any = connections.connect_async(url, 1)
    ledger, packed, count = AsyncLedger(connection), line(), 0
    try:
        while leases := (await ledger(claim(config, worker, CLAIMED))).leases:
            calls = [
                verbs.commit(lease=lease, worker=worker, tokens=TOKENS, truncated=False, line=packed)
                for lease in leases
            ]
            count += len(await asyncio.gather(*map(ledger, calls)))
    finally:
        await connection.aclose()
    return count


def counted(connection: "redis.Redis") -> tuple[float, int]:
    """Redis' CPU time so far in seconds, and the commands it has run, those inside scripts included."""
    client: Any = connection
    cpu, stats = client.info("cpu"), client.info("stats")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"], stats["total_commands_processed"]


def throughput(connection: "redis.Redis", url: str, drivers: int, jobs: int) -> dict[str, float]:
    config = _rig.publish(connection, [], datasets=1, concurrency=CLAIMED)
    _rig.enqueue(connection, config, "D0", jobs)
    code = (
        "import asyncio, sys, msgspec, ledger; from workers.contracts import RunConfig; "
        "config = msgspec.json.decode(sys.argv[2], type=RunConfig); "
        "sys.stdin.readline(); print(asyncio.run(ledger.drive(sys.argv[1], config, sys.argv[3])))"
    )
    document = bytes(redis_get(connection, keys.RUN, "config")).decode()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, url, document, f"driver-{number}"],
            cwd=Path(__file__).parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(drivers)
    ]  # fmt: skip
    cpu, commands = counted(connection)
    began = time.monotonic()
    for driver in running:
        assert driver.stdin is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
    done = sum(int(driver.communicate()[0]) for driver in running)
    seconds = time.monotonic() - began
    cpu_after, commands_after = counted(connection)
    assert done == jobs, f"{done} of {jobs} were committed"
    return {
        "jobs_per_s": done / seconds,
        "redis_us_per_job": (cpu_after - cpu) / done * 1e6,
        "commands_per_job": (commands_after - commands) / done,
    }


def redis_get(connection: "redis.Redis", key: str, field: str) -> Any:
    client: Any = connection
    return client.hget(key, field)


def slowest(connection: "redis.Redis") -> float:
    """Milliseconds of the slowest call since this was last asked; 0 where none took a millisecond."""
    client: Any = connection
    worst = max((entry["duration"] for entry in client.slowlog_get(100_000)), default=0)
    client.slowlog_reset()
    return worst / 1000


def longest(connection: "redis.Redis", queued: int) -> Iterator[tuple[str, float]]:
    """The slowest call of each kind, in milliseconds."""
    client: Any = connection
    client.flushall()
    config = _rig.publish(connection, [], datasets=10, concurrency=CLAIMED)
    names = [dataset.name for dataset in config.datasets]
    ledger = Ledger(connection)
    client.config_set("slowlog-max-len", 100_000)
    client.config_set("slowlog-log-slower-than", SLOW_US)
    slowest(connection)
    for name in names:
        _rig.enqueue(connection, config, name, queued // len(names))
    yield f"queueing {queued:,} prompts, {verbs.ENQUEUE_BATCH} a call", slowest(connection)
    leases: list[verbs.Lease] = []
    while len(leases) < LEASED:
        leases += ledger(claim(config, "w", CLAIMED)).leases
    yield f"claiming {LEASED:,} of them, {CLAIMED} a call", slowest(connection)
    for turn in (1, 2):
        renewals = [
            verbs.Renewal(dataset=one.dataset, job=one.job, token=one.token, reserved=100 * turn, bucket=turn)
            for one in leases
        ]
        for first in range(0, LEASED, verbs.RENEW_BATCH):
            some = renewals[first : first + verbs.RENEW_BATCH]
            ledger(verbs.renew(worker="w", renewals=some, lease_ms=600_000))
    yield f"renewing {LEASED:,} leases, all of them revised, {verbs.RENEW_BATCH} a call", slowest(connection)
    packed = line()
    for lease in leases[: LEASED // 2]:
        ledger(verbs.commit(lease=lease, worker="w", tokens=TOKENS, truncated=False, line=packed))
    yield f"committing {LEASED // 2:,} answers", slowest(connection)
    while ledger(verbs.reclaim(datasets=names, lease_ms=600_000, dead=["w"])):
        pass
    yield f"taking back {LEASED // 2:,} jobs of a dead worker", slowest(connection)
    for name in names:
        client.hset(keys.budget(name), "cap", 0)
        while ledger(verbs.drop(dataset=name, all_datasets=names))[1] > 0:
            pass
    yield f"dropping all that is queued, {verbs.DROP_BATCH:,} a call", slowest(connection)


def sent_to(connection: "redis.Redis", seconds: float) -> int:
    """How many commands Redis is sent in that time; what scripts call is not among them."""
    client: Any = connection
    until = time.monotonic() + seconds
    sent = 0
    with client.monitor() as monitor:
        # It blocks between two commands; the worker's next one, soon after the time is over, ends it.
        while time.monotonic() < until:
            sent += monitor.next_command()["client_type"] != "lua"
    return sent


def idle(connection: "redis.Redis", url: str) -> dict[str, float]:
    """A worker without work: its commands and CPU time a second."""
    client: Any = connection
    client.flushall()
    server = SimulatorProcess.start(SimulatorConfig())
    _rig.publish(connection, [server.url], datasets=10, concurrency=CLAIMED)
    with ExitStack() as stack:
        stack.callback(server.stop, grace_s=0)
        process = stack.enter_context(_rig.a_process("-c", IDLE, redis_url=url))
        _rig.until(lambda: client.scard(keys.RQ_WORKERS) == 1)
        time.sleep(3)  # its start is over
        cpu, began = _rig.cpu_s(process.pid), time.monotonic()
        _, commands = counted(connection)
        sent = sent_to(connection, IDLE_S)
        seconds = time.monotonic() - began
        return {
            "sent_per_s": sent / seconds,
            "commands_per_s": (counted(connection)[1] - commands) / seconds,
            "cpu_share": (_rig.cpu_s(process.pid) - cpu) / seconds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, help="claimed and committed for the throughput")
    parser.add_argument("--drivers", type=int, default=2, help="processes that claim and commit")
    parser.add_argument("--queued", type=int, default=100_000, help="prompts queued and dropped")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(_rig.machine())
    with _rig.a_redis() as (connection, url):
        carried = throughput(connection, url, options.drivers, options.jobs)
        print(
            f"{carried['jobs_per_s']:,.0f} jobs/s claimed and committed by {options.drivers} drivers; "
            f"Redis' CPU {carried['redis_us_per_job']:.0f} us a job, so a core of it carries "
            f"{1e6 / carried['redis_us_per_job']:,.0f} jobs/s; "
            f"{carried['commands_per_job']:.1f} commands a job, those inside scripts included"
        )
        waits = dict(longest(connection, options.queued))
        print("| what | longest call |\n|---|---|")
        for what, milliseconds in waits.items():
            print(f"| {what} | {f'{milliseconds:.1f} ms' if milliseconds else 'under 1 ms'} |")
        nothing = idle(connection, url)
        print(
            f"an idle worker: {nothing['sent_per_s']:.1f} commands/s sent, {nothing['commands_per_s']:.1f} with those "
            f"inside scripts, {nothing['cpu_share']:.2%} of a core"
        )
    if options.json:
        document = {"machine": _rig.machine(), "throughput": carried, "longest_ms": waits, "idle": nothing}
        options.json.write_text(json.dumps(document))


if __name__ == "__main__":
    main()
