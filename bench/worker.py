"""CPU per completed job: our worker, a bare httpx client on the same transport, stock RQ workers.

All in one run against one simulated server whose answers take a second and are 17 KB on average, a half
more or less so that they end at all times, at 64, 256 and 1,024 requests in flight; stock workers, who have one in
flight each, are eight, and ask with one httpx client a process. Printed are CPU milliseconds per job of the client
processes alone, work-horses included (user and system), and ratios; the shares of Redis and of the server are not
in them.

    python bench/worker.py [--repeats 3] [--seconds 8] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _others_processes as processes  # pyright: ignore[reportMissingImports]
import _rig  # pyright: ignore[reportMissingImports]
import aiohttp
import httpx
import httpx_aiohttp
import redis
from rq import Queue
from tokenizers import Tokenizer

from budget import keys
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

IN_FLIGHT = (64, 256, 1024)
# So many ids and their text are about 17 KB of JSON.
TOKENS = 1450
SECONDS_AN_ANSWER = 1.0
STOCK = ("SimpleWorker", "Worker")
STOCK_WORKERS, STOCK_JOBS = 8, 96
STOCK_AGAINST = 256
# Some 300 tokens, as the others are asked.
PROMPT = "what the tokens of an answer are worth, in short sentences " * 5


def simulator(tokenizer: Path) -> SimulatorProcess:
    return SimulatorProcess.start(
        SimulatorConfig(
            tokenizer=str(tokenizer),
            max_running_requests=4096,
            step_s_base=SECONDS_AN_ANSWER / TOKENS,
            step_s_per_request=0.0,
            lengths={"*": LengthSpec(shape="uniform", mean=TOKENS, sigma=0.5)},
        )
    )


def ours(
    connection: "redis.Redis", url: str, server: str, in_flight: int, seconds: float, tokenizer: Tokenizer
) -> float:
    """CPU milliseconds per job of one `tokenmill work` process, after it has filled its slots."""
    client: Any = connection
    client.flushall()
    config = _rig.publish(connection, [server], datasets=1, concurrency=in_flight, tokenizer=tokenizer)
    jobs = int(in_flight * (seconds / SECONDS_AN_ANSWER + 4))
    _rig.enqueue(connection, config, "D0", jobs)
    arguments = ["-c", "from workers.async_worker import *; from budget import connections, environment as e; "
                 "AsyncWorker(['D0'], connection=connections.connect(e.redis_url()), stay=True).work()"]  # fmt: skip
    with _rig.a_process(*arguments, redis_url=url) as process:
        committed = lambda: int(client.hlen(keys.done("D0")))  # noqa: E731 - read at two moments
        _rig.until(lambda: committed() >= in_flight)
        before, cpu, began = committed(), _rig.cpu_s(process.pid), time.monotonic()
        _rig.until(lambda: time.monotonic() - began > seconds or committed() > jobs - in_flight)
        done, used = committed() - before, _rig.cpu_s(process.pid) - cpu
        return used * 1000 / done


async def bare_client(server: str, in_flight: int, seconds: float) -> float:
    transport = httpx_aiohttp.AiohttpTransport(
        client=lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0))
    )
    done = 0
    going_on = True
    async with httpx.AsyncClient(transport=transport, timeout=60.0, trust_env=False) as client:

        async def slot(number: int) -> None:
            nonlocal done
            turn = 0
            while going_on:
                turn += 1
                ids = [(number * 7919 + turn) % _rig.VOCABULARY, *range(100, 400)]
                body = json.dumps({"input_ids": ids, "sampling_params": {"max_new_tokens": 4096}}).encode()
                answer = await client.post(
                    f"{server}/generate", content=body, headers={"content-type": "application/json"}
                )
                assert answer.status_code == 200 and len(answer.content) > 5_000
                done += 1

        slots = [asyncio.create_task(slot(number)) for number in range(in_flight)]
        while done < in_flight and not any(slot.done() for slot in slots):  # noqa: ASYNC110 - a figure's start
            await asyncio.sleep(0.02)
        before, cpu = done, time.process_time()
        await asyncio.sleep(seconds)
        figure = (time.process_time() - cpu) * 1000 / (done - before)
        going_on = False
        await asyncio.gather(*slots)
    return figure


def bare(server: str, in_flight: int, seconds: float) -> float:
    """CPU milliseconds per request of an httpx client on aiohttp's transport that does nothing else."""
    code = f"import worker; print(worker.asyncio.run(worker.bare_client({server!r}, {in_flight}, {seconds})))"
    here = Path(__file__).parent
    printed = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    return float(printed.stdout)


def stock(connection: "redis.Redis", url: str, server: str, kind: str) -> float:
    """CPU milliseconds per job of stock RQ workers with one request in flight each, when each has had one already."""
    client: Any = connection
    client.flushall()
    command = [sys.executable, "-m", "rq.cli", "worker", "-c", "_others_rq", "-w", f"rq.worker.{kind}"]
    command += ["-q", "--url", url, "stock"]
    queue = Queue("stock", connection=connection)

    def asked(jobs: int) -> None:
        wanted = len(queue.finished_job_registry) + jobs
        for number in range(jobs):
            messages = [{"role": "user", "content": f"{number} {PROMPT}"}]
            queue.enqueue("_others_rq.ask", str(number), messages, server, os.devnull, 4096, 10**12)
        _rig.until(lambda: len(queue.finished_job_registry) >= wanted)

    workers = [subprocess.Popen(command, cwd=Path(__file__).parent) for _ in range(STOCK_WORKERS)]
    try:
        asked(STOCK_WORKERS)
        before = processes.cpu_s(worker.pid for worker in workers)
        asked(STOCK_JOBS)
        return (processes.cpu_s(worker.pid for worker in workers) - before) * 1000 / STOCK_JOBS
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[int, dict[str, list[float]]] = {number: {"ours": [], "bare": []} for number in IN_FLIGHT}
    stocks: dict[str, list[float]] = {kind: [] for kind in STOCK}
    with _rig.a_redis() as (connection, url), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-bench-")))
        tokenizer = _rig.a_tokenizer(folder)
        server = simulator(folder)
        stack.callback(server.stop)
        for _ in range(options.repeats):
            for number in IN_FLIGHT:
                rows[number]["bare"].append(bare(server.url, number, options.seconds))
                rows[number]["ours"].append(ours(connection, url, server.url, number, options.seconds, tokenizer))
            for kind, found in stocks.items():
                found.append(stock(connection, url, server.url, kind))
    print(f"{_rig.machine()}; medians of {options.repeats}, CPU ms per job of the client process")
    print("| in flight | bare httpx + aiohttp | tokenmill work | ratio | ratio, range |")
    print("|---|---|---|---|---|")
    for number, row in rows.items():
        print(
            f"| {number} | {statistics.median(row['bare']):.2f} | {statistics.median(row['ours']):.2f} "
            f"| {spread(row['ours'], row['bare'])} |"
        )
    print(f"| stock RQ | CPU ms | times ours at {STOCK_AGAINST} | range |\n|---|---|---|---|")
    for kind, found in stocks.items():
        print(f"| {kind} | {statistics.median(found):.1f} | {spread(found, rows[STOCK_AGAINST]['ours'])} |")
    if options.json:
        options.json.write_text(json.dumps({"machine": _rig.machine(), "rows": rows, "stock": stocks}))


def spread(some: list[float], others: list[float]) -> str:
    """The ratios of each repeat: their median, and their range."""
    ratios = [one / other for one, other in zip(some, others, strict=True)]
    return f"{statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f}"


if __name__ == "__main__":
    main()
