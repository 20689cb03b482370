"""Prompts out: RQ jobs become SGLang requests, and accepted completions become commits.

`workers.AsyncWorker` is imported on first use, so that the parts which need only the wire types
(`workers.contracts`) or the chat templates (`workers.chat`) do not pay for an HTTP client.
"""

import sys
from typing import TYPE_CHECKING, Any, cast

# httpx imports its command line, and with it rich and pygments, wherever those are installed, and does without it
# where they are not: a sixth of what the start of a worker costs.
sys.modules.setdefault("httpx._main", cast(Any, None))

if TYPE_CHECKING:
    from workers.async_worker import AsyncWorker as AsyncWorker

__all__ = ["AsyncWorker"]


def __getattr__(name: str) -> object:
    if name == "AsyncWorker":
        from workers.async_worker import AsyncWorker

        return AsyncWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
