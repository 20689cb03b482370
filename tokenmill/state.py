"""The state of a run as a structure: what `status --json` prints, and the terminal, dashboard and metrics show."""

from typing import Literal

import msgspec


class DatasetStatus(msgspec.Struct, kw_only=True):
    """One dataset; tokens are cap, spent, reserved, remaining, forecast; all other counts are prompts."""

    name: str
    cap: int | None
    spent: int
    reserved: int
    remaining: int | None
    forecast: int
    overshoot: float | None
    complete: bool
    reason: Literal["budget", "prompts"] | None
    inputs: int | None
    unsent: int | None
    queued: int
    leased: int
    committed: int
    dropped: int
    rejected: int
    truncated: int
    tokens_per_s: float
    eta_s: float | None
    wasted: int = 0
    producer: bool = False


class WorkerStatus(msgspec.Struct, kw_only=True):
    """One worker process; `slots` is how many requests it may have in flight, None where it does not say."""

    name: str
    host: str
    in_flight: int
    server: str
    state: str
    slots: int | None = None


class ServerStatus(msgspec.Struct, kw_only=True):
    url: str
    state: Literal["up", "down", "draining"]
    running: int
    waiting: int
    tokens_per_s: float
    reason: str = ""


class Trouble(msgspec.Struct, kw_only=True, frozen=True):
    """Something that a person should know of: what it is, and what to do. An `error` keeps the run from going on."""

    level: Literal["error", "warning"]
    about: Literal["redis", "servers", "workers", "collector", "producer", "paused", "prompts", "rejects"]
    what: str
    mend: str


class Status(msgspec.Struct, kw_only=True):
    """What `status --json` prints; stable and documented in docs/operations.md."""

    run: str
    state: Literal["running", "complete", "stopped"]
    redis: str
    sglang: Literal["real", "simulated"]
    datasets: list[DatasetStatus]
    workers: list[WorkerStatus]
    servers: list[ServerStatus]
    generated_tokens: int
    wasted_tokens: int
    suspended: bool = False
    collector: bool = False
    waiting_results: int = 0
    troubles: list[Trouble] = []
