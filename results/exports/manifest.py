"""The manifest: from what, by what, and into what an export was made, with every line accounted for."""

import importlib.metadata
import json
import platform
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from results.exports.files import OutFile, Totals
from results.exports.options import Options
from results.exports.rows import Row
from results.folder import OutputFolder
from results.turns import Answer, TurnFile
from workers.contracts import RunConfig, fingerprint

SCHEMA = 1


class Tally:
    """One dataset's account: each line of its answers is in a row, or left out for a reason.

    `marked` counts rows (not lines) that are kept and differ: `cut`, `history_differs`.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.lines_used = 0
        self.longest = 0
        self.left_out: Counter[str] = Counter()
        self.marked: Counter[str] = Counter()
        self.models: Counter[tuple[str, str]] = Counter()

    def take(self, row: Row, turns: list[Answer]) -> None:
        self.totals.add(row)
        self.lines_used += len(turns)
        self.longest = max(self.longest, row.tokens)
        for turn in turns:
            self.models[turn.model, turn.weight_version] += 1

    def leave_out(self, reason: str, lines: int = 1) -> None:
        self.left_out[reason] += lines


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset in the manifest, and what is said of it at the end."""

    name: str
    lines: int
    lines_used: int
    rows: int
    tokens: int
    supervised: int
    longest: int
    left_out: dict[str, int]
    marked: dict[str, int]
    rejected_prompts: dict[str, int]
    input: dict[str, Any]
    models: list[dict[str, Any]]


def part(name: str, source: TurnFile[Answer], tally: Tally, rejected: Counter[str]) -> Part:
    return Part(
        name=name,
        lines=source.lines,
        lines_used=tally.lines_used,
        rows=tally.totals.rows,
        tokens=tally.totals.tokens,
        supervised=tally.totals.supervised,
        longest=tally.longest,
        left_out=dict((source.left_out + tally.left_out).most_common()),
        marked={**dict(tally.marked), **({"mended_text": source.mended} if source.mended else {})},
        rejected_prompts=dict(rejected.most_common()),
        input={"file": str(source.path), "bytes": source.size, "sha256": source.sha256},
        models=[
            {"model": model, "weight_version": version, "rows": count}
            for (model, version), count in tally.models.most_common()
        ],
    )


def manifest(
    config: RunConfig, options: Options, folder: OutputFolder, parts: list[Part], files: list[OutFile]
) -> dict[str, Any]:
    """The manifest as it is written."""
    state = folder.state()
    names = {part.name for part in parts}
    return {
        "schema": SCHEMA,
        "run": config.name,
        "output_id": None if state is None else state.id,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": {name: _plain(value) for name, value in msgspec.structs.asdict(options).items()},
        "versions": _versions(options),
        "tokenizer": {"name": config.tokenizer, **_facts(folder, "tokenizer", ("tokenizer_hash", "template_hash"))},
        "model": _facts(folder, "model", ("model", "weight_version")),
        "made_under": {name: fingerprint(config, name) for name in sorted(names)},
        "run_file": {
            "admission": config.admission,
            "seed": config.seed,
            "max_tokens_total": config.max_tokens_total,
            "truncated": config.truncated,
            "chat_template_kwargs": config.chat_template_kwargs,
            "datasets": [msgspec.to_builtins(dataset) for dataset in config.datasets if dataset.name in names],
        },
        "datasets": [msgspec.to_builtins(part) for part in parts],
        "rows": sum(file.rows for file in files),
        "tokens": sum(file.tokens for file in files),
        "supervised": sum(file.supervised for file in files),
        "outputs": [msgspec.to_builtins(file) for file in files],
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _versions(options: Options) -> dict[str, str]:
    wanted = ["tokenmill"]
    wanted += ["pyarrow"] if options.format == "parquet" else []
    wanted += ["transformers"] if options.text else []
    found = {"python": platform.python_version()}
    for name in wanted:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _facts(folder: OutputFolder, name: str, wanted: tuple[str, ...]) -> dict[str, Any]:
    """What the run's parts have noted about the tokenizer or the model; nothing where they have not."""
    state = folder.state()
    if state is None or name not in state.facts:
        return {}
    try:
        facts: Any = json.loads(state.facts[name])
    except ValueError:
        return {}
    return {key: facts[key] for key in wanted if key in facts} if isinstance(facts, dict) else {}
