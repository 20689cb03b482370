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
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
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
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from budget import protocol, redis_url, redis_wire
from budget.errors import OutsideFault, Refused
from budget.redis_url import BadRedisUrl, Sentinels, without_secret

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


def connect(url: str) -> "redis.Redis":
    """A blocking client. Nothing is sent yet.

    Raises:
        BadRedisUrl: it is not the URL of a Redis, or names files that cannot be read.
    """
    form = "redis+sentinel://HOST:26379,HOST:26379/SERVICE/0" if redis_url.is_sentinel(url) else "redis://HOST:PORT/0"
    try:
        redis_url.check_options(url)
        client: Any = _by_sentinels(redis_url.sentinels(url)) if redis_url.is_sentinel(url) else _direct(url)
        kwargs: dict[str, Any] = client.connection_pool.connection_kwargs
        # What it would say only when it is used: an option that is none.
        client.connection_pool.connection_class(**kwargs)
    except (ValueError, TypeError, AttributeError, RedisError) as error:
        # The error's own text may quote a part of the password.
        raise BadRedisUrl(f"{without_secret(url)!r} is not a Redis URL: give {form}") from error
    if kwargs.get("decode_responses"):
        raise BadRedisUrl(
            f"{without_secret(url)!r} asks for decode_responses, but results are not text: leave it out of the URL"
        )
    return client


def _direct(url: str) -> "redis.Redis":
    """One server; a ValueError also for what redis-py would say only when it is used, or not at all."""
    client: Any = redis.Redis.from_url(url, health_check_interval=15)
    pool = client.connection_pool
    if pool.connection_class is not redis.UnixDomainSocketConnection:
        is_tls = pool.connection_class is redis.SSLConnection
        pool.connection_class = redis_wire.TlsConnection if is_tls else redis_wire.PlainConnection
        if not re.fullmatch(r"[0-9]{0,9}", urlsplit(url).path.strip("/")):
            raise ValueError("its database is no number")
    str(pool.connection_kwargs.get("host", "")).encode("idna")
    return client


def _by_sentinels(said: Sentinels) -> "redis.Redis":
    # One that does not answer is no reason to ask it again: there are others.
    asking = {**said.sentinel, "retry": Retry(NoBackoff(), 0)}
    manager: Any = redis.sentinel.Sentinel(said.hosts, sentinel_kwargs=asking)
    kind = redis_wire.SentinelTlsConnection if said.tls else redis_wire.SentinelConnection
    return manager.master_for(said.service, connection_class=kind, health_check_interval=15, **said.redis)


def connect_async(url: str, connections: int) -> "redis.asyncio.Redis":
    """A client for the event loop whose pool never runs dry: `connections` callers at once wait for a free one."""
    return async_twin(connect(url), connections)


def async_twin(connection: "redis.Redis", connections: int) -> "redis.asyncio.Redis":
    """An asyncio client to where a blocking one goes: RQ hands its workers the blocking one only."""
    pool: Any = connection.connection_pool
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name in _CARRIED and value is not None}
    settings: dict[str, Any] = {"max_connections": connections, "timeout": None, "health_check_interval": 15, **kwargs}
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        return redis.asyncio.Redis.from_pool(_sentinel_twin(pool, settings))
    kind: type = redis.asyncio.Connection
    if issubclass(pool.connection_class, redis.UnixDomainSocketConnection):
        kind = redis.asyncio.UnixDomainSocketConnection
    elif issubclass(pool.connection_class, redis.SSLConnection):
        kind = redis.asyncio.SSLConnection
    return redis.asyncio.Redis.from_pool(redis.asyncio.BlockingConnectionPool(connection_class=kind, **settings))


class _SentinelPool(redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool):
    """Callers wait for a free connection, and each new one goes to the master that the Sentinels name then."""

    async def aclose(self) -> None:
        await super().aclose()
        manager: Any = self.sentinel_manager
        for asked in manager.sentinels:
            await asked.aclose()


def _sentinel_twin(pool: Any, settings: dict[str, Any]) -> _SentinelPool:
    asked = [client.connection_pool.connection_kwargs for client in pool.sentinel_manager.sentinels]
    asking = {**pool.sentinel_manager.sentinel_kwargs, "retry": AsyncRetry(NoBackoff(), 0)}
    manager: Any = redis.asyncio.sentinel.Sentinel(
        [(one["host"], one["port"]) for one in asked], sentinel_kwargs=asking
    )
    is_tls = issubclass(pool.connection_class, redis.SSLConnection)
    kind = redis.asyncio.sentinel.SentinelManagedConnection
    if is_tls:
        kind = redis.asyncio.sentinel.SentinelManagedSSLConnection
    return _SentinelPool(pool.service_name, manager, connection_class=kind, **settings)


def own_words(error: BaseException | None) -> str:
    """What the server said, which begins with the kind of the error, without what redis-py says of a pipeline."""
    return re.sub(r"^Command # \d+ \(.*?\) of pipeline caused error: ", "", str(error), flags=re.DOTALL)


def is_passing(problem: "RedisAway | RedisRefuses") -> bool:
    """Whether it ends by itself or by an operator's hand at Redis, without a change here: worth waiting for."""
    if isinstance(problem, RedisRefuses):
        cause = problem.__cause__
        return isinstance(cause, OutOfMemoryError) or own_words(cause).startswith(_PASSING)
    return True


def _not_allowed(error: RedisError) -> RedisRefuses:
    return RedisRefuses(
        f"Redis does not let this user do what Tokenmill does ({own_words(error)}): give it the rights that "
        f"docs/operations.md lists under Redis"
    )


def _no_master(error: MasterNotFoundError) -> str:
    """redis-py quotes each Sentinel with all its settings; what they said is enough."""
    text = str(error)
    service = re.search(r"No master found for '(.*?)'", text)
    silent = text.count(" - ")
    why = f", {silent} of them did not answer" if silent else ""
    return f"no Sentinel names a master for {service[1] if service else 'the service'}{why}"


@contextmanager
def translated() -> Generator[None]:
    """Turn redis-py's exceptions into `RedisAway` and `RedisRefuses`, each one sentence with the mend."""
    try:
        yield
    except redis_wire.WrongWire as error:
        raise RedisRefuses(str(error)) from error
    except NoPermissionError as error:
        raise _not_allowed(error) from error
    except (AuthenticationError, AuthorizationError) as error:
        raise RedisRefuses(
            f"Redis refuses the user or password ({error}): set TOKENMILL_REDIS_URL with the right ones"
        ) from error
    except BusyLoadingError as error:
        raise RedisAway("Redis is still loading its data") from error
    except MasterNotFoundError as error:
        raise RedisAway(_no_master(error)) from error
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
        if "ACL failure in script" in str(error):
            raise _not_allowed(error) from error
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
