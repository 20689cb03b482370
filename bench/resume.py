"""Reading results back: a collector's start, `tokenmill verify`, and `tokenmill run` on a run that is complete.

Each figure is of the very commands, in processes of their own: CPU time (which other work on the machine
does not change much), wall time, and peak resident memory.

- so many results of 4,000 tokens each (45 KB a line), in the page cache: `tokenmill collect` until it has seeded
  an empty Redis, then `tokenmill verify` against both;
- a million ids with small answers: the same two, for their memory;
- ten complete datasets: `tokenmill run` again, until it has said so and left.

    python bench/resume.py [--results 10000] [--ids 200000] [--repeats 3] [--json FILE]

`--results 100000 --ids 1000000` is the full size: 4.5 GB in the temporary folder, and some minutes.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]

from budget import keys
from workers.contracts import Record
from workers.encodings import encode_line

EXAMPLES = Path(__file__).parents[1] / "examples"
TOKENS = 4000
DATASETS = 10
FULL_RESULTS = 100_000
GOAL_CPU_S, GOAL_MIB, GOAL_AGAIN_S = 15.0, 300, 2.0
MARK = "the-id-stands-here"


def template(draw: random.Random, dataset: str, tokens: int, id_mark: str) -> bytes:
    """A line as workers encode it, for an id that is put in later."""
    words = " ".join(f"word{draw.randrange(10_000)}" for _ in range(tokens // 2))
    return encode_line(
        Record(
            id=id_mark,
            dataset=dataset,
            turn=1,
            turns=1,
            prompt_tokens=min(300, tokens),
            completion_tokens=tokens,
            finish_reason="stop",
            matched="2",
            input_ids=[draw.randrange(150_000) for _ in range(min(300, tokens))],
            output_ids=[draw.randrange(150_000) for _ in range(tokens)],
            text=words,
            messages=[{"role": "user", "content": words[:1200]}],
            sampling={"temperature": 1.0, "max_new_tokens": 16_384},
            model="bench",
            weight_version="default",
            server="http://gpu0:30000",
            worker="host.1.abcdef",
            attempt=1,
            rid="0" * 32,
            latency_s=12.5,
            created_at=1_796_062_719.4,
        )
    )


def write_results(folder: Path, dataset: str, count: int, tokens: int) -> int:
    """A result file of so many lines; returns its size in bytes."""
    draw = random.Random(0)
    pieces = [template(draw, dataset, tokens, MARK).split(MARK.encode()) for _ in range(50)]
    path = folder / "out" / dataset / "raw_responses.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for number in range(count):
            file.write(f"{dataset}/{number}".encode().join(pieces[number % len(pieces)]))
    return path.stat().st_size


def write_run(folder: Path, datasets: list[str], prompts: int, max_tokens: int) -> Path:
    """A run file with so many prompts for each dataset."""
    tables = ""
    for name in datasets:
        path = folder / f"{name}.jsonl"
        path.write_text(
            "".join(f'{{"id": "{name}/{number}", "prompt": "Say {number}"}}\n' for number in range(prompts))
        )
        tables += f'[[dataset]]\nname = "{name}"\nprompts = "{path.name}"\n'
    run = folder / "run.toml"
    run.write_text(
        f'[run]\nname = "bench"\noutput = "out"\nmax_tokens_per_dataset = {max_tokens}\n'
        f"[model]\ntokenizer = {json.dumps(str(EXAMPLES / 'tokenizer'))}\n"
        f"[sampling]\nmax_new_tokens = 4096\n{tables}"
    )
    return run


def ended(process: "subprocess.Popen[bytes]") -> dict[str, float]:
    """What a process used, as its end tells: its exit code, CPU seconds and peak MiB."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"exit": process.returncode, "cpu_s": used.ru_utime + used.ru_stime}


