"""Connections to Redis or Valkey, and what their errors mean.

redis-py re-sends any command after its socket timeout; every verb of the ledger is idempotent, so
that is welcome: a Redis that was frozen for a while costs nobody anything.
"""

import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    MaxConnectionsError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from budget import protocol
from budget.errors import OutsideFault, Refused, UserProblem

OLDEST = (7, 0)

# What of a blocking client's settings says where it goes and as whom; its time-outs are its own.
_CARRIED = frozenset(
    {"host", "port", "db", "username", "password", "path", "protocol"}
    | {"ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"}
    | {"ssl_check_hostname"}
)


_PASSING = ("OOM", "MISCONF", "BUSY", "NOREPLICAS", "TRYAGAIN")

# What `whole` in lua/prelude.lua says of a number that is none.
_NO_NUMBER = re.compile(r"((?:field \w+ of )?\S+) holds '(.*)', which is no whole number")


class RedisAway(OutsideFault):
    """Redis cannot be reached or does not answer; worth waiting for."""


class RedisRefuses(OutsideFault):
    """Redis answers, but will not do it."""


class RedisDamaged(RedisRefuses):
    """A key of ours holds what no part of Tokenmill writes: waiting does not mend it, and the files can."""

    def __init__(self, what: str, instead: str = "") -> None:
        super().__init__(
            f"{what}: {instead}stop the run, free the database with `tokenmill reset` and run again; the files stay"
        )


class RedisUnsafe(Refused):
    """Redis is set up so that it could lose what it holds."""


class BadRedisUrl(UserProblem):
    """What was given is not the URL of a Redis."""


def without_secret(url: str) -> str:
    """The URL as it may be shown: its password replaced by `***`.

    It is for what was typed, so it takes no URL for well-formed: whatever stands between the first colon
    of the address and its last `@` may be the password.
    """
    scheme, mark, rest = url.rpartition("://")
    owner, at, place = rest.rpartition("@")
    user, colon, _ = owner.partition(":")
    shown = f"{scheme}{mark}{user}:***@{place}" if at and colon else url
    return re.sub(r"([?&]password=)[^&]*", r"\1***", shown)


def connect(url: str) -> "redis.Redis":
    """A blocking client. Nothing is sent yet.

    Raises:
        BadRedisUrl: it is not a redis://, rediss:// or unix:// URL.
    """
    try:
        client: Any = redis.Redis.from_url(url, health_check_interval=15)
        pool = client.connection_pool
        # What it would say only when it is used: an option that is none, a host that cannot be looked up.
        pool.connection_class(**pool.connection_kwargs)
        str(pool.connection_kwargs.get("host", "")).encode("idna")
        if not url.startswith("unix:") and not re.fullmatch(r"[0-9]{0,9}", urlsplit(url).path.strip("/")):
            raise ValueError("its database is no number")
    except (ValueError, TypeError, AttributeError) as error:
        # The error's own text may quote a part of the password.
        raise BadRedisUrl(f"{without_secret(url)!r} is not a Redis URL: give redis://HOST:PORT/0") from error
    if client.connection_pool.connection_kwargs.get("decode_responses"):
        raise BadRedisUrl(
            f"{without_secret(url)!r} asks for decode_responses, but results are not text: leave it out of the URL"
        )
    return client


def connect_async(url: str, connections: int) -> "redis.asyncio.Redis":
    """A client for the event loop whose pool never runs dry: `connections` callers at once wait for a free one."""
    pool: Any = redis.asyncio.BlockingConnectionPool.from_url(
        url, max_connections=connections, timeout=None, health_check_interval=15
    )
    return redis.asyncio.Redis.from_pool(pool)


def async_twin(connection: "redis.Redis", connections: int) -> "redis.asyncio.Redis":
    """An asyncio client to where a blocking one goes: RQ hands its workers the blocking one only."""
    pool: Any = connection.connection_pool
    kinds: dict[type, type] = {
        redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
        redis.SSLConnection: redis.asyncio.SSLConnection,
    }
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name in _CARRIED}
    twin: Any = redis.asyncio.BlockingConnectionPool(
        max_connections=connections,
        timeout=None,
        connection_class=kinds.get(pool.connection_class, redis.asyncio.Connection),
        health_check_interval=15,
        **{name: value for name, value in kwargs.items() if value is not None},
    )
    return redis.asyncio.Redis.from_pool(twin)


