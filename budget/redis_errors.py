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
        if any(words in str(error) for words in _NO_RIGHT_IN_SCRIPT):
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
