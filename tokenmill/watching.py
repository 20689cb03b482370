"""`tokenmill status`: once, as JSON, or until all datasets are finished."""

import json
import time
from collections.abc import Callable

import click
import msgspec
import redis
from rich.console import Console
from rich.live import Live

from budget import runbook
from budget.connections import RedisAway, RedisRefuses
from results.folder import OutputFolder
from tokenmill import screen, status, view
from tokenmill.runfile import RunFile
from tokenmill.state import Status
from workers.contracts import RunConfig

REDRAW_S = 1.0
LINE_EVERY_S = 10.0


def refuse_strangers(config: RunConfig, client: "redis.Redis") -> None:
    """Before anything in it is changed or shown: the Redis must not hold another run, nor one of another version.

    Raises:
        AnotherRun: its run has another output folder or, where there is no folder on this machine, another name.
        OtherProtocol: another version of Tokenmill wrote it.
    """
    entry = runbook.published(client)
    runbook.refuse_other(entry)
    state = OutputFolder(config.output).state()
    if state is not None:
        runbook.refuse_another(entry, state.id)
    else:
        runbook.refuse_another_name(entry, config.name)


def read(file: RunFile, connection: "tuple[redis.Redis, str] | None") -> Status:
    """The run's state, from Redis if there is one, else from the files.

    Raises:
        AnotherRun, OtherProtocol: as `refuse_strangers`.
    """
    if connection is None:
        return status.offline(file.config)
    refuse_strangers(file.config, connection[0])
    return status.online(file.config, *connection)


def once(file: RunFile, connection: "tuple[redis.Redis, str] | None", *, as_json: bool) -> None:
    """Print the state and return."""
    now = read(file, connection)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(now)))
    else:
        console = Console()
        console.print(screen.live(now, console, fitted=False))


def watch(file: RunFile, connection: "redis.Redis", url: str) -> None:
    """Show the state until all datasets are finished: redrawn in a terminal, a line now and then in a log."""
    console = Console(highlight=False)
    try:
        if console.is_terminal:
            _redraw(console, lambda: read(file, (connection, url)))
        else:
            _write_lines(console, lambda: read(file, (connection, url)))
    except KeyboardInterrupt:
        return  # it only looks on


def _redraw(console: Console, look: Callable[[], Status]) -> None:
    """In place, below what the terminal shows already; only when something has changed."""
    now: Status | None = None
    drawn: object = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            news: str | None = None
            try:
                now = look()
            except (RedisAway, RedisRefuses) as problem:
                news = str(problem)
            if now is not None and drawn != (now, news, console.size):
                drawn = (now, news, console.size)
                live.update(screen.live(now, console, news=news), refresh=True)
            elif now is None and drawn != news:
                drawn = news
                console.print(f"{news}; waiting", markup=False)
            if news is None and now is not None and now.state == "complete":
                return
            time.sleep(REDRAW_S)


def _write_lines(console: Console, look: Callable[[], Status]) -> None:
    """For a log: progress every few seconds, and what is wrong when it changes."""
    said: list[str] = []
    while True:
        try:
            now = look()
        except (RedisAway, RedisRefuses) as problem:
            wrong, now = [f"{problem}; waiting"], None
        else:
            wrong = [f"{trouble.what} -> {trouble.mend}" for trouble in now.troubles]
            console.print(view.log_lines(now), markup=False, soft_wrap=True)
        for line in wrong:
            if line not in said:
                console.print(f"! {line}", markup=False, soft_wrap=True)
        said = wrong
        if now is not None and now.state == "complete":
            return
        time.sleep(REDRAW_S if now is None else LINE_EVERY_S)
