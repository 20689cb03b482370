"""`tokenmill status`: once, as JSON, or until all datasets are finished."""

import json
import time

import click
import msgspec
import redis
from rich.console import Console
from rich.live import Live

from budget.connections import RedisAway, RedisRefuses
from tokenmill import status, view
from tokenmill.runfile import RunFile

REDRAW_S = 1.0
LINE_EVERY_S = 10.0


def read(file: RunFile, connection: "tuple[redis.Redis, str] | None") -> status.Status:
    """The run's state, from Redis if there is one, else from the files."""
    simulated = not file.config.servers
    if connection is None:
        return status.offline(file.config, simulated=simulated)
    return status.online(file.config, *connection, simulated=simulated)


def once(file: RunFile, connection: "tuple[redis.Redis, str] | None", *, as_json: bool) -> None:
    """Print the state and return."""
    now = read(file, connection)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(now)))
    else:
        view.show(Console(), now)


def watch(file: RunFile, connection: "redis.Redis", url: str) -> None:
    """Show the state until all datasets are finished: redrawn in a terminal, a line now and then in a log."""
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    if live is not None:
        live.start()
    try:
        while True:
            try:
                now = read(file, (connection, url))
            except (RedisAway, RedisRefuses) as problem:
                console.print(f"{problem}; waiting", highlight=False, markup=False)
                time.sleep(REDRAW_S)
                continue
            if live is not None:
                live.update(view.live(now), refresh=True)
            else:
                console.print(view.log_lines(now), highlight=False, markup=False, soft_wrap=True)
            if now.state == "complete":
                return
            time.sleep(REDRAW_S if live is not None else LINE_EVERY_S)
    except KeyboardInterrupt:
        return  # it only looks on
    finally:
        if live is not None:
            live.stop()
