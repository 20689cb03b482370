"""`tokenmill budget`: the caps as they are now, and how to change one."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

import click
import msgspec
import redis

from budget import connections, runbook
from budget.errors import UserProblem
from results.folder import Cap, OutputFolder
from tokenmill import view, watching
from tokenmill.embedded import EmbeddedRedis
from tokenmill.runfile import RunFile
from tokenmill.runvalues import LARGEST_WHOLE

Connection = tuple["redis.Redis", str]


@contextmanager
def _own_server(file: RunFile) -> Generator[Connection]:
    with EmbeddedRedis(file.output) as server:
        yield connections.connect(server.url), server.url


@contextmanager
def _given(file: RunFile, connection: Connection) -> Generator[Connection]:
    watching.refuse_strangers(file.config, connection[0])
    yield connection


def some_redis(file: RunFile, connection: "Connection | None") -> AbstractContextManager[Connection]:
    """The run's Redis for a change: the one that runs, else its own, started for the moment.

    Raises:
        AnotherRun, OtherProtocol: as `watching.refuse_strangers`.
    """
    return _own_server(file) if connection is None else _given(file, connection)


def show(file: RunFile, connection: "Connection | None") -> None:
    """Print every dataset's cap and what is spent of it."""
    for dataset in watching.read(file, connection).datasets:
        left = "no cap" if dataset.cap is None else f"{view.tokens(max(0, dataset.cap - dataset.spent))} left"
        click.echo(
            f"{dataset.name}: {dataset.spent} of {'none' if dataset.cap is None else dataset.cap} tokens, {left}"
        )


def read(file: RunFile, dataset: str, tokens: str) -> int | None:
    """What a person gave as a dataset's cap; None for no cap.

    Raises:
        UserProblem: it is neither a number of tokens nor the word none, or below one worst case under strict.
    """
    word = tokens.strip().replace("_", "").replace(",", "")
    if word != "none" and not (word.isascii() and word.isdigit()):
        raise UserProblem(f"{tokens!r} is no cap: give a number of tokens (0 or more) or the word none")
    if len(word) > 16 or (word != "none" and int(word) > LARGEST_WHOLE):
        raise UserProblem(f"{tokens!r} is no cap: it can be at most {LARGEST_WHOLE:,} tokens (2^53)")
    cap = None if word == "none" else int(word)
    worst = int(file.config.dataset(dataset).sampling["max_new_tokens"])
    if file.config.admission == "strict" and cap is not None and 0 < cap < worst:
        raise UserProblem(
            f'under admission "strict" a cap must be 0, none, or at least one worst case ({worst} tokens)'
        )
    return cap


def write(client: "redis.Redis", dataset: str, cap: int | None) -> str:
    """Set a dataset's cap; returns what to say of it."""
    before = runbook.set_cap(client, dataset, cap)
    return f"{dataset}: cap {'none' if before is None else before} -> {'none' if cap is None else cap} tokens"


def change(file: RunFile, connection: "Connection | None", dataset: str, tokens: str) -> None:
    """Set a dataset's cap, and say so.

    Raises:
        UserProblem: as `read`.
    """
    cap = read(file, dataset, tokens)
    with some_redis(file, connection) as (client, _):
        click.echo(write(client, dataset, cap))
    if connection is None:
        _keep(file, dataset, cap)
        click.echo("nothing of this run is at work: the same command as before goes on with it")


def _keep(file: RunFile, dataset: str, cap: int | None) -> None:
    """Tell the folder, as the collector does while it runs: without a Redis it is what everybody looks at."""
    folder = OutputFolder(file.output)
    if (state := folder.state()) is not None:
        known = Cap(cap=cap, file=file.config.dataset(dataset).max_tokens)
        folder.save(msgspec.structs.replace(state, caps={**state.caps, dataset: known}))
