"""Connections to Redis or Valkey. What their errors mean is in `redis_errors`, which Redis will do in `redis_safety`.

A command whose answer did not come may have been run, and is sent again by whoever needs its answer; every
verb of the ledger is idempotent: a Redis that was frozen for a while costs nobody anything.
"""

import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.sentinel
from redis.exceptions import RedisError

from budget import redis_options, redis_sentinels, redis_url, redis_wire
from budget.redis_errors import (
    RedisAway,
    RedisDamaged,
    RedisRefuses,
    ends_a_worker,
    is_passing,
    own_words,
    translated,
)
from budget.redis_safety import RedisUnsafe, check_safe
from budget.redis_url import BadRedisUrl, without_secret

__all__ = [
    "BadRedisUrl",
    "RedisAway",
    "RedisDamaged",
    "RedisRefuses",
    "RedisUnsafe",
    "async_twin",
    "check_safe",
    "connect",
    "connect_async",
    "ends_a_worker",
    "is_passing",
    "own_words",
    "translated",
    "translated_at_start",
    "without_secret",
]

# What of a blocking client's settings says where it goes and as whom; its time-outs are its own.
_CARRIED = frozenset({"host", "port", "db", "username", "password", "path", "protocol", "client_name"})


def _is_carried(name: str) -> bool:
    return name in _CARRIED or name.startswith("ssl_")


def connect(url: str) -> "redis.Redis":
    """A blocking client. Nothing is sent yet.

    Raises:
        BadRedisUrl: it is not the URL of a Redis, or names files that cannot be read.
    """
    form = "redis+sentinel://HOST:26379,HOST:26379/SERVICE/0" if redis_url.is_sentinel(url) else "redis://HOST:PORT/0"
    try:
        redis_options.check(url)
        client: Any = redis_sentinels.client(redis_url.sentinels(url)) if redis_url.is_sentinel(url) else _direct(url)
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


def connect_async(url: str, connections: int) -> "redis.asyncio.Redis":
    """A client for the event loop whose pool never runs dry: `connections` callers at once wait for a free one."""
    return async_twin(connect(url), connections)


def async_twin(connection: "redis.Redis", connections: int) -> "redis.asyncio.Redis":
    """An asyncio client to where a blocking one goes: RQ hands its workers the blocking one only."""
    pool: Any = connection.connection_pool
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if _is_carried(name) and value is not None}
    settings: dict[str, Any] = {"max_connections": connections, "timeout": None, "health_check_interval": 15, **kwargs}
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        return redis.asyncio.Redis.from_pool(redis_sentinels.pool_twin(pool, settings))
    kind: type = redis.asyncio.Connection
    if issubclass(pool.connection_class, redis.UnixDomainSocketConnection):
        kind = redis.asyncio.UnixDomainSocketConnection
    elif issubclass(pool.connection_class, redis.SSLConnection):
        kind = redis.asyncio.SSLConnection
    return redis.asyncio.Redis.from_pool(redis.asyncio.BlockingConnectionPool(connection_class=kind, **settings))


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
