"""Against the others: the same prompts and the same simulated server, by each tool as its authors say.

Contenders are `tokenmill run`, a plain asyncio script (httpx and aiohttp), stock RQ workers, and, where their
scripts are given, SpecForge's regenerate_train_data.py and speculators' response_regeneration/script.py. An answer
takes a second and has 1,400 tokens, 17 KB. Each runs twice: in peace until it has what was wanted (those that know
tokens are given the budget, the others the number of answers that makes it), and killed (-9) when half is answered
and started again. Figures are ratios and counts; what a contender needs longer for than --limit it did not finish.

    python bench/others.py [--in-flight 256] [--repeats 1] [--only NAME ...] [--json FILE]
        [--specforge PATH/TO/scripts/regenerate_train_data.py]
        [--speculators PATH/TO/scripts/response_regeneration/script.py] [--foreign-python PYTHON]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _rig  # pyright: ignore[reportMissingImports]
import msgspec
from _others_contenders import (  # pyright: ignore[reportMissingImports]
    Contender,
    Failed,
    Foreign,
    Plain,
    SpecForge,
    Speculators,
    Tokenmill,
)
from _others_phases import DidNotFinish, Load, killed, through  # pyright: ignore[reportMissingImports]
from _others_server import Prompt, prompts  # pyright: ignore[reportMissingImports]
from _others_stock import Stock  # pyright: ignore[reportMissingImports]

BRING = (
    "skipped: clone github.com/{repository}, install {needs} for some Python, and name both: "
    "{option} CLONE/{path} --foreign-python PYTHON"
)
FOREIGN: tuple[tuple[str, type[Foreign], str, str, str], ...] = (
    ("specforge", SpecForge, "sgl-project/SpecForge", "scripts/regenerate_train_data.py", "openai and tqdm"),
    (
        "speculators",
        Speculators,
        "vllm-project/speculators",
        "scripts/response_regeneration/script.py",
        "speculators (or its folder data_generation alone, openai, aiohttp, datasets and transformers)",
    ),
)
RUNS = (("through", through), ("killed", killed))
Row = dict[str, Any]


def contenders(options: argparse.Namespace) -> list[tuple[str, Callable[[], Contender] | str]]:
    """Name, and what makes it, or the sentence that says why it is skipped."""
    found: list[tuple[str, Callable[[], Contender] | str]] = [
        ("tokenmill", lambda: Tokenmill(knows_tokens=True)),
        ("tokenmill-samples", lambda: Tokenmill(knows_tokens=False)),
    ]
    for option, kind, repository, path, needs in FOREIGN:
        script: Path | None = getattr(options, option)
        if script is None:
            found.append((option, BRING.format(repository=repository, needs=needs, option=f"--{option}", path=path)))
        else:
            found.append((option, lambda kind=kind, script=script: kind(script, options.foreign_python)))
    found += [
        ("aiohttp", lambda: Plain("aiohttp")),
        ("httpx", lambda: Plain("httpx")),
        ("rq-simple", lambda: Stock("SimpleWorker", options.rq_processes)),
        ("rq-fork", lambda: Stock("Worker", options.rq_processes)),
    ]
    return [(name, made) for name, made in found if not options.only or name in options.only]


def measure(made: Callable[[], Contender], load: Load, asked: list[Prompt], repeats: int) -> Row:
    """Both runs of one contender, so many times; what went wrong stands in place of the figures."""
    contender = made()
    row: Row = {"contender": contender.name, "version": contender.version}
    try:
        for _ in range(repeats):
            for label, run in RUNS if contender.is_killed else RUNS[:1]:
                try:
                    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
                        one = run(contender, load, asked, Path(folder))
                    row.setdefault(label, []).append(msgspec.to_builtins(one))
                except (DidNotFinish, TimeoutError) as reached:
                    row[f"{label}_problem"] = f"did not finish: {reached}"
                except Failed as failure:
                    row[f"{label}_problem"] = str(failure)
    finally:
        contender.close()
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def median(runs: Sequence[Row], name: str, form: str) -> str:
    """The median, with the least and the greatest where there are several."""
    values = [run[name] for run in runs]
    shown = format(statistics.median(values), form)
    return shown if len(values) == 1 else f"{shown} ({min(values):{form}} … {max(values):{form}})"


THROUGH = (
    ("requests in flight, at most", "slots", ",d"),
    ("wall / ideal", "makespan", ".2f"),
    ("slots busy", "busy", ".0%"),
    ("CPU ms a request", "cpu_ms", ".2f"),
    ("peak memory, MB", "peak_mb", ",.0f"),
    ("tokens over the budget", "over", "+.2%"),
    ("to the first request, s", "start_s", ".1f"),
    ("CPU until then, s", "start_cpu_s", ".1f"),
)
KILLED = (
    ("lost after the restart", "lost_at_first", ".0f"),
    ("lost for good", "lost", ".0f"),
    ("answered twice in the output", "repeated", ".0f"),
    ("tokens made in vain", "again", ".1%"),
)


def table(title: str, label: str, columns: Sequence[tuple[str, str, str]], rows: Sequence[Row]) -> None:
    print(f"\n| {title} | " + " | ".join(head for head, _, _ in columns) + " |\n|---|" + "---:|" * len(columns))
    for row in rows:
        if runs := row.get(label):
            cells = [median(runs, name, form) for _, name, form in columns]
        elif problem := row.get(f"{label}_problem"):
            cells = [" ".join(problem.split()).replace("|", "/"), *[""] * (len(columns) - 1)]
        else:
            continue
        print(f"| {row['contender']} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=256, help="the server's slots, and requests in flight")
    parser.add_argument("--per-slot", type=int, default=8, help="answers wanted for each request in flight")
    parser.add_argument("--seconds", type=float, default=1.0, help="that an answer takes on average")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a run; a killed one has twice that")
    parser.add_argument("--rq-processes", type=int, default=16, help="stock RQ workers, each with one request")
    parser.add_argument("--only", nargs="+", help="names of contenders")
    parser.add_argument("--specforge", type=Path)
    parser.add_argument("--speculators", type=Path)
    parser.add_argument("--foreign-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = Load(options.in_flight, options.per_slot, options.seconds, options.limit)
    asked = prompts(load.in_flight * load.per_slot * 3 // 2)
    rows: list[Row] = []
    wanted = contenders(options)
    if not wanted:
        parser.error("--only names none of: tokenmill, tokenmill-samples, specforge, speculators, aiohttp, httpx, "
                     "rq-simple, rq-fork")  # fmt: skip
    busy = os.getloadavg()[0]
    for name, made in wanted:
        if isinstance(made, str):
            print(f"{name}: {made}", flush=True)
        else:
            rows.append(measure(made, load, asked, options.repeats))
    about = f"{_rig.machine()}; load {busy:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(f"{about}; {load.in_flight:,} slots, {load.seconds:g} s an answer, {load.per_slot} answers a slot")
    print("; ".join(f"{row['contender']}: {row['version']}" for row in rows))
    table("in peace", "through", THROUGH, rows)
    table("killed at half", "killed", KILLED, rows)
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "load": msgspec.to_builtins(load), "rows": rows}))


if __name__ == "__main__":
    main()
