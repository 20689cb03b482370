"""`tokenmill plan`: what a run still needs, gathered and shown; the arithmetic is in `tokenmill.planning`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import redis
from rich.console import Console
from rich.table import Table

from budget import ages, connections, keys, snapshot
from budget.damage import shown_number
from producer.files import PromptSource
from results.folder import OutputFolder
from results.summary import read_index
from tokenmill import planning, view, watching
from tokenmill.planning import DatasetPlan, Holdings, Plan
from tokenmill.runfile import RunFile
from workers.contracts import DatasetConfig


def plan(file: RunFile, connection: "tuple[redis.Redis, str] | None", *, sample_cap: int, as_json: bool) -> None:
    """Print the plan of a run: from Redis if there is one, else from the files.

    Raises:
        PromptsProblem: a prompts file cannot be read.
        AnotherRun, OtherProtocol: as `watching.refuse_strangers`.
    """
    if connection is None:
        holdings, speed = [_from_files(file, dataset) for dataset in file.config.datasets], _speed_in_files(file)
    else:
        holdings, speed = _from_redis(file, connection[0])
    found = planning.plan(holdings, tokens_per_s=speed, total_cap=file.config.max_tokens_total, sample_cap=sample_cap)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        _show(Console(), found, speed)


def _from_redis(file: RunFile, connection: "redis.Redis") -> tuple[list[Holdings], float]:
    names = [dataset.name for dataset in file.config.datasets]
    watching.refuse_strangers(file.config, connection)
    state = snapshot.read(connection, names)
    known = ages.read(connection, names)
    client: Any = connection
    with connections.translated():
        rates: list[bytes | None] = client.hmget(keys.RATES, names)
    holdings: list[Holdings] = []
    for dataset in file.config.datasets:
        now = state.dataset(dataset.name)
        inputs = now.inputs if now.inputs is not None else _prompts(dataset)
        holdings.append(
            Holdings(
                name=now.name,
                cap=now.cap if now.open else dataset.max_tokens,
                spent=now.spent,
                lengths=planning.lengths_from_ages(known[now.name].finished, now.spent),
                prompts_left=None if inputs is None else max(0, inputs - (now.done - now.foreign)),
                max_samples=now.max_samples,
                committed=now.committed,
            )
        )
    return holdings, sum(shown_number(rate) for rate in rates) or _speed_in_files(file)


def _from_files(file: RunFile, dataset: DatasetConfig) -> Holdings:
    folder = OutputFolder(file.config.output)
    index = read_index(folder, dataset.name)
    inputs = _prompts(dataset)
    answered = len(index.answers) - index.foreign
    return Holdings(
        name=dataset.name,
        cap=folder.cap(dataset.name, dataset.max_tokens),
        spent=index.tokens,
        lengths=planning.lengths_of(tokens for _, tokens, _ in index.entries() if tokens),
        prompts_left=None if inputs is None else max(0, inputs - answered - len(index.rejected)),
        max_samples=dataset.max_samples,
        committed=len(index.answers),
    )


def _prompts(dataset: DatasetConfig) -> int | None:
    """How many prompts its files have, where they can be counted here."""
    return len(PromptSource.open(dataset.prompts, None, dataset.fields))


def _speed_in_files(file: RunFile) -> float:
    """Tokens per second over all datasets, from the first answer to the last; 0 where that cannot be told."""
    times: list[float] = []
    tokens = 0
    folder = OutputFolder(file.config.output)
    for dataset in file.config.datasets:
        times += _times(folder.answers(dataset.name))
        tokens += read_index(folder, dataset.name).tokens
    seconds = max(times) - min(times) if times else 0.0
    return tokens / seconds if seconds > 1 else 0.0


def _times(path: Path) -> Iterator[float]:
    """When the first and the last answer of a file were made."""
    if not path.exists():
        return
    with path.open("rb") as file:
        first = file.readline()
        file.seek(max(0, path.stat().st_size - 1_000_000))
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    for raw in (first, last):
        try:
            yield float(json.loads(raw)["created_at"])
        except (ValueError, KeyError, TypeError):
            continue


_ENDS = {
    "complete": "has its tokens",
    "budget": "its budget",
    "prompts": "no prompts left",
    "unknown": "not known yet",
    "no cap": "all prompts",
}


def _show(console: Console, found: Plan, speed: float) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("dataset", no_wrap=True, max_width=18, overflow="ellipsis")
    for name in ("cap", "there", "mean", "needed", "prompts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ends by", overflow="fold")
    for dataset in found.datasets:
        table.add_row(
            dataset.name,
            view.tokens(dataset.cap),
            view.tokens(dataset.spent),
            "?" if dataset.mean is None else view.tokens(round(dataset.mean)),
            _needed(dataset),
            "?" if dataset.prompts_left is None else f"{dataset.prompts_left:,}",
            _ENDS[dataset.ends],
        )
    console.print(table)
    for line in _sentences(found, speed):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _needed(dataset: DatasetPlan) -> str:
    if dataset.answers is None:
        return "?"
    needed = dataset.answers
    return (
        f"{needed.expected:,}"
        if needed.least == needed.most
        else f"{needed.expected:,} ({needed.least:,}-{needed.most:,})"
    )


def _sentences(found: Plan, speed: float) -> Iterator[str]:
    yield f"still to generate: {view.tokens(found.tokens)} tokens" + (
        "" if not found.uncertain else f", and what {', '.join(found.uncertain)} will make, which no answer tells yet"
    )
    if found.hours is not None:
        yield f"at the measured {view.tokens(round(speed))} tok/s: {view.duration(found.hours * 3600)}"
    else:
        yield "how long it takes is known once answers have been measured"
    for dataset in found.datasets:
        if dataset.may_fall_short:
            yield f"{dataset.name} may run out of prompts before it has its tokens: add some"
    for dataset in found.datasets:
        if dataset.missing:
            yield f"{dataset.name} will run out of prompts {view.tokens(dataset.missing)} tokens before its cap"
    cost, caps = found.sample_cap_tokens, found.capped_tokens
    if cost is not None and caps and cost > caps:
        yield (
            f"a cap of {found.sample_cap:,} samples instead would have cost {view.tokens(cost)} tokens, "
            f"{cost / caps:.1f} times the budgets of {view.tokens(caps)}"
        )
