"""Does anything grow? A run of very many prompts in accelerated time, from `push` to `verify`.

Ten datasets of pre-tokenized prompts, short answers, caps of so many tokens that one prompt in fifty is left
over. Real processes (collector, producer, two workers, a Redis, a simulated server); every second or so the
resident memory of each and what Redis holds, over the prompts that are done. Printed are the rates of the first
and the last tenth, the memory after a tenth and at the end, the CPU time of each part per prompt (of a worker:
per prompt of both), and what `verify` took.

    python bench/growth.py [--prompts 20000] [--json FILE] [--svg FILE]     # the run of the docs: 1000000
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]
from _curves import picture  # pyright: ignore[reportMissingImports]

from budget import keys
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

DATASETS = [f"D{number}" for number in range(10)]
SLOTS = 256
PARTS = ("collect", "push", "work", "work")
TOKENIZER = Path(__file__).parents[1] / "examples" / "tokenizer"
EVERY_S = 1.0


def run_file(folder: Path, prompts: int, tokens: int, server: str) -> Path:
    """The run, and its prompt files."""
    each = prompts // len(DATASETS)
    tables: list[str] = []
    for name in DATASETS:
        with (folder / f"{name}.jsonl").open("w") as rows:
            for number in range(each):
                rows.write(f'{{"id":"{name}-{number}","input_ids":[5,{3 + number % 900},{3 + number // 900}]}}\n')
        tables.append(
            f'[[dataset]]\nname = "{name}"\nprompts = "{name}.jsonl"\nmax_tokens = {each * tokens * 49 // 50}'
        )
    file = folder / "run.toml"
    head = f"""
[run]
name = "growth"
output = "out"
[model]
tokenizer = "{TOKENIZER}"
[sglang]
servers = ["{server}"]
concurrency = {SLOTS}
[sampling]
max_new_tokens = {4 * tokens}
"""
    file.write_text(head + "\n".join(tables) + "\n")
    return file


def resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return int(status[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def follow(client: Any, parts: "dict[str, subprocess.Popen[bytes]]") -> list[dict[str, float]]:
    """What each process and Redis hold, as often as it is looked at, until all parts have ended."""
    samples: list[dict[str, float]] = []
    began = time.monotonic()
    while any(part.poll() is None for part in parts.values()):
        pipe = client.pipeline(transaction=False)
        for name in DATASETS:
            pipe.hlen(keys.done(name))
        done = sum(pipe.execute())
        sample = {"seconds": time.monotonic() - began, "done": float(done)}
        sample["redis"], spent = client.info("memory")["used_memory"] / 1e6, client.info("cpu")
        sample["cpu redis"] = spent["used_cpu_user"] + spent["used_cpu_sys"]
        for name, part in parts.items():
            if part.poll() is None:
                sample |= {name: resident_mb(part.pid), f"cpu {name}": _rig.cpu_s(part.pid)}
        samples.append(sample)
        time.sleep(EVERY_S)
    failed = {name: part.returncode for name, part in parts.items() if part.returncode}
    if failed:
        raise SystemExit(f"parts of the run ended with {failed}")
    return samples


def verify(file: Path, environment: dict[str, str]) -> dict[str, float]:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "verify", str(file)], env=environment, stdout=subprocess.DEVNULL
    )
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, resident_mb(process.pid))
        time.sleep(0.02)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"verify ended with {process.returncode}")
    return {"seconds": time.monotonic() - began, "cpu_s": after.ru_utime - before.ru_utime, "peak_mb": peak}


def run(prompts: int, tokens: int) -> dict[str, Any]:
    with ExitStack() as stack:
        connection, url = stack.enter_context(_rig.a_redis())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-growth-")))
        server = SimulatorProcess.start(
            SimulatorConfig(
                tokenizer=str(TOKENIZER),
                max_running_requests=2 * SLOTS,
                time_scale=tokens / 2,
                lengths={"*": LengthSpec(mean=tokens, sigma=0.3)},
            )
        )
        stack.callback(server.stop, grace_s=0)
        file = run_file(folder, prompts, tokens, server.url)
        environment = {**os.environ, "TOKENMILL_REDIS_URL": url}
        parts: dict[str, subprocess.Popen[bytes]] = {}
        log = stack.enter_context((folder / "log").open("wb"))
        for number, name in enumerate(PARTS):
            command = [sys.executable, "-m", "tokenmill", name, str(file)]
            label = f"{name} {number - 1}" if name == "work" else name
            parts[label] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(parts[label].kill)
        samples = follow(connection, parts)
        size = sum(path.stat().st_size for path in (folder / "out").glob("*/raw_responses.jsonl"))
        return {"prompts": prompts, "samples": samples, "verify": verify(file, environment), "bytes": size}


def names_of(samples: list[dict[str, float]]) -> list[str]:
    """Redis and the parts of the run, which are all there in the middle of it."""
    return [name for name in samples[len(samples) // 2] if name not in ("seconds", "done") and name[:4] != "cpu "]


def rate(samples: list[dict[str, float]], low: float, high: float) -> float:
    """Prompts a second while from a share `low` to a share `high` of them became done."""
    most = samples[-1]["done"]
    inside = [sample for sample in samples if low * most <= sample["done"] <= high * most]
    if len(inside) < 2:
        return 0.0
    return (inside[-1]["done"] - inside[0]["done"]) / (inside[-1]["seconds"] - inside[0]["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20_000, help="in all ten datasets")
    parser.add_argument("--tokens", type=int, default=100, help="of an answer, on average")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    found = run(options.prompts, options.tokens)
    samples: list[dict[str, float]] = found["samples"]
    done, checked = samples[-1]["done"], found["verify"]
    print(f"{_rig.machine()}; {done:,.0f} prompts of {options.prompts:,} in {samples[-1]['seconds']:,.0f} s")
    print(f"prompts/s: first tenth {rate(samples, 0.02, 0.12):,.0f}, last tenth {rate(samples, 0.88, 0.98):,.0f}")
    print("| | MB after a tenth | MB at the end | CPU ms a prompt |\n|---|---|---|---|")
    for name in names_of(samples):
        held = [(sample["done"], sample[name]) for sample in samples if sample.get(name)]
        early = next((mb for at, mb in held if at >= done / 10), 0.0)
        # From half of the run on, since the starts are no prompt's.
        cpu = [(one["done"], one[f"cpu {name}"]) for one in samples if f"cpu {name}" in one and 2 * one["done"] > done]
        each = f"{(cpu[-1][1] - cpu[0][1]) * 1000 / (cpu[-1][0] - cpu[0][0]):.2f}" if len(cpu) > 1 else "-"
        print(f"| {name} | {early:.0f} | {held[-1][1]:.0f} | {each} |")
    print(
        f"verify: {checked['seconds']:.1f} s ({checked['cpu_s']:.1f} s of CPU), {checked['peak_mb']:.0f} MB, "
        f"for {found['bytes'] / 1e6:,.0f} MB of results"
    )
    if options.json:
        options.json.write_text(json.dumps({"machine": _rig.machine(), **found}))
    if options.svg:
        names = [name for name in samples[len(samples) // 2] if name not in ("seconds", "done")]
        lines = {name: [(one["done"], one[name]) for one in samples if name in one] for name in names}
        options.svg.write_text(picture("Memory in MB over a run", "prompts done", lines))


if __name__ == "__main__":
    main()
