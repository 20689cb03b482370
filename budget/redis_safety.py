"""Whether a Redis may hold a run: one that keeps what it is told, and lets its user do all that is needed."""

from typing import Any

import redis
from redis.exceptions import RedisError

from budget import redis_rights
from budget.errors import Refused
from budget.redis_errors import CLUSTER, RedisRefuses, translated

OLDEST = (7, 0)


class RedisUnsafe(Refused):
    """Redis is set up so that it could lose what it holds."""


def check_safe(connection: "redis.Redis") -> list[str]:
    """Refuse a Redis that may lose what it holds; returns warnings, a sentence each.

    Raises:
        RedisUnsafe: too old, a cluster, or with an eviction policy other than noeviction.
        RedisRefuses: it is a Sentinel, or its user lacks rights, all of which are named.
    """
    client: Any = connection
    with translated():
        server: dict[str, Any] = client.info("server")
        memory: dict[str, Any] = client.info("memory")
        persistence: dict[str, Any] = client.info("persistence")
    _check_mode(str(server.get("redis_mode") or server.get("server_mode")))
    version = str(server.get("valkey_version") or server.get("redis_version"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise RedisUnsafe(f"Redis {version} is too old: Tokenmill needs Redis 7.0 or Valkey 7.2 and newer")
    policy = memory.get("maxmemory_policy")
    if policy != "noeviction":
        raise RedisUnsafe(
            f"Redis may throw jobs away (maxmemory-policy is {policy}): run `CONFIG SET maxmemory-policy noeviction`"
        )
    _check_rights(client, aof=bool(persistence.get("aof_enabled")))
    if not persistence.get("aof_enabled") and not _snapshots(client):
        return [
            "Redis keeps nothing on its disk, so its restart loses what is not yet in the files: set appendonly yes"
        ]
    return []


def _check_mode(mode: str) -> None:
    if mode == "cluster":
        raise RedisUnsafe(CLUSTER)
    if mode == "sentinel":
        raise RedisRefuses(
            "this is a Sentinel, no Redis: write redis+sentinel://HOST:26379/SERVICE/0 in TOKENMILL_REDIS_URL, or give "
            "the port of the Redis"
        )


def _check_rights(client: Any, *, aof: bool) -> None:
    with translated():
        lacking = redis_rights.missing(client, aof=aof)
    if lacking:
        raise RedisRefuses(
            f"Redis does not let this user do all that Tokenmill does: give it {', '.join(lacking)} (`ACL SETUSER`), "
            f"or the line that docs/operations.md has under Redis"
        )


def _snapshots(client: Any) -> bool:
    try:
        return bool(client.config_get("save").get("save"))
    except RedisError:
        return True
