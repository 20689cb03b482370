"""`tokenmill doctor`: everything that a run needs, looked at before it is needed."""

import json
from collections.abc import Iterable

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from budget.errors import Exit
from tokenmill.checkup import Finding, disk, prompts, redis_server, servers, tokenizer, versions
from tokenmill.runfile import RunFile

COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def examine(file: RunFile) -> Iterable[Finding]:
    """All findings, in the order in which they are made."""
    config = file.config
    yield from versions()
    chat, found = tokenizer(config)
    yield from found
    yield from prompts(config, chat)
    yield from disk(config)
    yield from redis_server(config)
    yield from servers(config, chat)


def run(file: RunFile, *, as_json: bool) -> Exit:
    """Print every finding; `Exit.DIFFERENCE` where one of them failed."""
    findings = list(examine(file))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(findings)))
    else:
        _show(findings)
    return Exit.DIFFERENCE if any(finding.verdict == "fail" for finding in findings) else Exit.DONE


def _show(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said = finding.said + (f"\n-> {finding.mend}" if finding.mend else "")
        table.add_row(Text(finding.verdict, style=COLOURS[finding.verdict]), Text(finding.check), Text(said))
    console.print(table)
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in COLOURS}
    console.print(f"{counts['pass']} passed, {counts['warn']} to look at, {counts['fail']} to mend")