def own_words(error: BaseException | None) -> str:
    """What the server said, which begins with the kind of the error, without what redis-py says of a pipeline."""
    return re.sub(r"^Command # \d+ \(.*?\) of pipeline caused error: ", "", str(error), flags=re.DOTALL)


def is_passing(problem: "RedisAway | RedisRefuses") -> bool:
    """Whether it ends by itself or by an operator's hand at Redis, without a change here: worth waiting for."""
    if isinstance(problem, RedisRefuses):
        cause = problem.__cause__
        return isinstance(cause, OutOfMemoryError) or own_words(cause).startswith(_PASSING)
    return True


@contextmanager
def translated() -> Generator[None]:
    """Turn redis-py's exceptions into `RedisAway` and `RedisRefuses`, each one sentence with the mend."""
    try:
        yield
    except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
        raise RedisRefuses(
            f"Redis refuses the user or password ({error}): set TOKENMILL_REDIS_URL with the right ones"
        ) from error
    except BusyLoadingError as error:
        raise RedisAway("Redis is still loading its data") from error
    except (RedisConnectionError, RedisTimeoutError, MaxConnectionsError, OSError) as error:
        raise RedisAway(f"Redis does not answer ({error})") from error
    except OutOfMemoryError as error:
        raise RedisRefuses(
            "Redis is out of memory: raise its maxmemory; nothing is lost, the run goes on by itself"
        ) from error
    except ReadOnlyError as error:
        raise RedisRefuses(
            "this Redis is a read-only replica: give the primary's address in TOKENMILL_REDIS_URL"
        ) from error
    except ResponseError as error:
        if own_words(error).startswith(protocol.OTHER):
            raise protocol.of_script(own_words(error)) from error
        if own_words(error).startswith("MISCONF"):
            raise RedisRefuses(
                "Redis cannot write to its disk (MISCONF): free its disk, then the run goes on"
            ) from error
        if "WRONGTYPE" in str(error):
            raise RedisDamaged(
                f"a key of this Redis database is of another type than Tokenmill's ({error})",
                "use another database number in TOKENMILL_REDIS_URL if it is somebody else's, or ",
            ) from error
        if found := _NO_NUMBER.search(str(error)):
            raise RedisDamaged(f"Redis holds no whole number in {found[1]} ({found[2]!r})") from error
        raise RedisRefuses(f"Redis refuses a command: {own_words(error)}") from error
    except RedisError as error:
        raise RedisRefuses(f"Redis fails: {error}") from error


def check_safe(connection: "redis.Redis") -> list[str]:
    """Refuse a Redis that may lose what it holds; returns warnings, a sentence each.

    Raises:
        RedisUnsafe: too old, or with an eviction policy other than noeviction.
    """
    client: Any = connection
    with translated():
        server: dict[str, Any] = client.info("server")
        memory: dict[str, Any] = client.info("memory")
        persistence: dict[str, Any] = client.info("persistence")
    version = str(server.get("valkey_version") or server.get("redis_version"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise RedisUnsafe(f"Redis {version} is too old: Tokenmill needs Redis 7.0 or Valkey 7.2 and newer")
    policy = memory.get("maxmemory_policy")
    if policy != "noeviction":
        raise RedisUnsafe(
            f"Redis may throw jobs away (maxmemory-policy is {policy}): run `CONFIG SET maxmemory-policy noeviction`"
        )
    if not persistence.get("aof_enabled") and not _snapshots(client):
        return [
            "Redis keeps nothing on its disk, so its restart loses what is not yet in the files: set appendonly yes"
        ]
    return []


def _snapshots(client: Any) -> bool:
    try:
        return bool(client.config_get("save").get("save"))
    except RedisError:
        return True


@contextmanager
def translated_at_start(url: str, wait_s: float) -> Generator[None]:
    """For the start of a process: wait until Redis answers, then translate errors as `translated` does.

    Raises:
        RedisAway: it did not answer within `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    client: Any = connect(url)
    while True:
        try:
            with translated():
                client.ping()
            break
        except RedisAway as away:
            if time.monotonic() > deadline:
                raise RedisAway(
                    f"{away}; waited {wait_s:.0f} s: start Redis at {without_secret(url)}, or mend TOKENMILL_REDIS_URL"
                ) from away
            time.sleep(0.2)
    with translated():
        yield
