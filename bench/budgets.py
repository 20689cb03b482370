"""How near to its budget does a run end, and how long does it take? Five ways to stop, compared.

The ledger's Lua runs on a real Redis, and the worker's forecast, order and rhythm of revisions are the
ones it runs with; servers, slots and time are a model (see `_virtual.py`), so that a day of ten datasets
with 10 M tokens each takes a minute. Ten datasets whose mean answers have 1,500 to 16,000 tokens, cut at
`--most`; 150 and 1,024 slots; lognormal lengths, and bimodal ones (a fifth of the answers ten times as
long as the rest). What is compared:

    samples     a cap of 7,000 samples a dataset
    sequential  a script: one dataset after the other, a counter checked before each request
    drain       all datasets at once, each until its counter has passed the cap
    strict      every job reserves its worst case
    forecast    every job reserves its expected length, revised while it runs

    python bench/budgets.py            # adds to docs/performance-budget.json and .svg, prints a table
    python bench/budgets.py --quick    # one seed, caps of 1 M, writes nothing
"""

import argparse
import atexit
import functools
import json
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from _contenders import LedgerRun, Script, Task
from _report import markdown, svg

from budget import connections
from tokenmill.embedded import EmbeddedRedis
from workers.contracts import Admission
from workers.simulator.lengths import LengthSpec

MEANS = (16000, 4000, 1577, 3793, 2500, 1500, 3000, 1500, 5000, 8000)
SHAPES: dict[str, dict[str, Any]] = {
    "lognormal": {"shape": "lognormal", "sigma": 0.65},
    "bimodal": {"shape": "bimodal", "sigma": 0.4, "long_share": 0.2, "long_ratio": 10.0},
}
PER_SERVER = {150: 75, 1024: 128}
CONTENDERS = ("samples", "sequential", "drain", "strict", "forecast")
ADMISSIONS: dict[str, Admission] = {"drain": "drain", "strict": "strict", "forecast": "forecast"}
CAP = 10_000_000
QUICK_CAP = 1_000_000
DOCS = Path(__file__).parent.parent / "docs"
FIGURES, PICTURE = "performance-budget.json", "performance-budget.svg"

Cell = tuple[int, str, str, int]


@functools.cache
def own_redis() -> Any:
    """This process' own Redis, in memory alone."""
    folder = tempfile.TemporaryDirectory()
    server = EmbeddedRedis(Path(folder.name))
    server.start()
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    connection: Any = connections.connect(server.url)
    connection.config_set("appendonly", "no")
    return connection


def measure(slots: int, shape: str, contender: str, seed: int, cap: int, most: int) -> dict[str, Any]:
    """One run: its figures, and where it is."""
    specs = {f"D{number}": LengthSpec(mean=mean, **SHAPES[shape]) for number, mean in enumerate(MEANS)}
    task = Task(specs, cap, slots, PER_SERVER[slots], most, seed)
    rng, started = random.Random(seed), time.process_time()
    if contender in ADMISSIONS:
        outcome = LedgerRun(task, ADMISSIONS[contender], own_redis(), rng).run()
    else:
        samples = round(7000 * cap / CAP) if contender == "samples" else None
        outcome = Script(task, rng, samples=samples).run()
    return {
        "slots": slots,
        "lengths": shape,
        "contender": contender,
        "seed": seed,
        **{name: round(value, 6) for name, value in outcome.figures(task).items()},
        "looks": outcome.looks,
        "renewals": outcome.renewals,
        "cpu_s": round(time.process_time() - started, 1),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median and range of every figure over the seeds."""
    rows: list[dict[str, Any]] = []
    cells = dict.fromkeys((run["slots"], run["lengths"], run["contender"]) for run in runs)
    for slots, shape, contender in cells:
        same = [run for run in runs if (run["slots"], run["lengths"], run["contender"]) == (slots, shape, contender)]
        row: dict[str, Any] = {"slots": slots, "lengths": shape, "contender": contender, "seeds": len(same)}
        for figure in ("total", "worst", "lowest", "makespan", "occupancy"):
            values = [float(run[figure]) for run in same]
            row[figure] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, caps of 1 M, writes nothing")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cap", type=int, default=CAP, help="tokens per dataset")
    parser.add_argument("--most", type=int, default=65_536, help="the longest answer, in tokens (max_new_tokens)")
    parser.add_argument("--slots", type=int, nargs="+", default=list(PER_SERVER), choices=list(PER_SERVER))
    parser.add_argument("--lengths", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--jobs", type=int, default=1, help="processes; each has a Redis of its own")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder for the figures; what is there is kept")
    options = parser.parse_args()
    cap, seeds = (QUICK_CAP, 1) if options.quick else (options.cap, options.seeds)
    cells: list[Cell] = [
        (slots, shape, contender, seed)
        for slots in options.slots
        for shape in options.lengths
        for contender in options.contenders
        for seed in range(seeds)
    ]
    about = {"cap": cap, "most": options.most, "means": list(MEANS), "shapes": SHAPES, "per_server": PER_SERVER}
    output: Path | None = None if options.quick else options.output
    runs = known_runs(output, about)
    # One seed of every cell before the next: an interrupted matrix has figures for all of it.
    todo = sorted((cell for cell in cells if cell not in runs), key=lambda cell: cell[3])
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(measure, *cell, cap, options.most) for cell in todo]
        for future in as_completed(waiting):
            run = future.result()
            runs[run["slots"], run["lengths"], run["contender"], run["seed"]] = run
            print(json.dumps(run), file=sys.stderr, flush=True)
            if output is not None:
                write(output, about, list(runs.values()))
    print(markdown(summary([runs[cell] for cell in cells if cell in runs])))


def known_runs(output: "Path | None", about: dict[str, Any]) -> dict[Cell, dict[str, Any]]:
    """The runs that were made already under the same conditions, so that a matrix can be interrupted."""
    if output is None or not (output / FIGURES).exists():
        return {}
    found = json.loads((output / FIGURES).read_text())
    if found["about"] != json.loads(json.dumps(about)):
        return {}
    return {(run["slots"], run["lengths"], run["contender"], run["seed"]): run for run in found["runs"]}


def write(output: Path, about: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """The figures so far, and the picture of them."""
    order = [(slots, lengths, contender) for slots in PER_SERVER for lengths in SHAPES for contender in CONTENDERS]
    runs.sort(key=lambda run: (order.index((run["slots"], run["lengths"], run["contender"])), run["seed"]))
    lines = ",\n  ".join(json.dumps(run) for run in runs)
    head = json.dumps(about)
    output.mkdir(parents=True, exist_ok=True)
    (output / FIGURES).write_text(f'{{"about": {head},\n "runs": [\n  {lines}\n]}}\n')
    (output / PICTURE).write_text(svg(summary(runs)))


if __name__ == "__main__":
    main()
