"""`tokenmill init`: a commented run file from a folder of prompt files."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from budget.errors import Problem, UserProblem

if TYPE_CHECKING:
    from producer.inspection import Inspection

SUFFIXES = (".jsonl", ".json", ".ndjson", ".txt", ".csv", ".tsv", ".parquet")
PACKED = (".gz", ".zst")
ROWS = 50

HEAD = """\
# A run of Tokenmill, written by `tokenmill init`. Before anything is spent:
#   tokenmill inspect {file}      what the prompts are understood to be
#   tokenmill doctor {file}       whether everything that it needs is there
#   tokenmill plan {file}         what it will take
#   tokenmill run {file}          all of it, on this machine
# Paths are relative to this file. Unknown keys are errors.

[run]
name = {name}
output = "out"                        # answers: out/<dataset>/raw_responses.jsonl
max_tokens_per_dataset = 10_000_000   # the budget of each dataset, in tokens of its answers
admission = "forecast"                # stops at the budget by about one answer; "strict" never goes over
seed = 0                              # the order of the prompts; false keeps the files' order

[model]
tokenizer = {tokenizer}{hint}

[sglang]
# Without servers the run simulates one. Name one for each GPU or node, or a router:
# servers = ["http://gpu0:30000", "http://gpu1:30000"]
concurrency = 64                      # requests in flight per worker process

[sampling]                            # SGLang's own names; the model's defaults where nothing is said
temperature = 1.0
max_new_tokens = 16_384               # the longest answer
"""


def datasets(folder: Path) -> list[tuple[str, Path]]:
    """Each prompt file with a name for its dataset.

    Raises:
        UserProblem: there is none, or it is no folder.
    """
    if not folder.is_dir():
        raise UserProblem(f"{folder} is not a folder: give the one that holds your prompt files")
    found = sorted(path for path in folder.iterdir() if path.is_file() and _stem(path) is not None)
    if not found:
        raise UserProblem(f"there are no prompt files in {folder}: they end in {', '.join(SUFFIXES)}, also packed")
    names: dict[str, Path] = {}
    for path in found:
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", _stem(path) or "").strip("_") or "prompts"
        number = 2
        while name in names:
            name, number = f"{name.removesuffix(f'_{number - 1}')}_{number}", number + 1
        names[name] = path
    return list(names.items())


def _stem(path: Path) -> str | None:
    name = path.name
    for packed in PACKED:
        name = name.removesuffix(packed)
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and dot + suffix.lower() in SUFFIXES else None


def write(folder: Path, file: Path, tokenizer: str | None) -> list[str]:
    """Write the run file; returns what was seen of each prompt file, a sentence each.

    Raises:
        UserProblem: the file is there already, or the folder holds no prompts.
    """
    from producer.inspection import inspect
    from workers.contracts import DatasetConfig

    if file.exists():
        raise UserProblem(f"{file} is there already: give another name with --output, or move it away")
    base = file.resolve().parent
    parts, said = [_head(file, folder, tokenizer)], list[str]()
    for name, path in datasets(folder):
        try:
            seen = inspect(DatasetConfig(name=name, prompts=str(path), max_tokens=None), None, rows=ROWS, samples=0)
            note, off = _seen(seen), not seen.prompts
        except Problem as problem:
            note, off = str(problem), True
        said.append(f"{name}: {note}")
        shown = path.resolve()
        prompts = str(shown.relative_to(base)) if shown.is_relative_to(base) else str(shown)
        lines = [f"# {note}", "[[dataset]]", f"name = {json.dumps(name)}", f"prompts = {json.dumps(prompts)}"]
        parts.append("\n".join(["# " + line if off and not line.startswith("#") else line for line in lines]) + "\n")
    try:
        file.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise UserProblem(f"{file} cannot be written ({error.strerror}): give another name with --output") from error
    return said


def _head(file: Path, folder: Path, tokenizer: str | None) -> str:
    hint = "" if tokenizer else "      # <- your model's folder or its name on the hub"
    model = json.dumps(tokenizer or "/path/to/your/model")
    return HEAD.format(file=file, name=json.dumps(folder.resolve().name), tokenizer=model, hint=hint)


def _seen(seen: "Inspection") -> str:
    shapes = ", ".join(seen.shapes) or "no shape that is known"
    if not seen.prompts:
        why = seen.rejects[0].detail if seen.rejects else "it has no rows"
        return f"{seen.rows:,} rows, of which none looks like a prompt ({why}): name its columns in `fields`"
    left = f", {seen.rejected:,} of the first {seen.looked_at:,} cannot be used" if seen.rejected else ""
    return f"{seen.rows:,} rows: {shapes}{left}"


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--output", "file", type=click.Path(path_type=Path), default=Path("run.toml"), show_default=True,
    help="The run file to write.",
)  # fmt: skip
@click.option("--tokenizer", help="Your model's folder, or its name on the hub.")
def command(folder: Path, file: Path, tokenizer: str | None) -> None:
    """Write a commented run file for the prompt files in FOLDER, a dataset for each.

    \b
    Example:
      tokenmill init prompts --tokenizer Qwen/Qwen3-8B
    """
    for line in write(folder, file, tokenizer):
        click.echo(line)
    first = "" if tokenizer else "name your model in it, then "
    click.echo(f"\nwrote {file}; next: {first}tokenmill doctor {file}")
