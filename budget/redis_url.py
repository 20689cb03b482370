"""What the URL of a Redis says, and what of it may be shown.

    redis://USER:PASSWORD@HOST:6379/0                                  rediss:// is the same over TLS
    unix:///PATH?db=0
    redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/0     rediss+sentinel:// is the same over TLS

Options are redis-py's own, in the query: `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`, …; with
Sentinels also `sentinel_username` and `sentinel_password`, for the Sentinels themselves.
"""

import re
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from redis.connection import parse_url  # pyright: ignore[reportUnknownVariableType]

from budget.errors import UserProblem

SENTINEL_PORT = 26379
# A Sentinel that is gone must not hold up the question to the next one.
SENTINEL_TIMEOUT_S = 2.0

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Whatever it is called: a mistyped option holds the password all the same.
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:pass|pwd|secret)[^=&]*=)[^&]*", re.IGNORECASE)
_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
# What of a URL's options is the wire's, so that it holds for the Sentinels too.
_WIRE = ("ssl_", "socket_")


class BadRedisUrl(UserProblem):
    """What was given is not the URL of a Redis."""


class Sentinels(msgspec.Struct, frozen=True, kw_only=True):
    """Who knows where the master is. `redis` and `sentinel` are settings of connections to either."""

    hosts: list[tuple[str, int]]
    service: str
    tls: bool
    redis: dict[str, Any]
    sentinel: dict[str, Any]


def without_secret(url: str) -> str:
    """The URL as it may be shown: its passwords replaced by `***`.

    It is for what was typed, so it takes no URL for well-formed: whatever stands between the first colon
    of the address and its last `@` may be the password, and without a colon all before the `@` may be.
    """
    scheme = _SCHEME.match(url)
    head = scheme[0] if scheme else ""
    owner, at, place = url[len(head) :].rpartition("@")
    user, colon, password = owner.partition(":")
    if at and owner:
        owner = f"{user}:***" if colon and password else "***"
    return _SECRET_OPTION.sub(r"\1***", f"{head}{owner}{at}{place}")


def rq_options(url: str) -> str:
    """What tells RQ's commands where this Redis is, as it may be shown and typed: never with a password in it."""
    if url == without_secret(url) and not is_sentinel(url):
        return f"--url '{url}'" if "?" in url else f"--url {url}"
    return "-c tokenmill.rq_settings"


def is_sentinel(url: str) -> bool:
    return url.partition("://")[0] in _SCHEMES


def sentinels(url: str) -> Sentinels:
    """What a URL with Sentinels says.

    Raises:
        ValueError: it cannot be understood; the text may quote the password.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    owner, at, place = place.rpartition("@")
    names, _, path = place.partition("/")
    service, _, database = path.partition("/")
    if not re.fullmatch(r"[\w.:-]+", service) or not re.fullmatch(r"[0-9]{0,9}", database):
        raise ValueError("no service is named")
    hosts = [_host(name) for name in names.split(",")]
    options = dict(parse_qsl(query))
    own = {name: options.pop(f"sentinel_{name}") for name in ("username", "password") if f"sentinel_{name}" in options}
    plain = f"{_SCHEMES[scheme]}://{owner}{at}host/{database or 0}?{urlencode(options)}"
    settings = cast("dict[str, Any]", parse_url(plain))
    tls = settings.pop("connection_class", None) is not None
    settings.pop("host")
    wire = {name: value for name, value in settings.items() if name.startswith(_WIRE)}
    timeouts = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    asking = {**timeouts, **wire, **own, **({"ssl": True} if tls else {})}
    return Sentinels(hosts=hosts, service=service, tls=tls, redis=settings, sentinel=asking)


def _host(text: str) -> tuple[str, int]:
    split = urlsplit(f"//{text}")
    if not split.hostname:
        raise ValueError("a Sentinel without a host")
    return split.hostname, split.port or SENTINEL_PORT
