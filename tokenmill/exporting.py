"""`tokenmill export` and `report`: what was written and left out, said in sentences."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click
import redis

from budget import runbook
from budget.connections import RedisAway, RedisRefuses
from results import reporting
from results.exports import Options, Outcome
from results.exports import export as write
from results.exports.manifest import Part
from results.folder import OutputFolder
from tokenmill import watching
from tokenmill.runfile import RunFile

# What the trainers cut rows to unless they are told otherwise.
_DEFAULT_LENGTH = {
    "specforge": ("SpecForge", "data.max_length", 2048),
    "speculators": ("speculators", "--seq-length", 8192),
}


def export(file: RunFile, options: Options, *, as_json: bool) -> None:
    """Write the export and say what is in it."""
    outcome = write(file.config, options)
    if as_json:
        click.echo(json.dumps(json.loads(outcome.manifest.read_bytes())))
        return
    for line in sentences(outcome, options):
        click.echo(line)


def sentences(outcome: Outcome, options: Options) -> list[str]:
    """What was written, by dataset and by file, and what a trainer must be told."""
    said = [_dataset(part) for part in outcome.datasets]
    for written in outcome.files:
        said.append(
            f"wrote {outcome.folder / written.file}: {written.rows:,} rows, {written.tokens:,} tokens, "
            f"{written.supervised:,} of them supervised"
        )
    longest = max(part.longest for part in outcome.datasets)
    trainer, name, usual = _DEFAULT_LENGTH.get(options.format, ("", "", 0))
    if trainer and longest > usual:
        said.append(f"the longest row has {longest:,} tokens, and {trainer} cuts rows at {usual:,}: set its {name}")
    said.append(f"manifest: {outcome.manifest}")
    return said


def _dataset(part: Part) -> str:
    said = f"{part.name}: {part.rows:,} rows from {part.lines_used:,} of {part.lines:,} lines"
    if part.left_out:
        said += f"; left out: {_counts(part.left_out)}"
    if part.marked:
        said += f"; marked: {_counts(part.marked)}"
    return said


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())


def report(file: RunFile, connection: "tuple[redis.Redis, str] | None", output: Path | None) -> str:
    """Write the report, with the caps that Redis knows where it runs; returns where it is, as a sentence."""
    caps: Mapping[str, int | None] | None = None
    if connection is not None:
        # The files say everything else; only a cap that was changed by `budget set` is known to Redis alone.
        with suppress(RedisAway, RedisRefuses):
            caps = {dataset.name: dataset.cap for dataset in watching.read(file, connection).datasets}
    state = OutputFolder(file.output).state()
    simulated = state is not None and runbook.SIMULATED in state.facts
    path = reporting.write(file.config, caps=caps, simulated=simulated, path=output)
    return f"report: {path}"
