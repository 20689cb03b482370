"""The command line: one command for each part of the job, the same exit codes everywhere.

A problem is one sentence on standard error. Heavy imports are made inside commands, so that
`tokenmill --help` and `tokenmill status` answer at once.
"""

import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from budget import environment, failpoints
from budget.errors import Exit, Interrupted, OwnFault, Problem, UserProblem
from tokenmill import __version__, logs

if TYPE_CHECKING:
    import redis

    from budget.fleet import Wish
    from tokenmill.runfile import RunFile

log = logging.getLogger("tokenmill.run")

EPILOG = """Exit codes: 0 done, 1 a check found a difference, 2 something you must change, 3 interrupted or out of
time (run again to continue), 4 refused (another run owns it, or Redis is unsafe), 5 a fault outside."""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tokenmill")
def cli() -> None:
    """Make draft-model training data from the target model's own answers, to a budget of tokens per dataset.

    \b
    Everything on this machine:   tokenmill run RUN.toml
    Or in several terminals:      tokenmill collect RUN.toml
                                  tokenmill push RUN.toml
                                  tokenmill work RUN.toml -n 2
    """


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
)  # fmt: skip
stay_option = click.option("--stay", is_flag=True, help="Do not leave when all datasets are finished.")


def _redis_url(file: "RunFile", *, needed_by: str) -> str:
    from tokenmill import embedded

    url = environment.redis_url() or embedded.live_url(file.output)
    if url is None:
        raise UserProblem(
            f"`tokenmill {needed_by}` needs a Redis: set TOKENMILL_REDIS_URL=redis://HOST:PORT/0, or use "
            f"`tokenmill run`, which starts one of its own"
        )
    return url


def _connection(file: "RunFile", *, only_look: bool = False) -> "tuple[redis.Redis, str] | None":
    """A connection for commands that also answer from the files: None where no Redis is named or running.

    Those that only look are content with the files where Redis is named but away.
    """
    from budget import connections
    from tokenmill import embedded

    url = environment.redis_url() or embedded.live_url(file.output)
    if url is None:
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


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return stop


@cli.command()
@run_file
@click.option("-n", "workers", type=WORKERS, default=1, show_default=True, help="Worker processes per server.")
@click.option("--json", "as_json", is_flag=True, help="Print the final status as JSON, on the last line.")
@wait_option
def run(file: "RunFile", *, overrides: tuple[str, ...], workers: int, as_json: bool, wait_s: float) -> None:
    """Run the whole job on this machine; again to continue.

    Starts a Redis of its own if TOKENMILL_REDIS_URL names none, and the simulated SGLang if the run file
    names no server.
    """
    from rich.console import Console

    from results.folder import OutputFolder
    from tokenmill.local import LocalRun, simulator_config

    simulator_config(file)
    _check_prompts(file)
    OutputFolder(file.output).refuse_if_taken()
    console = Console(stderr=as_json)
    sys.exit(
        LocalRun(file, overrides=overrides, workers=workers, wait_s=wait_s, as_json=as_json, console=console).run()
    )


def _check_prompts(file: "RunFile") -> None:
    """Missing prompt files, and a tokenizer's folder that is not there, are said before anything is started."""
    from producer.prompt_set import Files
    from workers.chat import check_name

    check_name(file.config.tokenizer)
    Files(file.config).check(file.config.datasets)


