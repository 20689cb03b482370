"""The commands that are parts of a run: each one process, or all of them on this machine."""

import sys
import threading
from typing import TYPE_CHECKING

import click

from budget import environment
from budget.errors import Interrupted, UserProblem
from tokenmill.options import (
    WORKERS,
    known,
    redis_url,
    run_file,
    stay_option,
    stop_on_signals,
    wait_option,
)

if TYPE_CHECKING:
    from tokenmill.runfile import RunFile


@click.command()
@run_file
@click.option("-n", "workers", type=WORKERS, default=1, show_default=True, help="Worker processes per server.")
@click.option("--json", "as_json", is_flag=True, help="Print the final status as JSON, on the last line.")
@wait_option
def run(file: "RunFile", *, overrides: tuple[str, ...], workers: int, as_json: bool, wait_s: float) -> None:
    """Run the whole job on this machine; again to continue.

    Starts a Redis of its own if TOKENMILL_REDIS_URL names none, and the simulated SGLang if the run file
    names no server.

    \b
    Examples:
      tokenmill run RUN.toml
      tokenmill run RUN.toml -n 2 --set sglang.concurrency=256
    """
    from results.folder import OutputFolder
    from tokenmill.local import LocalRun
    from tokenmill.own_servers import simulator_config
    from tokenmill.progress import Steady

    simulator_config(file)
    _check_prompts(file)
    OutputFolder(file.output).refuse_if_taken()
    console = Steady(stderr=as_json)
    sys.exit(
        LocalRun(file, overrides=overrides, workers=workers, wait_s=wait_s, as_json=as_json, console=console).run()
    )


def _check_prompts(file: "RunFile") -> None:
    """Missing prompt files, and a tokenizer's folder that is not there, are said before anything is started."""
    from producer.prompt_set import Files
    from workers.chat import check_name

    check_name(file.config.tokenizer)
    Files(file.config).check(file.config.datasets)


@click.command()
@run_file
@stay_option
@wait_option
def collect(file: "RunFile", *, overrides: tuple[str, ...], stay: bool, wait_s: float) -> None:
    """Write the results: run it on the machine that has the output folder, before the others.

    \b
    Example:
      tokenmill collect RUN.toml
    """
    from results.collector import Collector

    url = redis_url(file, needed_by="collect")
    if not Collector(file.config, url, stop=stop_on_signals(), stay=stay, wait_s=wait_s).run():
        raise Interrupted("the collector was stopped; run the same command again to continue")


@click.command()
@run_file
@click.argument("datasets", nargs=-1)
@stay_option
@wait_option
def push(file: "RunFile", datasets: tuple[str, ...], *, overrides: tuple[str, ...], stay: bool, wait_s: float) -> None:
    """Queue the prompts of all datasets (or of those named), and keep the queues topped up.

    \b
    Examples:
      tokenmill push RUN.toml
      tokenmill push RUN.toml A1_chat B2_math
    """
    from budget import garbage
    from producer.loop import produce

    garbage.search_less()
    url = redis_url(file, needed_by="push")
    names = known(file, datasets)
    stop = stop_on_signals()
    if file.config.max_hours is not None:
        timer = threading.Timer(file.config.max_hours * 3600, stop.set)
        timer.daemon = True
        timer.start()
    produce(file.config, url, names, stay=stay, stop=stop, wait_s=wait_s)


@click.command()
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
    """Start workers, at any time, on any machine; they leave when all datasets are finished.

    \b
    Examples:
      tokenmill work RUN.toml -n 2
      tokenmill work RUN.toml --server http://gpu3:30000
    """
    from tokenmill.crew import Work
    from workers import addresses

    Work(
        file,
        redis_url(file, needed_by="work"),
        own=addresses.checked(servers, "--server"),
        overrides=overrides,
        number=number,
        concurrency=concurrency,
        name=name,
        metrics=None if metrics_port is None else (metrics_host, metrics_port),
        stay=stay,
        wait_s=wait_s,
    ).run()


@click.command()
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

    \b
    Examples:
      tokenmill dashboard RUN.toml
      TOKENMILL_DASHBOARD_TOKEN=secret tokenmill dashboard RUN.toml --port 9000
    """
    try:
        from tokenmill.dashboard import serve
    except ModuleNotFoundError as error:
        raise UserProblem(
            f"`tokenmill dashboard` needs the package {error.name}: pip install starlette uvicorn prometheus-client"
        ) from error
    serve(file, host=host, port=port, allow_hosts=allow_hosts)


COMMANDS = (run, collect, push, work, dashboard)
