"""The virtual runs of bench/budgets.py are only worth what they have in common with real ones: one cell, twice.

Once with real processes: `tokenmill run` with its collector, producer and workers, on real simulated servers
whose time runs `--scale` times faster. Once as bench/budgets.py does it, with the same slots, lengths, caps,
servers, rhythm of renewals and speed of time. Ten datasets under `forecast`; answers, caps and prompts are
fewer than in the matrix, not shorter.

    python bench/twin.py                       # prints a table; five minutes a seed
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _contenders import LedgerRun, Task
from _rig import machine
from budgets import MEANS, PER_SERVER, SHAPES, own_redis

from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

TOKENIZER = Path(__file__).parent.parent / "examples" / "tokenizer"
FIGURES = ("total", "worst", "lowest", "makespan", "occupancy")


def run_file(folder: Path, task: Task, servers: Sequence[str], prompts: int) -> Path:
    """The run as a user would write it: prompts of four ids each, which need no rendering."""
    renew_ms = round(task.renew_s * 1000)
    lines = [
        f'[run]\nname = "twin"\noutput = "out"\nmax_tokens_per_dataset = {task.cap}',
        f'[model]\ntokenizer = "{TOKENIZER}"',
        f"[sglang]\nservers = {json.dumps(list(servers))}\nconcurrency = {task.per_server}",
        f"[sampling]\nmax_new_tokens = {task.most}",
        f"[timing]\nrenew_ms = {renew_ms}\nlease_ms = {3 * renew_ms}",
    ]
    for name in task.specs:
        rows = (json.dumps({"id": str(n), "input_ids": [5 + n % 300, 7, 5 + n // 300, 9]}) for n in range(prompts))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        lines.append(f'[[dataset]]\nname = "{name}"\nprompts = "{name}.jsonl"')
    path = folder / "run.toml"
    path.write_text("\n\n".join(lines) + "\n")
    return path


def real(task: Task) -> dict[str, float]:
    """The figures of one run of real processes, from what it wrote."""
    config = SimulatorConfig(
        tokenizer=str(TOKENIZER),
        context_length=2 * task.most,
        max_running_requests=task.per_server,
        time_scale=task.scale,
        lengths=task.specs,
        seed=task.seed,
    )
    servers = [SimulatorProcess.start(config) for _ in range(task.slots // task.per_server)]
    try:
        with tempfile.TemporaryDirectory(prefix="tm-bench-") as name:
            folder = Path(name)
            # Half as many prompts again as it can need.
            prompts = round(1.5 * task.cap / min(spec.mean for spec in task.specs.values()))
            path = run_file(folder, task, [server.url for server in servers], prompts)
            subprocess.run(
                [sys.executable, "-m", "tokenmill", "run", str(path), "--json"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            return figures(folder / "out", task)
    finally:
        for server in servers:
            server.stop()


def figures(output: Path, task: Task) -> dict[str, float]:
    """As bench/budgets.py counts them; the makespan is from the first request to the last answer."""
    spent = dict.fromkeys(task.specs, 0)
    begin, end, busy_s = float("inf"), 0.0, 0.0
    for name in task.specs:
        for line in (output / name / "raw_responses.jsonl").read_bytes().split(b"\n")[:-1]:
            record: Any = json.loads(line)
            spent[name] += record["completion_tokens"]
            begin = min(begin, record["created_at"] - record["latency_s"])
            end = max(end, record["created_at"])
            busy_s += record["latency_s"]
    over = [tokens / task.cap - 1 for tokens in spent.values()]
    return {
        "total": sum(spent.values()) / (task.cap * len(spent)) - 1,
        "worst": max(over),
        "lowest": min(over),
        "makespan": (end - begin) / task.ideal_s,
        "occupancy": busy_s / ((end - begin) * task.slots),
    }


def virtual(task: Task) -> dict[str, float]:
    return LedgerRun(task, "forecast", own_redis(), random.Random(task.seed)).run().figures(task)


def row(label: str, runs: Sequence[dict[str, float]]) -> str:
    def cell(name: str) -> str:
        values = [run[name] for run in runs]
        shown = [f"{value:.2f}" if name in ("makespan", "occupancy") else f"{100 * value:+.2f} %" for value in values]
        middle = statistics.median(values)
        median = f"{middle:.2f}" if name in ("makespan", "occupancy") else f"{100 * middle:+.2f} %"
        return median if len(set(shown)) == 1 else f"{median} ({', '.join(shown)})"

    return f"| {label} | " + " | ".join(cell(name) for name in FIGURES) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=20.0, help="how much faster than a GPU time runs")
    parser.add_argument("--cap", type=int, default=3_000_000, help="tokens per dataset")
    parser.add_argument("--most", type=int, default=65_536, help="the longest answer, in tokens (max_new_tokens)")
    parser.add_argument("--lengths", default="lognormal", choices=list(SHAPES))
    options = parser.parse_args()
    specs = {f"D{number}": LengthSpec(mean=mean, **SHAPES[options.lengths]) for number, mean in enumerate(MEANS)}
    runs: dict[str, list[dict[str, float]]] = {"real processes": [], "virtual twin": []}
    for seed in range(options.seeds):
        slots, scale = 150, options.scale
        task = Task(
            specs, options.cap, slots, PER_SERVER[slots], options.most, seed, renew_s=10 / scale, scale=scale, sigma=0
        )
        for label, measured in (("real processes", real), ("virtual twin", virtual)):
            runs[label].append(measured(task))
            print(json.dumps({"seed": seed, "run": label, **runs[label][-1]}), file=sys.stderr, flush=True)
    print(f"{machine()}; 150 slots, {options.lengths}, caps of {options.cap:,}, time x {options.scale:g}\n")
    print("| " + " | ".join(["one cell", *FIGURES]) + " |\n" + "|---" * (len(FIGURES) + 1) + "|")
    for label, measured_runs in runs.items():
        print(row(label, measured_runs))


if __name__ == "__main__":
    main()
