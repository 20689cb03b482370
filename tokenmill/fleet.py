"""`tokenmill servers`: the servers of a run as they are now, and how one joins or leaves in mid-run."""

import click

from budget import fleet
from budget.errors import UserProblem
from budget.fleet import Wish
from tokenmill import view, watching
from tokenmill.caps import Connection, some_redis
from tokenmill.runfile import RunFile
from workers import addresses

SAID: dict[Wish, str] = {
    "use": "in use; its workers hear it within seconds, and `work` and `run` start workers for a new one",
    "drain": "draining: nothing new is sent to it, and what is in flight there finishes",
    "remove": "removed: nothing new is sent to it, and its workers leave when what is in flight has finished",
}


def show(file: RunFile, connection: "Connection | None") -> None:
    """Print every server of the run and how it is."""
    servers = watching.read(file, connection).servers
    for server in servers:
        click.echo(view.server_line(server))
    if not servers and file.config.servers:
        for url in file.config.servers:
            click.echo(f"{url}: named in the run file; nothing is running")
    elif not servers:
        click.echo("the run has no server yet: add one with `tokenmill servers RUN.toml add URL`")


def say(file: RunFile, where: Connection, url: str, word: Wish) -> str:
    """Tell the workers what is wanted of a server from now on; returns what to say of it.

    Raises:
        UserProblem: it is not a URL, or not the URL of a server of the run.
    """
    (url,) = addresses.checked([url], "`tokenmill servers`")
    if word != "use":
        known = {*file.config.servers, *fleet.wishes(where[0])}
        known |= {server.url for server in watching.read(file, where).servers}
        if url not in known:
            those = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise UserProblem(f"the run has no server {url}: {those}")
    fleet.wish(where[0], url, word)
    return f"{url}: {SAID[word]}"


def change(file: RunFile, connection: "Connection | None", url: str, word: Wish) -> None:
    """Say what is wanted of a server, and say so.

    Raises:
        UserProblem: as `say`.
    """
    with some_redis(file, connection) as found:
        click.echo(say(file, found, url, word))
