"""`tokenmill inspect`: what prompt files are understood to be, for people or as JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from budget import plain
from budget.errors import UserProblem
from tokenmill import logs

if TYPE_CHECKING:
    from rich.console import Console

    from producer.inspection import Inspection
    from workers.contracts import DatasetConfig

ROWS = 20_000
# Of a sample; a prompt of 20,000 characters would push everything else off the screen.
SHOWN_CHARACTERS = 1_500


@click.command("inspect")
@click.argument("targets", nargs=-1, required=True, metavar="FILE_OR_RUN.toml…")
@click.option("--tokenizer", help="Folder or hub name; the run file's if one is given.")
@click.option("--dataset", "name", help="Only this dataset of the run file.")
@click.option(
    "--rows", type=click.IntRange(min=0), default=ROWS, show_default=True, help="How many to look at; 0 for all."
)
@click.option("--field", "fields", multiple=True, metavar="OURS=THEIRS", help="Where in a row it stands: prompt=text.")
@click.option("--history", type=click.Choice(["turns", "keep"]), help="What becomes of the answers in conversations.")
@click.option("--context", "context", type=click.IntRange(min=16), help="The servers' context length, in tokens.")
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a value of the run file.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    targets: tuple[str, ...],
    tokenizer: str | None,
    name: str | None,
    rows: int,
    fields: tuple[str, ...],
    history: str | None,
    context: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what prompt files are understood to be, what will be sent, and what will be rejected.

    FILE may be a file, a pattern in quotes (its files are one dataset), or hf://owner/name. Needs no Redis
    and no server.

    \b
    Examples:
      tokenmill inspect prompts.jsonl --tokenizer Qwen/Qwen3-8B
      tokenmill inspect 'shards/*.parquet' --field prompt=question
      tokenmill inspect RUN.toml --dataset A1_chat
    """
    from rich.console import Console

    from producer.inspection import inspect
    from workers.chat import ChatTokenizer

    logs.configure()
    kwargs: dict[str, Any] = {}
    special, seed = False, 0
    if any(target.endswith(".toml") for target in targets):
        from tokenmill import runfile

        first, *others = targets
        if others:
            raise UserProblem("a run file is inspected alone: give it without other files")
        config = runfile.load(first, overrides).config
        tokenizer, seed = tokenizer or config.tokenizer, config.seed
        kwargs, special = config.chat_template_kwargs, config.special_tokens_in_text
        if name is not None and name not in (known := [held.name for held in config.datasets]):
            raise UserProblem(f"the run has no dataset {name}: it has {', '.join(known)}")
        datasets = [held for held in config.datasets if name in (None, held.name)]
    else:
        datasets = [_alone(target) for target in targets]
    datasets = [_changed(dataset, fields, history) for dataset in datasets]
    chat = ChatTokenizer.load(tokenizer, kwargs, special_tokens_in_text=special) if tokenizer else None
    found: list[Inspection] = []
    console = Console(highlight=False)
    for dataset in datasets:
        seen = inspect(dataset, chat, seed=seed, rows=rows or None, context_length=context)
        found.append(seen)
        if not as_json:
            show(seen, console)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))


def _alone(target: str) -> "DatasetConfig":
    from workers.contracts import DatasetConfig

    name = Path(target.partition("?")[0]).name.partition(".")[0] or "prompts"
    return DatasetConfig(name=name, prompts=target, max_tokens=None)


def _changed(dataset: "DatasetConfig", fields: tuple[str, ...], history: str | None) -> "DatasetConfig":
    from producer.fields import mistake

    mapped: dict[str, Any] = dict(dataset.fields)
    for field in fields:
        ours, separator, theirs = field.partition("=")
        if not separator:
            raise UserProblem(f"--field {field!r} is not OURS=THEIRS, such as prompt=question_text")
        mapped[ours] = {"header": theirs == "true", "columns": theirs.split(",")}.get(ours, theirs)
    if found := mistake(mapped):
        raise UserProblem(f"--field: {found}")
    return msgspec.structs.replace(dataset, fields=mapped, history=history or dataset.history)


def show(seen: "Inspection", console: "Console") -> None:
    """Print one dataset's inspection."""
    from rich.table import Table
    from rich.text import Text

    console.rule(Text(seen.dataset), align="left")
    for file in seen.files[:8]:
        console.print(Text(plain.one_line(f"{file.name}: {file.format}, {file.rows:,} rows")), soft_wrap=True)
    if len(seen.files) > 8:
        console.print(f"… and {len(seen.files) - 8} more files")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for word, said in _facts(seen):
        table.add_row(word, Text(plain.shown(said)))
    console.print(table)
    for sample in seen.samples:
        size = "" if sample.tokens is None else f", {sample.tokens:,} tokens"
        turns = f", turn 1 of {sample.turns}" if sample.turns > 1 else ""
        console.print()
        head = plain.one_line(f"{sample.id} ({sample.where}; {sample.shape}{turns}{size})")
        console.print(Text(head, style="bold"), soft_wrap=True)
        console.print(Text(_visible(sample.text)), soft_wrap=True)
    console.print()


def _facts(seen: "Inspection") -> list[tuple[str, str]]:
    facts = [
        ("prompts", f"{seen.prompts:,} of {seen.looked_at:,} rows; {seen.rejected:,} rejected"),
        ("shapes", _counts(seen.shapes)),
        ("ids from", _counts(seen.ids)),
        ("distinct", f"{seen.distinct:,} prompts, {seen.distinct_openings:,} openings"),
        ("repeated ids", f"{seen.repeated_ids:,}"),
        ("several turns", f"{_share(seen.several_turns, seen.prompts)}, up to {seen.most_turns}"),
        ("with", f"tools {seen.with_tools:,}, system prompt {seen.with_system:,}, reference {seen.with_reference:,}"),
    ]  # fmt: skip
    if (held := seen.lengths) is not None:
        facts.append(
            (
                "length",
                f"mean {held.mean:,}, min {held.least:,}, median {held.p50:,}, 90 % {held.p90:,}, 99 % {held.p99:,}, "
                f"max {held.most:,} {held.unit}; {held.total:,} in all",
            )
        )
    if seen.context_length is not None:
        facts.append(("over context", f"{seen.over_context:,} do not fit {seen.context_length:,} tokens"))
    if seen.template_system and (bare := seen.prompts - seen.with_system):
        facts.append(
            ("system prompt", f"the template adds its own to {bare:,} prompts: {_visible(seen.template_system, 200)!r}")
        )
    for special in seen.special[:8]:
        becomes = "becomes a special token" if seen.special_becomes_tokens else "stays text"
        facts.append(("special text", f"{special.text} in {special.prompts:,} prompts {becomes}; {special.where}"))
    for reject in seen.rejects:
        facts.append(("rejected", f"{reject.reason} {reject.count:,}: {reject.where}: {reject.detail}"))
    facts += [("note", note) for note in seen.notes]
    return facts


def _counts(held: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in held.items()) or "none"


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.0%})" if whole else "0"


def _visible(text: str, longest: int = SHOWN_CHARACTERS) -> str:
    """Text for a terminal: its control characters told, not obeyed, and its middle left out where it is long."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"
    return "".join(held if held in "\n\t" or held.isprintable() else repr(held)[1:-1] for held in text)
