"""What can be changed on the dashboard by whoever has the token: a cap, pausing and going on, draining a server."""

import hmac
import json
from collections.abc import Callable
from typing import Any

from rq import suspension

from budget.connections import translated
from budget.errors import OutsideFault, UserProblem
from budget.fleet import wishes
from tokenmill import caps, fleet, watching
from tokenmill.dashboard.source import Source


class TooLong(UserProblem):
    """A request that is longer than any action."""


Given = dict[str, str]
MOST_BYTES = 4096
READ_ONLY = "this dashboard is read-only: start it with TOKENMILL_DASHBOARD_TOKEN set, and give that token here"
WRONG_TOKEN = "that is not the token this dashboard was started with (TOKENMILL_DASHBOARD_TOKEN)"


def refusal(token: str | None, authorization: str | None) -> str | None:
    """Why somebody may not act; None where they may. The comparison takes as long for every wrong token."""
    if token is None:
        return READ_ONLY
    scheme, _, given = (authorization or "").partition(" ")
    # Headers are bytes, which Starlette hands on as Latin-1; the token is ASCII.
    if scheme.lower() == "bearer" and hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        return None
    return WRONG_TOKEN


def given(body: bytes) -> Given:
    """The texts in a request's body.

    Raises:
        UserProblem: it is no JSON object of texts.
    """
    try:
        value: Any = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        raise UserProblem("an action takes a JSON object of texts")
    return value  # pyright: ignore[reportUnknownVariableType]


def _where(source: Source) -> caps.Connection:
    where = source.connection()
    if where is None:
        raise OutsideFault("the run's Redis is not running: start the run, or use tokenmill budget")
    watching.refuse_strangers(source.file.config, where[0])
    return where


def _client(source: Source) -> Any:
    return _where(source)[0]


def set_cap(source: Source, texts: Given) -> str:
    """Set the cap of `dataset` to `tokens`."""
    dataset = texts.get("dataset", "")
    if dataset not in [known.name for known in source.file.config.datasets]:
        raise UserProblem(f"the run has no dataset {dataset!r}")
    cap = caps.read(source.file, dataset, texts.get("tokens", ""))
    return caps.write(_client(source), dataset, cap)


def pause(source: Source, texts: Given) -> str:
    """As `rq suspend`: workers take no new prompts, what is in flight finishes."""
    client = _client(source)
    with translated():
        suspension.suspend(client)
    return "paused: no worker takes new prompts; what is in flight finishes"


def resume(source: Source, texts: Given) -> str:
    """As `rq resume`."""
    client = _client(source)
    with translated():
        suspension.resume(client)
    return "the run goes on"


def drain(source: Source, texts: Given) -> str:
    """As `servers drain`: nothing new is sent to `server`."""
    return fleet.say(source.file, _where(source), texts.get("server", ""), "drain")


def use(source: Source, texts: Given) -> str:
    """A drained `server` of the run is used again; none joins from here, where a slip could name any address.

    Raises:
        UserProblem: it is not drained.
    """
    url = texts.get("server", "")
    where = _where(source)
    if url not in wishes(where[0]):
        raise UserProblem(f"server {url} is not drained")
    return fleet.say(source.file, where, url, "use")


ACTIONS: dict[str, Callable[[Source, Given], str]] = {
    "cap": set_cap, "pause": pause, "resume": resume, "drain": drain, "use": use,
}  # fmt: skip
