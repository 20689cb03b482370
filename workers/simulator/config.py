"""What a simulated server is told: its address, its model, its speed, its answers and its faults.

The virtual clock runs `time_scale` times faster than the wall clock, and every duration here is in
virtual seconds: a scaled server answers the same, only sooner.
"""

import math

import msgspec

from workers.simulator.faults import Fault
from workers.simulator.lengths import LengthSpec

DEFAULT_LENGTH = "*"
# Beyond these a scaled clock or a table of so many is no simulation any more.
FASTEST = 1_000_000
MOST = 1_000_000_000


class SimulatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a simulated server's settings; the defaults are a mid-sized GPU with 64 slots.

    With n requests running, each makes a token every `step_s_base + n * step_s_per_request` seconds:
    about 100 tokens/s for one alone and 40 for each of 64. `vocab_size` and `eos_id` are taken from
    `tokenizer`, a folder or a name on the hub, where one is given. `lengths` is by the name that the
    client sends in `X-Tokenmill-Dataset`; `*` is for all others. `log_path` is a JSON line per event of
    a request.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "simulated"
    tokenizer: str | None = None
    vocab_size: int = 32_000
    eos_id: int = 2
    context_length: int = 32_768
    max_running_requests: int = 64
    max_queued_requests: int | None = None
    step_s_base: float = 0.009762
    step_s_per_request: float = 0.000238
    time_scale: float = 1.0
    api_key: str | None = None
    lengths: dict[str, LengthSpec] = {}
    seed: int = 0
    weight_version: str = "default"
    log_path: str | None = None
    health_s: float = 1.0
    crash_s: float = 5.0
    faults: list[Fault] = []

    def __post_init__(self) -> None:
        counts = {
            "vocab_size": self.vocab_size,
            "context_length": self.context_length,
            "max_running_requests": self.max_running_requests,
        }
        for name, value in counts.items():
            if not 0 < value <= MOST:
                raise ValueError(f"{name} must be above 0 and at most {MOST:,}, got {value}")
        if not math.isfinite(self.step_s_base) or self.step_s_base <= 0:
            raise ValueError(f"step_s_base must be a number of seconds above 0, got {self.step_s_base}")
        if not 1 / FASTEST <= self.time_scale <= FASTEST:
            raise ValueError(f"time_scale must be above 0 (and at most {FASTEST:,}), got {self.time_scale}")
        for name in ("step_s_per_request", "health_s", "crash_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a number of seconds of 0 or more, got {value}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be from 0 (any free one) to 65535, got {self.port}")
        if self.max_queued_requests is not None and self.max_queued_requests < 0:
            raise ValueError(f"max_queued_requests must not be below 0, got {self.max_queued_requests}")
        if not 0 <= self.eos_id < self.vocab_size:
            raise ValueError(f"eos_id must be in [0, {self.vocab_size - 1}], got {self.eos_id}")

    def length_of(self, dataset: str) -> LengthSpec:
        """The distribution of that dataset's answers."""
        return self.lengths.get(dataset) or self.lengths.get(DEFAULT_LENGTH) or LengthSpec()
