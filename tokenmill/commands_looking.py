"""The commands that only look: at what a run needs, at how it goes, at what came of it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from budget import plain
from budget.errors import Exit
from tokenmill.options import (
    known,
    redis_or_files,
    run_file,
)

if TYPE_CHECKING:
    from tokenmill.runfile import RunFile


@click.command()
@run_file
@click.option("--sample-cap", type=click.IntRange(min=1), default=7000, help="Cap in samples to compare with (7000).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(file: "RunFile", *, overrides: tuple[str, ...], sample_cap: int, as_json: bool) -> None:
    """Say what a run still needs: tokens, answers, hours, and which datasets will run out of prompts.

    \b
    Examples:
      tokenmill plan RUN.toml
      tokenmill plan RUN.toml --sample-cap 5000
    """
    from tokenmill import planned

    planned.plan(file, redis_or_files(file, only_look=True), sample_cap=sample_cap, as_json=as_json)


@click.command()
@run_file
@click.option("--watch", is_flag=True, help="Keep showing it until all datasets are finished.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(file: "RunFile", *, overrides: tuple[str, ...], watch: bool, as_json: bool) -> None:
    """Show tokens, progress, workers and servers of a run.

    \b
    Examples:
      tokenmill status RUN.toml --watch
      tokenmill status RUN.toml --json
    """
    from tokenmill.watching import once
    from tokenmill.watching import watch as keep_watching

    connection = redis_or_files(file, only_look=True)
    if watch and connection is not None:
        keep_watching(file, *connection)
    else:
        once(file, connection, as_json=as_json)


@click.command()
@run_file
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def verify(file: "RunFile", *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Derive every count from the files again and compare; exit 1 where something differs.

    \b
    Example:
      tokenmill verify RUN.toml
    """
    from results import verify as checker

    connection = redis_or_files(file, only_look=True)
    report = checker.verify(file.config, connection[0] if connection else None)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report)))
    else:
        from tokenmill import view

        for line in view.verification(report):
            click.echo(plain.one_line(line))
    sys.exit(Exit.DONE if report.is_good else Exit.DIFFERENCE)


@click.command()
@run_file
@click.option(
    "--format",
    "kind",
    type=click.Choice(["specforge", "speculators", "conversations", "parquet"]),
    required=True,
    help="Token ids with a loss mask for SpecForge (one file), for speculators (a folder) or as Parquet; or messages.",
)
@click.option("--output", type=click.Path(path_type=Path), help="File or folder; exports/ in the output folder.")
@click.option("--dataset", "datasets", multiple=True, metavar="NAME", help="Only this one (repeat for more).")
@click.option("--max-length", type=click.IntRange(min=1), help="Cut longer rows to so many tokens.")
@click.option(
    "--min-supervised",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Leave out rows with fewer generated tokens.",
)
@click.option("--finish", type=click.Choice(["any", "stop"]), default="any", help="stop: leave out truncated answers.")
@click.option("--dedupe", is_flag=True, help="Leave out rows with the same token ids as an earlier one.")
@click.option("--split", type=float, metavar="SHARE", help="Write train and eval, with this share of prompts in train.")
@click.option("--text", is_flag=True, help="Decode each row's ids into its text; without it, text is the answer's.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def export(
    file: "RunFile", *, overrides: tuple[str, ...], kind: Any, datasets: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Write training files from the answers, each as a whole or not at all, and a manifest.

    \b
    Examples:
      tokenmill export RUN.toml --format specforge
      tokenmill export RUN.toml --format parquet --finish stop --split 0.95
    """
    from results.exports import Options
    from tokenmill import exporting

    names = tuple(known(file, datasets)) if datasets else ()
    exporting.export(file, Options(format=kind, datasets=names, **options), as_json=as_json)


@click.command()
@run_file
@click.option("--output", type=click.Path(path_type=Path), help="The file; report.html in the output folder.")
def report(file: "RunFile", *, overrides: tuple[str, ...], output: Path | None) -> None:
    """Write report.html: tokens, lengths, servers and rejects of the run, in one file that opens anywhere.

    \b
    Example:
      tokenmill report RUN.toml --output run.html
    """
    from tokenmill import exporting

    click.echo(exporting.report(file, redis_or_files(file), output))


@click.command()
@run_file
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(file: "RunFile", *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Look at all that a run needs (tokenizer, prompts, disk, Redis, servers) and say what to mend.

    Changes nothing; exit 1 where something would keep the run from starting.

    \b
    Example:
      tokenmill doctor RUN.toml
    """
    from tokenmill import doctor as examination

    sys.exit(examination.run(file, as_json=as_json))


COMMANDS = (plan, status, verify, export, report, doctor)