@cli.command()
@run_file
@click.option("--sample-cap", type=click.IntRange(min=1), default=7000, help="Cap in samples to compare with (7000).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(file: "RunFile", *, overrides: tuple[str, ...], sample_cap: int, as_json: bool) -> None:
    """Say what a run still needs: tokens, answers, hours, and which datasets will run out of prompts."""
    from tokenmill import planned

    planned.plan(file, _connection(file, only_look=True), sample_cap=sample_cap, as_json=as_json)


@cli.command()
@run_file
@stay_option
@wait_option
def collect(file: "RunFile", *, overrides: tuple[str, ...], stay: bool, wait_s: float) -> None:
    """Write the results: run it on the machine that has the output folder, before the others."""
    from results.collector import Collector

    url = _redis_url(file, needed_by="collect")
    if not Collector(file.config, url, stop=_stop_on_signals(), stay=stay, wait_s=wait_s).run():
        raise Interrupted("the collector was stopped; run the same command again to continue")


@cli.command()
@run_file
@click.argument("datasets", nargs=-1)
@stay_option
@wait_option
def push(file: "RunFile", datasets: tuple[str, ...], *, overrides: tuple[str, ...], stay: bool, wait_s: float) -> None:
    """Queue the prompts of all datasets (or of those named), and keep the queues topped up."""
    from producer.loop import produce

    url = _redis_url(file, needed_by="push")
    names = _known(file, datasets)
    stop = _stop_on_signals()
    if file.config.max_hours is not None:
        timer = threading.Timer(file.config.max_hours * 3600, stop.set)
        timer.daemon = True
        timer.start()
    produce(file.config, url, names, stay=stay, stop=stop, wait_s=wait_s)


def _known(file: "RunFile", datasets: tuple[str, ...]) -> list[str]:
    names = [dataset.name for dataset in file.config.datasets]
    for name in datasets:
        if name not in names:
            raise UserProblem(f"the run has no dataset {name}: it has {', '.join(names)}")
    return list(datasets) or names


@cli.command()
@run_file
@click.option("-n", "number", type=WORKERS, default=1, show_default=True, help="Worker processes per server.")
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="URL",
    help="Use this server (repeat for more) instead of the run file's.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, environment.MOST_IN_FLIGHT),
    help="Requests in flight per process, instead of the run file's.",
)
@click.option("--name", help="The worker's name, if it is one process.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus here (0: any free port; several processes count on from it).",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address that they are served on.")
@stay_option
@wait_option
def work(
    file: "RunFile",
    *,
    overrides: tuple[str, ...],
    number: int,
    servers: tuple[str, ...],
    concurrency: int | None,
    name: str | None,
    metrics_port: int | None,
    metrics_host: str,
    stay: bool,
    wait_s: float,
) -> None:
    """Start workers, at any time, on any machine; they leave when all datasets are finished."""
    from tokenmill.crew import Work
    from workers import addresses

    Work(
        file,
        _redis_url(file, needed_by="work"),
        own=addresses.checked(servers, "--server"),
        overrides=overrides,
        number=number,
        concurrency=concurrency,
        name=name,
        metrics=None if metrics_port is None else (metrics_host, metrics_port),
        stay=stay,
        wait_s=wait_s,
    ).run()


@cli.command()
@run_file
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8787, show_default=True, help="0: any free one.")
@click.option(
    "--allow-host", "allow_hosts", multiple=True, metavar="NAME",
    help="Also answer to this name, such as a proxy's (repeat for more).",
)  # fmt: skip
def dashboard(
    file: "RunFile", *, overrides: tuple[str, ...], host: str, port: int, allow_hosts: tuple[str, ...]
) -> None:
    """Show the run in a browser, and its metrics to Prometheus, until Ctrl-C.

    Read-only, unless TOKENMILL_DASHBOARD_TOKEN is set: who gives that token on the page may change caps,
    drain servers and pause the run.
    """
    try:
        from tokenmill.dashboard import serve
    except ModuleNotFoundError as error:
        raise UserProblem(
            f"`tokenmill dashboard` needs the package {error.name}: install it with pip install 'tokenmill[dashboard]'"
        ) from error
    serve(file, host=host, port=port, allow_hosts=allow_hosts)


