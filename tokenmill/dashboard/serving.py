"""Starts the dashboard: its socket first, so that a taken port is one sentence, then uvicorn on it."""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Sequence
from types import FrameType

import click
import uvicorn

from budget import environment
from budget.errors import OutsideFault, UserProblem
from tokenmill.dashboard.app import build
from tokenmill.dashboard.feed import Feed
from tokenmill.dashboard.guard import LOOPBACK, Hosts
from tokenmill.dashboard.source import Source
from tokenmill.runfile import RunFile

log = logging.getLogger("tokenmill.dashboard")


class _Server(uvicorn.Server):
    """Ends the pages' streams when it is told to end, which else would go on for ever."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._feed.close()
        super().handle_exit(sig, frame)


def serve(file: RunFile, *, host: str, port: int, allow_hosts: Sequence[str] = ()) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        UserProblem: the address is not this machine's, or the port is taken or not ours to take.
    """
    token = environment.dashboard_token()
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    actual = listening.getsockname()[1]
    click.echo(f"the dashboard of {file.config.name}: http://{shown}:{actual}/ (Ctrl-C ends it)")
    if token is None:
        click.echo("it is read-only; set TOKENMILL_DASHBOARD_TOKEN to change caps and to pause from it")
    if host not in LOOPBACK:
        log.warning(
            "everybody who reaches %s may look at the run and its prompts; the token travels unencrypted", shown
        )
    # uvicorn raises the signal once more when it has ended; that is then the end that was wished for.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _over)
    asyncio.run(_run(file, listening, token, Hosts(host, allow_hosts)))


def _over(number: int, frame: FrameType | None) -> None:
    return


async def _run(file: RunFile, listening: socket.socket, token: str | None, hosts: Hosts) -> None:
    feed = Feed(Source(file), can_act=token is not None)
    config = uvicorn.Config(
        build(feed, token, hosts),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=3,
    )
    await _Server(config, feed).serve([listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except socket.gaierror as error:
        raise UserProblem(f"--host {host} is no address that this machine knows: {error.strerror}") from error
    except OSError as error:
        raise _refused(host, port, error) from error
    return listening


def _refused(host: str, port: int, error: OSError) -> UserProblem | OutsideFault:
    if error.errno == errno.EADDRINUSE:
        return UserProblem(f"port {port} of {host} is taken: give another with --port (0: any free one)")
    if error.errno == errno.EACCES:
        return UserProblem(f"port {port} may only be taken by root: give another with --port, from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL:
        return UserProblem(f"--host {host} is no address of this machine: give one of its own, or 0.0.0.0 for all")
    return OutsideFault(f"cannot listen on {host}, port {port}: {error.strerror}")
