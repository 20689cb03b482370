"""The producer: prompts of ready token ids into RQ queues, the time to its first job, and its memory.

Three figures, each of processes of their own against a Redis of its own:

- a file of rows of 300 token ids goes through the producer's own steps (read, checked, compared with Redis,
  packed as RQ's jobs, queued by the ledger). Told are the prompts per second of wall time, and per second of
  CPU of the producer's process with Redis' beside it. What was queued is taken out as a worker would, outside
  of what is timed; some of it is read by RQ's own `Job.fetch` first.
- `tokenmill push` is started, until Redis shows the first job in the queue, or, where all rows but a hundred
  were answered before, those hundred;
- the same steps over ever more rows: the process' peak memory.

    python bench/push.py [--rows 50000] [--large 200000] [--repeats 3] [--json FILE]

`--large 1000000` is the full size of the last figure, in some minutes.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]
import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from budget import connections, garbage, keys, runbook, snapshot
from budget.ledger import Ledger
from budget.protocol import PROTOCOL
from producer.feed import Feed
from producer.files import PromptSource
from producer.prompt_set import FilePrompts
from tokenmill import runfile
from workers.contracts import JOB_FUNCTION, DatasetConfig, RunConfig, fingerprint, job_id

TOKENIZER = Path(__file__).parents[1] / "examples" / "tokenizer"
IDS = 300
VOCABULARY = 151_936
GOAL_RATE = 20_000
GOAL_FIRST_S = 2.0
FIRST_ROWS = (1_000, 10_000, 100_000)
RESUMED_ROWS, LEFT, GOAL_RESUME_S = 88_000, 100, 10.0
# As many as the producer would hold ready for 16 servers of 256 slots.
SLOTS = 16 * 256
LOOK_AT = 20
RQ_JOBS = 5_000


def generate(path: Path, rows: int, ids: int, vocabulary: int = VOCABULARY) -> None:
    """Rows with ids of their own and that many token ids, as a tokenizer's own output is saved."""
    draw = random.Random(0)
    pool = [str(draw.randrange(vocabulary)) for _ in range(100_000)]
    with path.open("w", encoding="ascii") as file:
        for number in range(rows):
            at = draw.randrange(len(pool) - ids)
            file.write(f'{{"id": "row-{number}", "input_ids": [{", ".join(pool[at : at + ids])}]}}\n')


class _Bounds:
    """What ready token ids need of a tokenizer."""

    vocab_size = VOCABULARY
    context_length = 32_768


class _Shelf:
    """The producer's library for one file of ready ids."""

    def open(self, dataset: DatasetConfig) -> FilePrompts:
        bounds: Any = _Bounds()
        return FilePrompts(dataset, PromptSource.open(dataset.prompts), lambda: bounds)


def a_run(connection: "redis.Redis", config: RunConfig) -> None:
    """Publish a run as its collector would, and call its files read."""
    names = [dataset.name for dataset in config.datasets]
    runbook.publish(
        connection,
        config=b"{}",
        name=config.name,
        output_id="bench",
        protocol=PROTOCOL,
        fingerprints={name: fingerprint(config, name) for name in names},
        max_tokens_total=None,
        max_samples={},
    )
    runbook.apply_file_caps(connection, dict.fromkeys(names))
    client: Any = connection
    client.set(keys.READY, runbook.run_id(connection))


def feed_all(url: str, prompts: str, concurrency: int) -> dict[str, Any]:
    """Queue a whole file; run in a process of its own, which tells what it cost."""
    connection = connections.connect(url)
    client: Any = connection
    dataset = DatasetConfig(name="D0", prompts=prompts, max_tokens=None, sampling={"max_new_tokens": 4096})
    config = RunConfig(name="bench", output="/nowhere", tokenizer="none", datasets=[dataset], concurrency=concurrency)
    a_run(connection, config)
    redis_pid = int(client.info("server")["process_id"])
    shelf: Any = _Shelf()
    garbage.search_less()  # as `tokenmill push` does
    before, began = time.process_time(), time.perf_counter()
    source = PromptSource.open(prompts)
    opening = {"opening_cpu_s": time.process_time() - before, "opening_s": time.perf_counter() - began}
    rows = len(source)
    del source
    feed = Feed(Ledger(connection), config, "D0", shelf)
    feed.step(snapshot.read(connection, ["D0"]))  # opens the file, and queues the first few
    queued, taken = int(client.llen(keys.rq_queue("D0"))), 0
    first = queued
    cpu = wall = redis_cpu = 0.0
    while queued < rows:
        c, w, r = time.process_time(), time.perf_counter(), _rig.cpu_s(redis_pid)
        while client.llen(keys.rq_queue("D0")) < min(rows - taken, 2 * concurrency):
            feed.step(snapshot.read(connection, ["D0"]))
        cpu += time.process_time() - c
        wall += time.perf_counter() - w
        redis_cpu += _rig.cpu_s(redis_pid) - r
        in_queue = int(client.llen(keys.rq_queue("D0")))
        queued = taken + in_queue
        if not taken:
            look(connection)
        taken += take_out(client)
    return {
        "rows": rows,
        **opening,
        "per_s": (queued - first) / wall,
        "producer_us": cpu * 1e6 / (queued - first),
        "redis_us": redis_cpu * 1e6 / (queued - first),
        "peak_mib": peak_mib(),
        "rq_us": rq_us(connection, prompts),
    }


def look(connection: "redis.Redis") -> None:
    """Some of the jobs as RQ itself reads them."""
    queue = Queue("D0", connection=connection, serializer=JSONSerializer)
    ids = queue.get_job_ids(0, LOOK_AT)
    for job in Job.fetch_many(ids, connection, serializer=JSONSerializer):
        assert job is not None and job.get_status(refresh=False) == "queued" and job.origin == "D0"
        assert job.func_name == JOB_FUNCTION and job.kwargs["input_ids"]


