"""Clients that ask Sentinels where the master is, and say what each of them answered where none names it.

redis-py tells a Sentinel that refuses as one that is silent, which would be waited for.
"""

import re
from collections.abc import Iterable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from budget import redis_wire
from budget.redis_url import Sentinels
from budget.redis_wire import WrongWire


class _Answers:
    """What the Sentinels have said of one service."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._wrong: list[str] = []
        self._away: list[str] = []
        self._others: set[str] = set()
        self._is_known = self._has_answered = False

    def error(self, where: str, error: RedisError) -> None:
        if isinstance(error, WrongWire):
            said = str(error).replace("Redis at", "the Sentinel at")
            self._wrong.append(re.sub(r"\b(rediss?)://", r"\1+sentinel://", said))
        elif isinstance(error, AuthenticationError | NoPermissionError) or str(error).startswith("NOAUTH"):
            self._wrong.append(
                f"the Sentinel at {where} refuses the user or password: set sentinel_password (and sentinel_username, "
                f"if it has users) in TOKENMILL_REDIS_URL"
            )
        elif isinstance(error, ResponseError):
            why = "is no Sentinel" if "unknown command" in str(error) else f"does not say where the master is ({error})"
            self._wrong.append(f"{where} {why}: give the Sentinels' addresses, whose port is mostly 26379")
        else:
            self._away.append(f"{where} does not answer ({error})")

    def masters(self, names: Iterable[str]) -> None:
        self._has_answered = True
        self._others |= set(names)
        self._is_known = self._service in self._others

    def why(self) -> RedisError:
        """Told at once unless waiting may help."""
        if self._is_known:
            down = "the Sentinels say that it is down"
            return MasterNotFoundError(self._sentence([down, *self._away]))
        if self._has_answered:
            known = f"only {', '.join(sorted(self._others))}" if self._others else "none at all"
            return WrongWire(
                f"the Sentinels know no service {self._service!r}, {known}: correct /SERVICE/ in TOKENMILL_REDIS_URL"
            )
        if self._wrong:
            return WrongWire("; ".join([*self._away, *self._wrong]))
        return MasterNotFoundError(self._sentence(self._away))

    def _sentence(self, why: list[str]) -> str:
        return f"no Sentinel names a master for {self._service}: {', '.join(why)}"


def _place(sentinel: Any) -> str:
    kwargs = sentinel.connection_pool.connection_kwargs
    return f"{kwargs['host']}:{kwargs['port']}"


class _Asking(redis.sentinel.Sentinel):
    """As redis-py's, but it goes on to the next one also where one refuses."""

    def discover_master(self, service_name: str) -> Any:
        answers = _Answers(service_name)
        asked: list[Any] = self.sentinels
        for number, sentinel in enumerate(asked):
            try:
                masters: dict[str, Any] = sentinel.sentinel_masters()
            except RedisError as error:
                answers.error(_place(sentinel), error)
                continue
            answers.masters(masters)
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                asked[0], asked[number] = sentinel, asked[0]
                return state["ip"], state["port"]
        raise answers.why()


class _AskingAsync(redis.asyncio.sentinel.Sentinel):
    """The same for the event loop."""

    async def discover_master(self, service_name: str) -> Any:
        answers = _Answers(service_name)
        asked: list[Any] = self.sentinels
        for number, sentinel in enumerate(asked):
            try:
                masters: dict[str, Any] = await sentinel.sentinel_masters()
            except RedisError as error:
                answers.error(_place(sentinel), error)
                continue
            answers.masters(masters)
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                asked[0], asked[number] = sentinel, asked[0]
                return state["ip"], state["port"]
        raise answers.why()


def client(said: Sentinels) -> "redis.Redis":
    """A blocking client of the master."""
    # One that does not answer is no reason to ask it again: there are others.
    asking = {**said.sentinel, "retry": Retry(NoBackoff(), 0)}
    manager: Any = _Asking(said.hosts, sentinel_kwargs=asking)
    for asked in manager.sentinels:
        asked.connection_pool.connection_class = redis_wire.TlsConnection if said.tls else redis_wire.PlainConnection
    kind = redis_wire.SentinelTlsConnection if said.tls else redis_wire.SentinelConnection
    return manager.master_for(said.service, connection_class=kind, health_check_interval=15, **said.redis)


class _SentinelPool(redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool):
    """Callers wait for a free connection, and each new one goes to the master that the Sentinels name then."""

    async def aclose(self) -> None:
        await super().aclose()
        manager: Any = self.sentinel_manager
        for asked in manager.sentinels:
            await asked.aclose()


def pool_twin(pool: Any, settings: dict[str, Any]) -> _SentinelPool:
    """The event loop's pool to where a blocking one goes."""
    asked = [client.connection_pool.connection_kwargs for client in pool.sentinel_manager.sentinels]
    asking = {**pool.sentinel_manager.sentinel_kwargs, "retry": AsyncRetry(NoBackoff(), 0)}
    manager: Any = _AskingAsync([(one["host"], one["port"]) for one in asked], sentinel_kwargs=asking)
    is_tls = issubclass(pool.connection_class, redis.SSLConnection)
    kind = redis.asyncio.sentinel.SentinelManagedConnection
    if is_tls:
        kind = redis.asyncio.sentinel.SentinelManagedSSLConnection
    return _SentinelPool(pool.service_name, manager, connection_class=kind, **settings)
