"""What the commands share: the run file and its options, Redis or the files, and the signals."""

import logging
import math
import threading
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from budget import environment, failpoints, signals
from budget.errors import Refused, UserProblem
from tokenmill import logs

if TYPE_CHECKING:
    import redis

    from tokenmill.runfile import RunFile

log = logging.getLogger("tokenmill.run")

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a value of the run file."
)


def run_file(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command on a run file: loads it with its overrides, sets up the log."""

    def command(
        run_toml: Path, overrides: tuple[str, ...], log_format: logs.Format, verbose: bool, **options: Any
    ) -> Any:
        from tokenmill import runfile

        logs.configure(log_format, verbose=verbose)
        failpoints.check()
        return function(runfile.load(run_toml, overrides), overrides=overrides, **options)

    decorated: Callable[..., Any] = update_wrapper(command, function)
    for add in (
        click.option("--verbose", is_flag=True, help="Log more."),
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", help="Logs for people or programs."
        ),
        set_option,
        click.argument("run_toml", type=click.Path(path_type=Path), metavar="RUN.toml"),
    ):
        decorated = add(decorated)
    return decorated


class _Seconds(click.FloatRange):
    """A number of seconds, of which a clock can tell when they are over."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


# More processes than any machine takes are a slip of the finger.
WORKERS = click.IntRange(1, 1024)

wait_option = click.option(
    "--wait", "wait_s", type=_Seconds(0, 31_536_000), default=60.0, show_default=True,
    help="Seconds to wait at the start for Redis and servers that cannot be reached.",
)  # fmt: skip  # fmt: skip
stay_option = click.option("--stay", is_flag=True, help="Do not leave when all datasets are finished.")


def redis_url(file: "RunFile", *, needed_by: str) -> str:
    from tokenmill import embedded

    url = environment.redis_url() or embedded.live_url(file.output)
    if url is None:
        raise UserProblem(
            f"`tokenmill {needed_by}` needs a Redis: set TOKENMILL_REDIS_URL=redis://HOST:PORT/0, or use "
            f"`tokenmill run`, which starts one of its own"
        )
    return url


def redis_or_files(file: "RunFile", *, only_look: bool = False) -> "tuple[redis.Redis, str] | None":
    """A connection for commands that also answer from the files: None where no Redis is named or running.

    Those that only look are content with the files where Redis is named but away, or forgotten beside a live run.

    Raises:
        Refused: the run is at work with a Redis that is not named here; a change would not reach it.
    """
    from budget import connections
    from results.folder import OutputFolder
    from tokenmill import embedded

    url = environment.redis_url() or embedded.live_url(file.output)
    if url is None:
        if OutputFolder(file.output).is_locked():
            forgotten = (
                f"a collector is at work on {file.output}, with a Redis that is not named here: set "
                f"TOKENMILL_REDIS_URL as it has it"
            )
            if not only_look:
                raise Refused(forgotten)
            log.warning("%s; this is what the files say", forgotten)
        return None
    connection = connections.connect(url)
    if only_look:
        try:
            with connections.translated():
                connection.ping()
        except connections.RedisAway as away:
            log.warning("%s: this is what the files say", away)
            return None
    return connection, url


def stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        stop.set()

    signals.catch(on_signal)
    return stop


def known(file: "RunFile", datasets: tuple[str, ...]) -> list[str]:
    names = [dataset.name for dataset in file.config.datasets]
    for name in datasets:
        if name not in names:
            raise UserProblem(f"the run has no dataset {name}: it has {', '.join(names)}")
    return list(datasets) or names
