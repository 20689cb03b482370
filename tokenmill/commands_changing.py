"""The commands that change a run: its caps, its servers, its rejected prompts, its database."""

from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenmill import logs
from tokenmill.options import (
    known,
    redis_or_files,
    run_file,
    set_option,
)

if TYPE_CHECKING:
    from budget.fleet import Wish
    from tokenmill.caps import Connection
    from tokenmill.runfile import RunFile


def _run_file_group(function: Callable[..., None]) -> click.Group:
    """A group of changes to a run, after its run file: GROUP RUN.toml [CHANGE …]. Alone it shows how things are."""

    def group(context: click.Context, run_toml: Path, overrides: tuple[str, ...]) -> None:
        from tokenmill import runfile

        logs.configure()
        file = context.obj = runfile.load(run_toml, overrides)
        if context.invoked_subcommand is None:
            function(file, redis_or_files(file, only_look=True))

    decorated: Callable[..., None] = click.pass_context(update_wrapper(group, function))
    decorated = set_option(decorated)
    decorated = click.argument("run_toml", type=click.Path(path_type=Path), metavar="RUN.toml")(decorated)
    return click.group(invoke_without_command=True)(decorated)


@_run_file_group
def budget(file: "RunFile", connection: "Connection | None") -> None:
    """Show the caps, or change one, also while the run goes on: budget RUN.toml set DATASET TOKENS|none.

    \b
    Examples:
      tokenmill budget RUN.toml
      tokenmill budget RUN.toml set A1_chat 12000000
    """
    from tokenmill import caps

    caps.show(file, connection)


@budget.command("set", context_settings={"ignore_unknown_options": True})  # so that -1 is read as a number
@click.argument("dataset")
@click.argument("tokens")
@click.pass_obj
def budget_set(file: "RunFile", dataset: str, tokens: str) -> None:
    """Set the cap of DATASET to TOKENS (or to none: no cap).

    \b
    Examples:
      tokenmill budget RUN.toml set A1_chat 12000000
      tokenmill budget RUN.toml set A1_chat none
    """
    from tokenmill import caps

    known(file, (dataset,))
    caps.change(file, redis_or_files(file), dataset, tokens)


@_run_file_group
def servers(file: "RunFile", connection: "Connection | None") -> None:
    """Show the servers, or change them while the run goes on: servers RUN.toml add|drain|remove URL.

    \b
    Examples:
      tokenmill servers RUN.toml
      tokenmill servers RUN.toml drain http://gpu3:30000
    """
    from tokenmill import fleet

    fleet.show(file, connection)


def _change_server(file: "RunFile", url: str, word: "Wish") -> None:
    from tokenmill import fleet

    fleet.change(file, redis_or_files(file), url, word)


@servers.command("add")
@click.argument("url")
@click.pass_obj
def servers_add(file: "RunFile", url: str) -> None:
    """Use the server at URL from now on; also one that was drained or removed.

    \b
    Example:
      tokenmill servers RUN.toml add http://gpu4:30000
    """
    _change_server(file, url, "use")


@servers.command("drain")
@click.argument("url")
@click.pass_obj
def servers_drain(file: "RunFile", url: str) -> None:
    """Send nothing new to the server at URL; what is in flight there finishes.

    \b
    Example:
      tokenmill servers RUN.toml drain http://gpu3:30000
    """
    _change_server(file, url, "drain")


@servers.command("remove")
@click.argument("url")
@click.pass_obj
def servers_remove(file: "RunFile", url: str) -> None:
    """Drain the server at URL and take it off the run's list; its workers leave.

    \b
    Example:
      tokenmill servers RUN.toml remove http://gpu3:30000
    """
    _change_server(file, url, "remove")


@click.command()
@run_file
@click.argument("datasets", nargs=-1)
@click.option("--reason", help="Only those rejected for this reason, such as too_long.")
def retry(file: "RunFile", datasets: tuple[str, ...], *, overrides: tuple[str, ...], reason: str | None) -> None:
    """Bring rejected prompts back.

    \b
    Examples:
      tokenmill retry RUN.toml
      tokenmill retry RUN.toml A1_chat --reason timeout
    """
    from tokenmill import retrying

    retrying.retry(file, redis_or_files(file), known(file, datasets), reason)


@click.command()
@run_file
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(file: "RunFile", *, overrides: tuple[str, ...], yes: bool) -> None:
    """Free the Redis database of this run; the files stay, and the next run is seeded from them.

    \b
    Example:
      tokenmill reset RUN.toml
    """
    from tokenmill import resetting

    resetting.reset(file, redis_or_files(file), sure=yes)


COMMANDS = (budget, servers, retry, reset)
