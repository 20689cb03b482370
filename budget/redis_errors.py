"""What Redis' errors mean: redis-py's exceptions as sentences of ours, and whether waiting helps."""

import re
from collections.abc import Generator
from contextlib import contextmanager

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
from redis.sentinel import MasterNotFoundError

from budget import protocol, redis_wire
from budget.errors import OutsideFault

_PASSING = ("OOM", "MISCONF", "BUSY", "NOREPLICAS", "TRYAGAIN")

CLUSTER = (
    "this Redis is part of a cluster (redis_mode is cluster): Tokenmill needs one Redis, or Sentinels in front of it; "
    "name such a one in TOKENMILL_REDIS_URL"
)

# What a script is told that misses a right: Redis 7.0, and later ones.
_NO_RIGHT_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")
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


def own_words(error: BaseException | None) -> str:
    """What the server said, which begins with the kind of the error, without what redis-py says of a pipeline."""
    return re.sub(r"^Command # \d+ \(.*?\) of pipeline caused error: ", "", str(error), flags=re.DOTALL)


def is_passing(problem: "RedisAway | RedisRefuses") -> bool:
    """Whether it ends by itself or by an operator's hand at Redis, without a change here: worth waiting for."""
    if isinstance(problem, RedisRefuses):
        cause = problem.__cause__
        return isinstance(cause, OutOfMemoryError) or own_words(cause).startswith(_PASSING)
    return True


def ends_a_worker(problem: "RedisAway | RedisRefuses") -> bool:
    """Whether one that holds answers has nothing to wait for.

    A primary that became a replica is no reason to end: another one takes its place behind the name.
    """
    return not is_passing(problem) and not isinstance(problem.__cause__, ReadOnlyError)


def _not_allowed(error: RedisError) -> RedisRefuses:
    return RedisRefuses(
        f"Redis does not let this user do what Tokenmill does ({own_words(error)}): give it the rights that "
        f"docs/operations.md lists under Redis"
    )


def _refused_user(error: RedisError) -> RedisRefuses:
    said = str(error)
    if said.startswith("HELLO must be called"):
        said = "it wants a password, and none was given"
    return RedisRefuses(f"Redis refuses the user or password ({said}): set TOKENMILL_REDIS_URL with the right ones")


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
        raise _refused_user(error) from error
    except BusyLoadingError as error:
        raise RedisAway("Redis is still loading its data") from error
    except MasterNotFoundError as error:
        raise RedisAway(str(error)) from error
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
        if any(words in str(error) for words in _NO_RIGHT_IN_SCRIPT):
            raise _not_allowed(error) from error
        if "DB index is out of range" in str(error):
            raise RedisRefuses(
                "this Redis has no database of the number in TOKENMILL_REDIS_URL: give a smaller one (it has 0 to 15, "
                "unless `databases` in its redis.conf says otherwise)"
            ) from error
        if "SELECT is not allowed in cluster mode" in str(error):
            raise RedisRefuses(CLUSTER) from error
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
