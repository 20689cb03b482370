"""What Redis holds of a run: bytes for each queued prompt, each waiting result, and each prompt that is done.

A result is measured as it travels while few wait, with its text, and as it does once they pile up, where a text that
its ids tell stays behind. Ids are drawn at random by how often words of a language occur; with --tokenizer and
--texts they are those of real texts, JSON Lines or JSON whose strings are taken, cut to the lengths of the table.

    python bench/memory.py [--tokenizer FOLDER --texts FILE ...] [--count 500] [--size PROMPT ANSWER]
"""

import argparse
import json
import random
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from _rig import a_redis, a_tokenizer, machine, publish
from rq.utils import now, utcformat
from tokenizers import Tokenizer

from budget import verbs
from budget.ledger import Ledger
from workers.contracts import Payload, Record, job_id
from workers.encodings import encode_job_data, pack_records
from workers.pieces import Pieces, lay_down

SIZES = ((100, 500), (300, 1_500), (300, 4_000), (1_000, 4_000), (300, 16_000))


class Words:
    """Where prompts and answers come from."""

    def __init__(self, tokenizer: Tokenizer, draw: Callable[[int], list[int]]) -> None:
        self._tokenizer = tokenizer
        self.draw = draw

    def text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def drawn(tokenizer: Tokenizer) -> Words:
    """The n-th most frequent id is about n times as rare as the first."""
    dice, first = random.Random(0), 94
    size = tokenizer.get_vocab_size() - 1 - first
    return Words(tokenizer, lambda count: [first + min(size - 1, int(size ** dice.random())) for _ in range(count)])


def of_texts(tokenizer: Tokenizer, files: list[Path]) -> Words:
    """One text after the other, and again from the beginning at their end, a little later in it each time."""
    ids: list[int] = []
    for file in files:
        ids += tokenizer.encode("\n".join(_strings(_rows(file))), add_special_tokens=False).ids
    at = 0

    def cut(count: int) -> list[int]:
        nonlocal at
        if at + count > len(ids):
            at = (at + 7) % max(1, len(ids) - count)
        at += count
        return ids[at - count : at]

    return Words(tokenizer, cut)


def _rows(file: Path) -> Any:
    text = file.read_text("utf-8")
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(list(cast(dict[str, Any], value).values()))
    elif isinstance(value, list):
        for one in cast(list[Any], value):
            yield from _strings(one)


def payload(words: Words, number: int, tokens: int) -> Payload:
    ids = words.draw(tokens)
    messages: list[Any] = [{"role": "user", "content": words.text(ids)}]
    return Payload(dataset="D0", id=str(number), input_ids=ids, messages=messages)


def record(words: Words, asked: Payload, tokens: int) -> Record:
    ids = words.draw(tokens)
    return Record(
        id=asked.id, dataset="D0", turn=1, turns=1, prompt_tokens=len(asked.input_ids), completion_tokens=tokens,
        finish_reason="stop", matched="2", input_ids=asked.input_ids, output_ids=ids, text=words.text(ids),
        messages=asked.messages, sampling={"temperature": 1.0, "max_new_tokens": 16_384}, model="model",
        weight_version="default", server="http://gpu0:30000", worker="host-1", attempt=1, rid=secrets.token_hex(16),
        latency_s=1.0, created_at=1.0,
    )  # fmt: skip


def measure(
    connection: Any, words: Words, count: int, prompt: int, answer: int, start: int, pieces: Pieces | None
) -> tuple[float, float, float]:
    """Bytes of Redis' memory for a queued prompt, a result that waits for the collector, and one that is done."""
    ledger = Ledger(connection)

    def used() -> int:
        return int(connection.info("memory")["used_memory_dataset"])

    asked = [payload(words, number, prompt) for number in range(start, start + count)]
    empty = used()
    for first in range(0, count, verbs.ENQUEUE_BATCH):
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
            line, _ = pack_records([record(words, left.pop(lease.job), answer)], pieces)
            ledger(verbs.commit(lease=lease, worker="host-1", tokens=answer, truncated=False, line=line))
    waiting = used()
    connection.delete("results:D0")
    done = used()
    return (queued - empty) / count, (waiting - done) / count, (done - empty) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a folder with tokenizer.json")
    parser.add_argument("--texts", type=Path, nargs="+", default=[])
    parser.add_argument("--count", type=int, default=500, help="of each")
    parser.add_argument("--size", type=int, nargs=2, metavar=("PROMPT", "ANSWER"), help="only these, in tokens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = a_tokenizer(Path(folder))
    if options.tokenizer:
        tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    words = of_texts(tokenizer, options.texts) if options.texts else drawn(tokenizer)
    packed = lay_down(tokenizer)
    pieces = None if packed is None else Pieces(packed)
    print(machine())
    print("| tokens of prompt, answer | queued prompt | waiting result | its text left out | prompt that is done |")
    print("|---|---|---|---|---|")
    count = options.count
    for prompt, answer in [options.size] if options.size else SIZES:
        with a_redis() as (connection, _):
            publish(connection, [], datasets=1, concurrency=64)
            # The first time Redis also keeps the scripts, which are no prompt's.
            measure(connection, words, 500, prompt, 1, 0, None)
            queued, waiting, done = measure(connection, words, count, prompt, answer, 500, None)
            _, told, _ = measure(connection, words, count, prompt, answer, 500 + count, pieces)
        kilobytes = " | ".join(f"{size / 1000:.1f} KB" for size in (queued, waiting, told))
        print(f"| {prompt:,}, {answer:,} | {kilobytes} | {done:.0f} bytes |")


if __name__ == "__main__":
    main()
