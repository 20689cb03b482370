"""What the benchmarks share: a Redis, a simulated server, a run published by hand, and a process' CPU time."""

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import redis
from rq.utils import now, utcformat
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from budget import connections, keys, runbook, verbs
from budget.ledger import Ledger
from budget.protocol import PROTOCOL
from tokenmill.embedded import EmbeddedRedis
from workers.contracts import DatasetConfig, Payload, RunConfig, job_id
from workers.encodings import encode_job_data
from workers.pieces import digest_of, lay_down

VOCABULARY = 20_000
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
TICKS = os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """The machine and the versions that a figure belongs to, in a line."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, {platform.system()}"


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def a_redis() -> Generator["tuple[redis.Redis, str]"]:
    """A server of its own, empty, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, EmbeddedRedis(Path(folder)) as server:
        yield connections.connect(server.url), server.url


def publish(
    connection: "redis.Redis",
    servers: list[str],
    *,
    datasets: int,
    concurrency: int,
    tokenizer: "Tokenizer | None" = None,
) -> RunConfig:
    """A run without files: what collector and producer would say of it, and of the tokenizer."""
    config = RunConfig(
        name="bench",
        output="/nowhere",
        tokenizer="none",
        datasets=[
            DatasetConfig(name=f"D{number}", prompts="none", max_tokens=None, sampling={"max_new_tokens": 4096})
            for number in range(datasets)
        ],
        servers=servers,
        concurrency=concurrency,
        admission="drain",
        max_waiting_results=10**9,
    )
    runbook.publish(
        connection,
        config=msgspec.json.encode(config),
        name=config.name,
        output_id="bench",
        protocol=PROTOCOL,
        fingerprints={},
        max_tokens_total=None,
        max_samples={},
    )
    runbook.apply_file_caps(connection, {dataset.name: None for dataset in config.datasets})
    packed = None if tokenizer is None else lay_down(tokenizer)
    pieces = ""
    if packed is not None:
        pieces = digest_of(packed)
        runbook.lay_down_pieces(connection, pieces, packed)
    runbook.note_facts(connection, {"tokenizer": json.dumps({"vocab_size": VOCABULARY, "pieces_digest": pieces})})
    client: Any = connection
    client.set(keys.READY, runbook.run_id(connection))
    return config


def enqueue(connection: "redis.Redis", config: RunConfig, dataset: str, count: int, *, start: int = 0) -> None:
    """Queue so many prompts of 300 tokens."""
    ledger = Ledger(connection)
    names = [entry.name for entry in config.datasets]
    for first in range(start, start + count, verbs.ENQUEUE_BATCH):
        jobs = [
            verbs.Queued(
                job=job_id(dataset, str(number)),
                data=encode_job_data(
                    Payload(dataset=dataset, id=str(number), input_ids=[number % VOCABULARY, *range(100, 400)])
                ),
                worst=4096,
                description=str(number),
            )
            for number in range(first, min(first + verbs.ENQUEUE_BATCH, start + count))
        ]
        ledger(
            verbs.enqueue(
                dataset=dataset, jobs=jobs, all_datasets=names, lease_ms=30_000, now=utcformat(now()), inputs=count
            )
        )


def a_tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer of short words in ASCII, as answers in English or code are, for simulated servers; in the folder.

    What a tokenizer with tokens of single bytes makes of random ids is not text: each second word of it is torn.
    """
    words = [f"{random.Random(number).getrandbits(24):x}"[: 2 + number % 5] for number in range(2 * VOCABULARY)]
    vocabulary = dict.fromkeys([chr(letter) for letter in range(33, 127)] + [f"Ġ{word}" for word in words])
    ids = {token: number for number, token in enumerate(list(vocabulary)[: VOCABULARY - 1])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": TEMPLATE})
    )
    return tokenizer


@contextmanager
def a_process(*arguments: str, redis_url: str) -> Generator["subprocess.Popen[bytes]"]:
    """`python ARGUMENTS`, ended by SIGTERM and then by force."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "TOKENMILL_REDIS_URL": redis_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(reached: Any, seconds: float = 300.0) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached within {seconds:.0f} s")
        time.sleep(0.02)