def rq_us(connection: "redis.Redis", prompts: str) -> float:
    """CPU microseconds a job of RQ's own `enqueue_many` in this process, which is given ready call arguments."""
    queue = Queue("stock", connection=connection, serializer=JSONSerializer)
    with Path(prompts).open("rb") as file:
        rows = [json.loads(line) for line in islice(file, RQ_JOBS)]
    before = time.process_time()
    for at in range(0, len(rows), 500):
        datas = [Queue.prepare_data(JOB_FUNCTION, kwargs=row, result_ttl=0) for row in rows[at : at + 500]]
        queue.enqueue_many(datas)
    return (time.process_time() - before) * 1e6 / len(rows)


def take_out(client: Any) -> int:
    """Everything that is queued, with its hashes, as if workers had taken and ended it."""
    ended: list[bytes] = client.lpop(keys.rq_queue("D0"), 1_000_000) or []
    for at in range(0, len(ended), 1000):
        part = ended[at : at + 1000]
        with client.pipeline(transaction=False) as pipe:
            pipe.hset(keys.done("D0"), mapping=dict.fromkeys(part, 1))
            pipe.unlink(*(keys.rq_job(job.decode()) for job in part))
            pipe.execute()
    return len(ended)


def peak_mib() -> float:
    """The most memory that this process has held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def feeding(folder: Path, rows: int, ids: int = IDS) -> dict[str, Any]:
    path = folder / f"{rows}-{ids}.jsonl"
    if not path.exists():
        generate(path, rows, ids)
    with _rig.a_redis() as (_, url):
        code = f"import json, push; print(json.dumps(push.feed_all({url!r}, {str(path)!r}, {SLOTS})))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    return json.loads(done.stdout)


def first_job(folder: Path, rows: int, left: int = 0) -> dict[str, float]:
    """From the start of `tokenmill push` to the first job in its queue: seconds, and those of its CPU.

    Args:
        left: so many rows have no answer yet, and the time is that until all of these are queued.
    """
    path = folder / f"{rows}.jsonl"
    if not path.exists():
        generate(path, rows, IDS, vocabulary=1000)
    run = folder / "run.toml"
    run.write_text(
        f'[run]\nname = "bench"\noutput = "out"\n[model]\ntokenizer = {json.dumps(str(TOKENIZER))}\n'
        f'[sglang]\nservers = ["http://nowhere:1"]\n'
        f"[sampling]\nmax_new_tokens = 4096\n"
        f'[[dataset]]\nname = "D0"\nmax_tokens = "none"\nprompts = {json.dumps(str(path))}\n'
    )
    with _rig.a_redis() as (connection, url):
        client: Any = connection
        a_run(connection, runfile.load(run).config)
        answered = [job_id("D0", f"row-{number}") for number in range(left, rows)] if left else []
        for at in range(0, len(answered), 1000):
            client.hset(keys.done("D0"), mapping=dict.fromkeys(answered[at : at + 1000], 1))
        began = time.perf_counter()
        with _rig.a_process("-m", "tokenmill", "push", str(run), redis_url=url) as process:
            _rig.until(lambda: client.llen(keys.rq_queue("D0")) >= max(1, left))
            return {"wall_s": time.perf_counter() - began, "cpu_s": _rig.cpu_s(process.pid)}


def main() -> None:
    parser = argparse.ArgumentParser(description="The producer")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--large", type=int, default=200_000, help="0 leaves the memory over many rows out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{_rig.machine()}; load {os.getloadavg()[0]:.1f}; medians of {options.repeats}")
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as name:
        folder = Path(name)
        rates = [feeding(folder, options.rows) for _ in range(options.repeats)]
        rate = {key: statistics.median(run[key] for run in rates) for key in rates[0]}
        print(
            f"{options.rows:,} prompts of {IDS} ids: {rate['per_s']:,.0f} a second (goal {GOAL_RATE:,}); CPU a prompt: "
            f"producer {rate['producer_us']:.1f} µs, Redis {rate['redis_us']:.1f} µs; RQ's enqueue_many, of ready "
            f"arguments, {rate['rq_us']:.1f} µs; before them, one look through the file: "
            f"{rate['opening_cpu_s'] * 1e6 / options.rows:.1f} µs a row"
        )
        firsts: dict[int, dict[str, float]] = {}
        for rows in FIRST_ROWS:
            starts = [first_job(folder, rows) for _ in range(options.repeats)]
            firsts[rows] = {key: statistics.median(start[key] for start in starts) for key in starts[0]}
            print(
                f"first job of {rows:,} rows: {firsts[rows]['wall_s']:.1f} s after the start (goal {GOAL_FIRST_S} s), "
                f"{firsts[rows]['cpu_s']:.1f} s of it CPU of the producer"
            )
        resumed = [first_job(folder, RESUMED_ROWS, LEFT) for _ in range(options.repeats)]
        print(
            f"{RESUMED_ROWS:,} rows of which {RESUMED_ROWS - LEFT:,} are answered, until the {LEFT} others are queued: "
            f"{statistics.median(run['wall_s'] for run in resumed):.1f} s (goal {GOAL_RESUME_S:g} s)"
        )
        larger = [feeding(folder, rows, 30) for rows in (options.large // 10, options.large) if rows]
        for run in larger:
            print(f"{run['rows']:,} rows of 30 ids: peak {run['peak_mib']} MiB")
    if options.json:
        options.json.write_text(
            json.dumps(
                {"machine": _rig.machine(), "rate": rates, "first_job_s": firsts, "resume": resumed, "large": larger}
            )
        )


if __name__ == "__main__":
    main()