def peak_mib(pid: int) -> float:
    """The most memory that a process has held; getrusage would count its parent's, from before the exec."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def started(arguments: list[str], url: str | None) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if name != "TOKENMILL_REDIS_URL"}
    if url is not None:
        environment["TOKENMILL_REDIS_URL"] = url
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def collected(run: Path, client: Any, url: str) -> dict[str, float]:
    """`tokenmill collect` from its start until it has seeded the (empty) Redis."""
    began = time.perf_counter()
    process = started(["collect", str(run), "--stay"], url)
    try:
        _rig.until(lambda: client.exists(keys.READY) or process.poll() is not None)
        wall, peak = time.perf_counter() - began, peak_mib(process.pid)
    finally:
        process.terminate()
        used = ended(process)
    return {**used, "wall_s": wall, "peak_mib": peak}


def verified(run: Path, url: str) -> dict[str, float]:
    """`tokenmill verify`, which must find that all counts agree."""
    began, peak = time.perf_counter(), 0.0
    process = started(["verify", str(run)], url)
    while process.returncode is None:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            peak = max(peak, peak_mib(process.pid))
            time.sleep(0.05)
            continue
        wall = time.perf_counter() - began
        used = ended(process)
        if used["exit"] != 0:
            raise SystemExit(f"verify ended with exit code {used['exit']:.0f}")
        return {**used, "wall_s": wall, "peak_mib": peak}
    raise AssertionError


def read_back(folder: Path, count: int, tokens: int, repeats: int) -> dict[str, Any]:
    """A file of `count` results: collect and verify, so many times; medians."""
    size = write_results(folder, "D0", count, tokens)
    run = write_run(folder, ["D0"], 1, 10**12)
    found: dict[str, list[dict[str, float]]] = {"collect": [], "verify": []}
    for _ in range(repeats):
        with _rig.a_redis() as (connection, url):
            found["collect"].append(collected(run, connection, url))
            found["verify"].append(verified(run, url))
    shutil.rmtree(folder / "out")
    medians = {
        name: {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        for name, runs in found.items()
    }
    return {"results": count, "mib": round(size / (1 << 20)), **medians}


def again(folder: Path, repeats: int) -> dict[str, float]:
    """`tokenmill run` on ten datasets that have their tokens; the first, which fills an empty Redis, is not timed."""
    names = [f"D{number}" for number in range(DATASETS)]
    for name in names:
        write_results(folder, name, 1000, 100)
    run = write_run(folder, names, 2000, 50_000)
    walls: list[float] = []
    cpu: list[float] = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        process = started(["run", str(run)], None)
        used = ended(process)
        if used["exit"] != 0:
            raise SystemExit(f"tokenmill run ended with exit code {used['exit']:.0f}")
        if number:
            walls.append(time.perf_counter() - began)
            cpu.append(used["cpu_s"])
    return {"wall_s": statistics.median(walls), "least_s": min(walls), "cpu_s": statistics.median(cpu)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading results back")
    parser.add_argument("--results", type=int, default=10_000)
    parser.add_argument("--ids", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{_rig.machine()}; load {os.getloadavg()[0]:.1f}; medians of {options.repeats}")
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as name:
        folder = Path(name)
        start = read_back(folder, 1, TOKENS, options.repeats)
        large = read_back(folder, options.results, TOKENS, options.repeats)
        for command in ("collect", "verify"):
            one, empty = large[command], start[command]["cpu_s"]
            full = empty + (one["cpu_s"] - empty) * FULL_RESULTS / large["results"]
            print(
                f"{large['results']:,} results of {TOKENS:,} tokens ({large['mib']:,} MiB), {command}: CPU "
                f"{one['cpu_s']:.1f} s ({empty:.1f} s of it for the first), so {full:.1f} s for {FULL_RESULTS:,} "
                f"(goal {GOAL_CPU_S:.0f} s); wall {one['wall_s']:.1f} s, peak {one['peak_mib']} MiB"
            )
        small = read_back(folder, options.ids, 5, 1)
        for command in ("collect", "verify"):
            one = small[command]
            print(
                f"{small['results']:,} ids, {command}: peak {one['peak_mib']} MiB (goal {GOAL_MIB} MiB for 1,000,000), "
                f"CPU {one['cpu_s']:.1f} s"
            )
        complete = again(folder, options.repeats)
        print(
            f"ten complete datasets, run again: {complete['wall_s']:.1f} s (goal {GOAL_AGAIN_S:.0f} s), "
            f"CPU of all its processes {complete['cpu_s']:.1f} s"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"machine": _rig.machine(), "start": start, "large": large, "small": small, "again": complete})
        )


if __name__ == "__main__":
    main()