@cli.command()
@run_file
@click.option("--watch", is_flag=True, help="Keep showing it until all datasets are finished.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(file: "RunFile", *, overrides: tuple[str, ...], watch: bool, as_json: bool) -> None:
    """Show tokens, progress, workers and servers of a run."""
    from tokenmill.watching import once
    from tokenmill.watching import watch as keep_watching

    connection = _connection(file, only_look=True)
    if watch and connection is not None:
        keep_watching(file, *connection)
    else:
        once(file, connection, as_json=as_json)


@cli.group(invoke_without_command=True)
@click.argument("run_toml", type=click.Path(path_type=Path), metavar="RUN.toml")
@set_option
@click.pass_context
def budget(context: click.Context, run_toml: Path, overrides: tuple[str, ...]) -> None:
    """Show the caps, or change one, also while the run goes on: budget RUN.toml set DATASET TOKENS|none."""
    from tokenmill import caps, runfile

    logs.configure()
    file = runfile.load(run_toml, overrides)
    context.obj = file
    if context.invoked_subcommand is None:
        caps.show(file, _connection(file, only_look=True))


@budget.command("set", context_settings={"ignore_unknown_options": True})  # so that -1 is read as a number
@click.argument("dataset")
@click.argument("tokens")
@click.pass_obj
def budget_set(file: "RunFile", dataset: str, tokens: str) -> None:
    """Set the cap of DATASET to TOKENS (or to none: no cap)."""
    from tokenmill import caps

    _known(file, (dataset,))
    caps.change(file, _connection(file), dataset, tokens)


@cli.group(invoke_without_command=True)
@click.argument("run_toml", type=click.Path(path_type=Path), metavar="RUN.toml")
@set_option
@click.pass_context
def servers(context: click.Context, run_toml: Path, overrides: tuple[str, ...]) -> None:
    """Show the servers, or change them while the run goes on: servers RUN.toml add|drain|remove URL."""
    from tokenmill import fleet, runfile

    logs.configure()
    file = runfile.load(run_toml, overrides)
    context.obj = file
    if context.invoked_subcommand is None:
        fleet.show(file, _connection(file, only_look=True))


def _change_server(file: "RunFile", url: str, word: "Wish") -> None:
    from tokenmill import fleet

    fleet.change(file, _connection(file), url, word)


@servers.command("add")
@click.argument("url")
@click.pass_obj
def servers_add(file: "RunFile", url: str) -> None:
    """Use the server at URL from now on; also one that was drained or removed."""
    _change_server(file, url, "use")


@servers.command("drain")
@click.argument("url")
@click.pass_obj
def servers_drain(file: "RunFile", url: str) -> None:
    """Send nothing new to the server at URL; what is in flight there finishes."""
    _change_server(file, url, "drain")


@servers.command("remove")
@click.argument("url")
@click.pass_obj
def servers_remove(file: "RunFile", url: str) -> None:
    """Drain the server at URL and take it off the run's list; its workers leave."""
    _change_server(file, url, "remove")


@cli.command()
@run_file
@click.argument("datasets", nargs=-1)
@click.option("--reason", help="Only those rejected for this reason, such as too_long.")
def retry(file: "RunFile", datasets: tuple[str, ...], *, overrides: tuple[str, ...], reason: str | None) -> None:
    """Bring rejected prompts back."""
    from tokenmill import retrying

    retrying.retry(file, _connection(file), _known(file, datasets), reason)


@cli.command()
@run_file
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def verify(file: "RunFile", *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Derive every count from the files again and compare; exit 1 where something differs."""
    from results import verify as checker

    connection = _connection(file, only_look=True)
    report = checker.verify(file.config, connection[0] if connection else None)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report)))
    else:
        from tokenmill import view

        for line in view.verification(report):
            click.echo(line)
    sys.exit(Exit.DONE if report.is_good else Exit.DIFFERENCE)


@cli.command()
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
    """Write training files from the answers, each as a whole or not at all, and a manifest."""
    from results.exports import Options
    from tokenmill import exporting

    names = tuple(_known(file, datasets)) if datasets else ()
    exporting.export(file, Options(format=kind, datasets=names, **options), as_json=as_json)


@cli.command()
@run_file
@click.option("--output", type=click.Path(path_type=Path), help="The file; report.html in the output folder.")
def report(file: "RunFile", *, overrides: tuple[str, ...], output: Path | None) -> None:
    """Write report.html: tokens, lengths, servers and rejects of the run, in one file that opens anywhere."""
    from tokenmill import exporting

    click.echo(exporting.report(file, _connection(file), output))


@cli.command()
@run_file
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(file: "RunFile", *, overrides: tuple[str, ...], yes: bool) -> None:
    """Free the Redis database of this run; the files stay, and the next run is seeded from them."""
    from tokenmill import resetting

    resetting.reset(file, _connection(file), sure=yes)


@cli.command()
@run_file
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(file: "RunFile", *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Look at all that a run needs (tokenizer, prompts, disk, Redis, servers) and say what to mend.

    Changes nothing; exit 1 where something would keep the run from starting.
    """
    from tokenmill import doctor as examination

    sys.exit(examination.run(file, as_json=as_json))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script.

    \b
    bash:  eval "$(tokenmill completion bash)"     in ~/.bashrc
    zsh:   eval "$(tokenmill completion zsh)"      in ~/.zshrc
    fish:  tokenmill completion fish > ~/.config/fish/completions/tokenmill.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "tokenmill", "_TOKENMILL_COMPLETE").source())


def _add_commands() -> None:
    from tokenmill import beginning, inspecting
    from workers.simulator.__main__ import command

    cli.add_command(command, "sim")
    cli.add_command(inspecting.command)
    cli.add_command(beginning.command)


_add_commands()


def _usage(error: click.ClickException) -> str:
    """What is wrong with the command line, as one sentence."""
    said = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{said} (see `{context.command_path} --help`)" if context is not None else said


def main() -> None:
    """The entry point: problems become one sentence and their exit code; never a traceback."""
    try:
        cli.main(prog_name="tokenmill", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(Exit.USER)
    except click.ClickException as error:
        click.echo(f"tokenmill: {_usage(error)}", err=True)
        sys.exit(Exit.USER)
    except Interrupted as problem:
        click.echo(f"tokenmill: {problem}", err=True)
        sys.exit(Exit.INTERRUPTED)
    except Problem as problem:
        click.echo(f"tokenmill: {problem}", err=True)
        sys.exit(problem.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("tokenmill: interrupted; run the same command again to continue", err=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.DONE)
    except Exception as error:  # the outermost boundary: a fault of ours still ends in a sentence
        log.debug("the fault in full", exc_info=True)
        click.echo(f"tokenmill: {OwnFault(error)}", err=True)
        sys.exit(Exit.OUTSIDE)
