"""The address of a server: one rule for the run file, the command line and the environment."""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from budget import environment
from budget.errors import UserProblem

_LABEL = re.compile(r"[\w~-]{1,63}")


class BadAddress(UserProblem):
    """What was given is not the URL of a server."""


def checked(urls: Iterable[str], where: str) -> list[str]:
    """The URLs as they are used, without the last slash, each once.

    Args:
        where: where they were given, for the sentence: `[sglang] servers`, `--server`.

    Raises:
        BadAddress: one of them cannot be a server's.
    """
    return list(dict.fromkeys(_checked(url, where) for url in urls))


def chosen(own: Sequence[str] | None, of_run: Sequence[str]) -> list[str]:
    """The servers of a worker: its own, else those of TOKENMILL_SERVERS, else the run's; empty where none is named.

    Raises:
        BadAddress, as `checked`.
    """
    if own:
        return checked(own, "--server")
    if named := environment.worker_servers():
        return checked(named, "TOKENMILL_SERVERS")
    return checked(of_run, "[sglang] servers")


def _checked(url: str, where: str) -> str:
    if _has_secret(url):  # not repeated: it may be a password
        raise BadAddress(
            f"a URL in {where} has a user or a password in it: give a key in TOKENMILL_SGLANG_API_KEY, which is "
            f"shown nowhere"
        )
    if wrong := _wrong(url):
        raise BadAddress(f"{url!r} in {where} is not a URL such as http://gpu0:30000: {wrong}")
    return url.rstrip("/")


def _has_secret(url: str) -> bool:
    return "@" in url.partition("://")[2].partition("/")[0]


def _wrong(url: str) -> str:
    """Why no request can be sent there; nothing if one can."""
    if any(character.isspace() or not character.isprintable() for character in url):
        return "it has spaces or unprintable characters in it"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        return f"it cannot be read ({error})"
    if parts.scheme not in ("http", "https"):
        return "it must begin with http:// or https://"
    if not host:
        return "it names no host"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "its port must be a number from 1 to 65535"
    if ":" not in host and not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        return f"no host can be called {host!r}"
    if parts.query or parts.fragment:
        return "it must end with the address, without ? and #"
    return ""
