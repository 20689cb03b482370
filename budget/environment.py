"""The one place that reads environment variables.

Secrets come from here only, never from the run file or the command line, and are never logged,
stored or shown.
"""

import os

from budget.errors import UserProblem

# Requests in flight of one worker process: more than any server takes, and fewer than there are ports.
MOST_IN_FLIGHT = 16_384


def redis_url() -> str | None:
    """`TOKENMILL_REDIS_URL`: where Redis or Valkey is, with its password if it has one."""
    return os.environ.get("TOKENMILL_REDIS_URL") or None


def sglang_api_key() -> str | None:
    """`TOKENMILL_SGLANG_API_KEY`: sent to SGLang as a bearer token.

    Raises:
        UserProblem: no HTTP header can hold it.
    """
    return _bearer("TOKENMILL_SGLANG_API_KEY")


def dashboard_token() -> str | None:
    """`TOKENMILL_DASHBOARD_TOKEN`: who knows it may change things on the dashboard; without it nobody may.

    Raises:
        UserProblem: no HTTP header can hold it, so nobody could ever give it.
    """
    return _bearer("TOKENMILL_DASHBOARD_TOKEN")


def _bearer(name: str) -> str | None:
    token = os.environ.get(name) or None
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise UserProblem(
            f"{name} has characters in it that cannot be sent: set it to the value alone, in ASCII, without a newline "
            f"or spaces around it"
        )
    return token


def worker_concurrency() -> int | None:
    """`TOKENMILL_CONCURRENCY`: slots of a worker that `rq worker -w workers.AsyncWorker` starts.

    Raises:
        UserProblem: it is not a number of slots.
    """
    value = os.environ.get("TOKENMILL_CONCURRENCY", "")
    if not value:
        return None
    if value.isascii() and value.isdigit() and len(value) < 10 and 0 < int(value) <= MOST_IN_FLIGHT:
        return int(value)
    raise UserProblem(f"TOKENMILL_CONCURRENCY is {value!r}: it must be a number from 1 to {MOST_IN_FLIGHT:,}")


def worker_servers() -> list[str]:
    """`TOKENMILL_SERVERS`: the servers, separated by commas, that such a worker uses instead of all of the run's."""
    return [url.strip() for url in os.environ.get("TOKENMILL_SERVERS", "").split(",") if url.strip()]


def failpoint() -> str:
    """`TOKENMILL_FAILPOINT`: where this process is to fail, for tests; see `budget.failpoints`."""
    return os.environ.get("TOKENMILL_FAILPOINT", "")


def for_child(*, redis_url: str) -> dict[str, str]:
    """The environment of a part that this process starts: its own, and where Redis is (which may hold a secret)."""
    return {**os.environ, "TOKENMILL_REDIS_URL": redis_url}
