"""What people read of a run beside the live screen: short numbers, plain lines for a log, the summary at the end."""

import json
import shutil
import sys
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from results.report import Report
from tokenmill.state import DatasetStatus, ServerStatus, Status
from workers.contracts import Record


def tokens(number: int | None) -> str:
    """A number of tokens, short: 950, 12.3K, 10.0M."""
    if number is None:
        return "none"
    # A unit begins where the one below would be rounded up to 1000.0.
    for least, divisor, unit in ((999_950_000, 1e9, "G"), (999_950, 1e6, "M"), (10_000, 1e3, "K")):
        if abs(number) >= least:
            return f"{number / divisor:.1f}{unit}"
    return str(number)


def duration(seconds: float | None) -> str:
    """A time to go: 12s, 3m20s, 5h10m; - where it is unknown."""
    if seconds is None:
        return "-"
    whole = int(timedelta(seconds=seconds).total_seconds())
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def server_line(server: ServerStatus) -> str:
    """One server and how it is."""
    if server.state == "down":
        return f"{server.url}: down, {server.reason}"
    busy = f"{server.running} running, {server.waiting} waiting, {tokens(round(server.tokens_per_s))} tok/s"
    if server.state == "up":
        return f"{server.url}: {busy}"
    return f"{server.url}: draining, {server.reason or busy}"


def log_lines(status: Status) -> str:
    """Progress for a log: tokens of all datasets, how many are complete, and each one's share of its cap."""
    spent = sum(dataset.spent for dataset in status.datasets)
    caps = [dataset.cap for dataset in status.datasets]
    goal = "" if None in caps else f" of {tokens(sum(cap or 0 for cap in caps))}"
    complete = sum(dataset.complete for dataset in status.datasets)
    rate = sum(dataset.tokens_per_s for dataset in status.datasets)
    flying = sum(dataset.leased for dataset in status.datasets)
    shares = ", ".join(f"{dataset.name} {_share(dataset)}" for dataset in status.datasets)
    return (
        f"{tokens(spent)}{goal} tokens, {tokens(round(rate))} tok/s, {flying} in flight, "
        f"{complete} of {len(status.datasets)} datasets complete\n    {shares}"
    )


def _share(dataset: DatasetStatus) -> str:
    if dataset.reason == "prompts":
        return "no prompts left"
    return f"{dataset.spent / dataset.cap:.0%}" if dataset.cap else tokens(dataset.spent)


def summary(status: Status, seconds: float | None, before: Mapping[str, int]) -> Table:
    """The table at the end of a run that took `seconds` and found `before` (tokens by dataset) already there."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("dataset", no_wrap=True)
    for name in ("cap", "spent", "over", "answers", "dropped", "rejected", "tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ended by", no_wrap=True)
    for dataset in status.datasets:
        rate = (dataset.spent - before.get(dataset.name, 0)) / seconds if seconds else 0.0
        table.add_row(
            dataset.name,
            tokens(dataset.cap),
            tokens(dataset.spent),
            "-" if dataset.overshoot is None or dataset.reason != "budget" else f"{dataset.overshoot:.1%}",
            str(dataset.committed),
            str(dataset.dropped),
            str(dataset.rejected),
            tokens(round(rate)) if rate else "-",
            dataset.reason or "not ended",
        )
    return table


def _differences(count: int) -> str:
    return "1 difference" if count == 1 else f"{count:,} differences"


def verification(report: Report) -> list[str]:
    """What `verify` found, a sentence a line."""
    lines = [
        f"{dataset.name}: {dataset.answers:,} answers of {dataset.tokens:,} tokens in {dataset.lines:,} lines, "
        f"{dataset.rejected:,} rejected, {dataset.dropped:,} dropped"
        for dataset in report.datasets
    ]
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"DIFFERENCE: {finding}" for finding in report.findings]
    lines.append("everything agrees" if report.is_good else _differences(len(report.findings)))
    return lines


def program(name: str) -> str:
    """How to call one of our programs from here: by its name if that is on PATH, else by its path."""
    if shutil.which(name):
        return name
    beside = Path(sys.argv[0]).with_name(name)
    return str(beside) if beside.exists() else name


def record(path: Path) -> str | None:
    """The first answer of ours in a result file, shortened for the eye; None where its beginning has none."""
    with path.open("rb") as file:
        for raw in islice(file, 100):
            try:
                line = msgspec.convert(json.loads(raw), Record)
            except (ValueError, msgspec.ValidationError):
                continue  # of an earlier pipeline, or damaged
            return _shortened(line)
    return None


def _shortened(line: Record) -> str:
    names = ("id", "dataset", "turn", "prompt_tokens", "completion_tokens", "finish_reason")
    shown: dict[str, Any] = {name: getattr(line, name) for name in names}
    for name, ids in (("input_ids", line.input_ids), ("output_ids", line.output_ids)):
        shown[name] = f"[{', '.join(map(str, ids[:4]))}, … {len(ids)} in all]"
    shown["text"] = line.text if len(line.text) <= 60 else line.text[:60] + "…"
    # A lone surrogate cannot be printed.
    return json.dumps(shown, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
