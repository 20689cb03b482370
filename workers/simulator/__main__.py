"""`python -m workers.simulator`: the simulated server as a process of its own.

Prints one line, `listening on <url>`, when it is ready; whoever starts it waits for that line.
"""

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from workers.simulator.config import SimulatorConfig
from workers.simulator.faults import Fault
from workers.simulator.lengths import LengthSpec, parse_length


class _Length(click.ParamType[tuple[str, LengthSpec]]):
    name = "NAME=SHAPE:MEAN[:SIGMA]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, LengthSpec]:
        try:
            return parse_length(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_config(document: str | None, changes: dict[str, Any]) -> SimulatorConfig:
    """The configuration in `document` (JSON, or the path of a JSON file) with `changes` on top.

    Raises:
        ValueError: it is not one.
    """
    fields: dict[str, Any] = {}
    if document:
        text = document if document.lstrip().startswith("{") else Path(document).read_text()
        fields = msgspec.json.decode(text, type=dict[str, Any])
    lengths = {**fields.get("lengths", {}), **changes.pop("lengths", {})}
    return msgspec.convert({**fields, **changes, "lengths": lengths}, SimulatorConfig)


def _announce(url: str) -> None:
    click.echo(f"listening on {url}")


@click.command("sim")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0, the default, is any free one.")
@click.option("--model", help="Name of the model that it claims to serve.")
@click.option("--tokenizer", help="Folder of a tokenizer, or its name on the hub.")
@click.option("--context-length", type=click.IntRange(min=16), help="Prompt and answer together, in tokens.")
@click.option("--slots", "max_running_requests", type=click.IntRange(min=1), help="Requests that run at a time.")
@click.option("--queue", "max_queued_requests", type=click.IntRange(min=0), help="Requests that may wait; no limit.")
@click.option("--time-scale", type=float, help="How many times faster than real it runs.")
@click.option(
    "--length", "length", multiple=True, type=_Length(), help="Answer lengths of a dataset; * is the default."
)
@click.option("--fault", multiple=True, help='A fault as JSON, such as {"mode": "nan", "probability": 0.01}.')
@click.option(
    "--api-key", help="Key that clients must send; others see it in the list of processes: --config hides it."
)
@click.option("--seed", type=int, help="Seed of lengths and answers.")
@click.option("--log", "log_path", type=click.Path(dir_okay=False), help="JSON Lines file for a log of all requests.")
@click.option("--config", "document", help="All settings as JSON, or the path of a JSON file; options go on top.")
@click.option("--with-parent", is_flag=True, help="End when standard input is closed, as a parent's death closes it.")
def command(
    document: str | None,
    with_parent: bool,
    length: tuple[tuple[str, LengthSpec], ...],
    fault: tuple[str, ...],
    **options: Any,
) -> None:
    """Serve a simulated SGLang: its API, deterministic answers, a model of its speed, and its faults.

    \b
    Examples:
      tokenmill sim --port 30000 --tokenizer Qwen/Qwen3-8B --length '*=lognormal:1500'
      tokenmill sim --fault '{"mode": "unavailable", "probability": 0.1}'
    """
    changes = {name: value for name, value in options.items() if value is not None}
    try:
        if fault:
            changes["faults"] = [msgspec.json.decode(text, type=Fault) for text in fault]
        if length:
            changes["lengths"] = dict(length)
        config = read_config(document, changes)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    from workers.simulator.server import serve  # aiohttp, which no other command that offers this one needs

    try:
        code = asyncio.run(serve(config, ready=_announce, lifeline=0 if with_parent else None))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(code)


if __name__ == "__main__":
    command(prog_name="python -m workers.simulator")
