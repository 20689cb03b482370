"""What Redis holds of a run: bytes for each queued prompt, each waiting result, and each prompt that is done.

Ids and words are drawn at random by how often words of a language occur, so they pack about as text does.
"""

import random
import secrets
from typing import Any

from _rig import a_redis, machine, publish
from rq.utils import now, utcformat

from budget import verbs
from budget.ledger import Ledger
from workers.contracts import Payload, Record, job_id
from workers.encodings import encode_job_data, encode_line, pack_lines

COUNT = 500
VOCABULARY = 32_000
SIZES = ((100, 500), (300, 1_500), (1_000, 4_000), (300, 16_000))
WORDS = [f"{random.Random(number).getrandbits(24):x}"[: 2 + number % 5] for number in range(VOCABULARY)]


def drawn(draw: random.Random, count: int) -> list[int]:
    """Token ids; the n-th most frequent one is about n times as rare as the first."""
    return [min(VOCABULARY - 1, int(VOCABULARY ** draw.random())) for _ in range(count)]


def text(ids: list[int]) -> str:
    return " ".join(WORDS[id] for id in ids)


def payload(draw: random.Random, number: int, tokens: int) -> Payload:
    ids = drawn(draw, tokens)
    messages: list[Any] = [{"role": "user", "content": text(ids)}]
    return Payload(dataset="D0", id=str(number), input_ids=ids, messages=messages)


def record(draw: random.Random, asked: Payload, tokens: int) -> bytes:
    ids = drawn(draw, tokens)
    made = Record(
        id=asked.id, dataset="D0", turn=1, turns=1, prompt_tokens=len(asked.input_ids), completion_tokens=tokens,
        finish_reason="stop", matched="2", input_ids=asked.input_ids, output_ids=ids, text=text(ids),
        messages=asked.messages, sampling={"temperature": 1.0, "max_new_tokens": 16_384}, model="model",
        weight_version="default", server="http://gpu0:30000", worker="host-1", attempt=1, rid=secrets.token_hex(16),
        latency_s=1.0, created_at=1.0,
    )  # fmt: skip
    return pack_lines([encode_line(made)])


def measure(connection: Any, prompt: int, answer: int, start: int) -> tuple[float, float, float]:
    """Bytes of Redis' memory for a queued prompt, a result that waits for the collector, and one that is done."""
    draw, ledger = random.Random(prompt + answer), Ledger(connection)

    def used() -> int:
        return int(connection.info("memory")["used_memory_dataset"])

    asked = [payload(draw, number, prompt) for number in range(start, start + COUNT)]
    empty = used()
    for first in range(0, COUNT, verbs.ENQUEUE_BATCH):
        jobs = [
            verbs.Queued(job=job_id("D0", held.id), data=encode_job_data(held), worst=16_384, description=held.id)
            for held in asked[first : first + verbs.ENQUEUE_BATCH]
        ]
        call = verbs.enqueue(dataset="D0", jobs=jobs, all_datasets=["D0"], lease_ms=30_000, now=utcformat(now()))
        ledger(call)
    queued = used()
    left = {job_id("D0", held.id): held for held in asked}
    while left:
        claimed = ledger(
            verbs.claim(
                worker="host-1", datasets=["D0"], all_datasets=["D0"], k=64, nonce=secrets.token_hex(8),
                admission="drain", reservations=[0], lease_ms=600_000, holds_suspect=False, max_waiting=10**9,
                now=utcformat(now()),
            )
        )  # fmt: skip
        for lease in claimed.leases:
            line = record(draw, left.pop(lease.job), answer)
            ledger(verbs.commit(lease=lease, worker="host-1", tokens=answer, truncated=False, line=line))
    waiting = used()
    connection.delete("results:D0")
    done = used()
    return (queued - empty) / COUNT, (waiting - done) / COUNT, (done - empty) / COUNT


def main() -> None:
    print(machine())
    print("| tokens of prompt, answer | queued prompt | waiting result | prompt that is done |\n|---|---|---|---|")
    for prompt, answer in SIZES:
        with a_redis() as (connection, _):
            publish(connection, [], datasets=1, concurrency=64)
            # The first time Redis also keeps the scripts, which are no prompt's.
            measure(connection, prompt, 1, start=0)
            queued, waiting, done = measure(connection, prompt, answer, start=COUNT)
        print(f"| {prompt:,}, {answer:,} | {queued / 1000:.1f} KB | {waiting / 1000:.1f} KB | {done:.0f} bytes |")


if __name__ == "__main__":
    main()
