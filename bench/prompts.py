"""Prompt files into payloads: our path against the bare tokenizer on the same texts, and memory at a million rows.

The first figure is a ratio in one process and one thread: rows of a folder's prompt files go through
`to_payload` (parsed, mapped, rendered, encoded, checked), and the texts that the template made of the same
rows go through the bare tokenizer's `encode`; the two alternate, and the least CPU time of each counts. The
second generates a file of a million rows in a temporary folder and reads it in a process of its own: the
time to the first row (the pass that indexes the file), to the last, and the peak of its resident memory.

    python bench/prompts.py [--prompts GLOB] [--tokenizer FOLDER] [--repeats 3] [--rows 1000000] [--json FILE]
"""

import argparse
import gc
import glob
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]

from producer.defects import Defect
from producer.errors import PromptsProblem
from producer.files import PromptSource, Row
from producer.prompts import to_payload
from producer.rows import to_prompt
from workers.chat import ChatTokenizer
from workers.contracts import DatasetConfig, Payload

EXAMPLES = Path(__file__).parents[1] / "examples"
DATASET = DatasetConfig(name="bench", prompts="", max_tokens=None, sampling={"max_new_tokens": 4096})
GOAL = 0.80


def rows_of(pattern: str) -> list[Row]:
    """The rows of all prompt files that a pattern names, each file a set of its own."""
    rows: list[Row] = []
    for name in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - patterns as the run file has them
        if not Path(name).is_file():
            continue
        try:
            rows += [row for row in PromptSource.open(name) if row.defect is None]
        except PromptsProblem as problem:
            print(f"left out: {problem}", file=sys.stderr)
    return rows


def tokenizing(pattern: str, folder: str, repeats: int) -> dict[str, Any]:
    """Tokens per second of our path, of the bare tokenizer on the same texts, and their ratio."""
    chat = ChatTokenizer.load(folder)
    bare: Any = chat.__dict__["_tokenizer"]
    rows: list[Row] = []
    texts: list[str] = []
    for row in rows_of(pattern):
        prompt = to_prompt(row.value)
        if not isinstance(prompt, Defect) and prompt.messages:
            rows.append(row)
            texts.append(chat.text(prompt.messages, prompt.tools))
    ours: list[float] = []
    theirs: list[float] = []
    tokens = 0
    for _ in range(repeats):
        # Without the collector's pauses, which fall on whoever happens to be running.
        gc.collect()
        gc.disable()
        began = time.process_time()
        tokens = 0
        for row in rows:
            made = to_payload(DATASET, row.id, row.value, chat, None)
            tokens += len(made.input_ids) if isinstance(made, Payload) else 0
        ours.append(time.process_time() - began)
        began = time.process_time()
        for text in texts:
            bare.encode(text, add_special_tokens=False)
        theirs.append(time.process_time() - began)
        gc.enable()
    return {
        "tokenizer": Path(folder).name,
        "prompts": len(rows),
        "tokens": tokens,
        "ours_tokens_per_s": round(tokens / min(ours)),
        "bare_tokens_per_s": round(tokens / min(theirs)),
        "ratio": round(min(theirs) / min(ours), 3),
        "repeats": repeats,
    }


def generate(path: Path, rows: int) -> None:
    """A file of that many rows, none like another, of 60 to 600 characters, without ids of their own."""
    draw = random.Random(0)
    words = [f"word{number}" for number in range(2000)]
    with path.open("w", encoding="ascii") as file:
        for number in range(rows):
            text = " ".join(draw.choices(words, k=draw.randrange(8, 80)))
            file.write(f'{{"prompt": "{number}: {text}", "n": {number}}}\n')


def peak_mib() -> float:
    """The most memory that this process has held; getrusage would count its parent's, from before the exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def read_all(path: str) -> dict[str, Any]:
    """Read every row once; run in a process of its own, whose peak memory it tells."""
    began = time.perf_counter()
    before = peak_mib()
    source = PromptSource.open(path)
    first: float | None = None
    count = 0
    for _ in source:
        first = first or time.perf_counter() - began
        count += 1
    return {
        "rows": count,
        "first_row_s": round(first or 0.0, 1),
        "all_rows_s": round(time.perf_counter() - began, 1),
        "peak_mib": peak_mib(),
        "imports_mib": before,
    }


def memory(rows: int) -> list[dict[str, Any]]:
    """What a tenth of the rows and all of them cost."""
    found: list[dict[str, Any]] = []
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        for count in (rows // 10, rows):
            path = Path(folder) / f"{count}.jsonl"
            generate(path, count)
            code = f"import json, prompts; print(json.dumps(prompts.read_all({str(path)!r})))"
            done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
            found.append({**json.loads(done.stdout), "file_mib": round(path.stat().st_size / (1 << 20), 1)})
            path.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Prompt files into payloads")
    parser.add_argument("--prompts", default=str(EXAMPLES / "prompts" / "*"))
    parser.add_argument("--tokenizer", default=str(EXAMPLES / "tokenizer"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="0 leaves the large file out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(_rig.machine())
    speed = tokenizing(options.prompts, options.tokenizer, options.repeats)
    print(
        f"{speed['prompts']:,} prompts, {speed['tokens']:,} tokens, {speed['tokenizer']}: ours "
        f"{speed['ours_tokens_per_s']:,} tok/s, bare {speed['bare_tokens_per_s']:,} tok/s: "
        f"{speed['ratio']:.0%} (goal {GOAL:.0%})"
    )
    large = memory(options.rows) if options.rows else []
    for held in large:
        print(
            f"{held['rows']:,} rows ({held['file_mib']:,} MiB): first row after {held['first_row_s']} s, all after "
            f"{held['all_rows_s']} s, peak {held['peak_mib']} MiB ({held['imports_mib']} of them before the file)"
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": _rig.machine(), "tokenizing": speed, "reading": large}))


if __name__ == "__main__":
    main()
