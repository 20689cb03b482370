"""What the server says about itself: model, settings, load, metrics; only true things, in SGLang's words.

/server_info of a real server has 556 keys; here are those that describe something a simulated one has.
"""

import time
from datetime import UTC, datetime
from typing import Any

from workers.simulator.bodies import RESERVED_POSITIONS
from workers.simulator.config import SimulatorConfig
from workers.simulator.journal import Journal
from workers.simulator.scheduler import Scheduler

VERSION = "0.5.23"


def _positions(config: SimulatorConfig) -> int:
    """The size of a KV cache in which every slot has its whole context."""
    return config.context_length * config.max_running_requests


def model_info(config: SimulatorConfig) -> dict[str, Any]:
    return {
        "model_path": config.model,
        "served_model_name": config.model,
        "tokenizer_path": config.tokenizer or config.model,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": config.weight_version,
        "load_format": "dummy",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "simulated",
        "architectures": ["SimulatedForCausalLM"],
    }


def server_info(config: SimulatorConfig, scheduler: Scheduler, port: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model_path": config.model,
        "tokenizer_path": config.tokenizer or config.model,
        "skip_tokenizer_init": False,
        "load_format": "dummy",
        "context_length": config.context_length,
        "is_embedding": False,
        "dtype": "simulated",
        "max_running_requests": config.max_running_requests,
        "max_queued_requests": config.max_queued_requests,
        "max_total_tokens": _positions(config),
        "schedule_policy": "fcfs",
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "device": "cpu",
        "random_seed": config.seed,
        "host": config.host,
        "port": port,
        # In clear, as in the real one: a client that logs this answer must be caught at it.
        "api_key": config.api_key,
        "admin_api_key": None,
        "served_model_name": config.model,
        "weight_version": config.weight_version,
        "reasoning_parser": None,
        "tool_call_parser": None,
        "preferred_sampling_params": None,
        "allow_auto_truncate": False,
        "enable_metrics": True,
        "enable_return_hidden_states": False,
    }
    load = core_load(config, scheduler)
    state = settings | {
        "effective_max_running_requests_per_dp": config.max_running_requests,
        "last_gen_throughput": load["gen_throughput"],
    }
    return settings | {
        "launch_command": "tokenmill sim",
        "max_total_num_tokens": _positions(config),
        "max_req_input_len": config.context_length - RESERVED_POSITIONS,
        "internal_states": [state],
        "version": VERSION,
    }


def core_load(config: SimulatorConfig, scheduler: Scheduler) -> dict[str, Any]:
    used = scheduler.used_positions()
    engine = scheduler.engine
    throughput = 0.0 if engine.paused else engine.running / engine.step_s * scheduler.scale
    return {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": engine.running,
        "num_waiting_reqs": engine.waiting,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": _positions(config),
        "max_running_requests": config.max_running_requests,
        "token_usage": round(used / _positions(config), 4),
        "gen_throughput": round(throughput, 2),
        "cache_hit_rate": 0.0,
        "utilization": round(engine.running / config.max_running_requests, 4),
        "total_prefill_uncached_tokens": 0,
        "total_prefill_busy_us": 0,
        "decode_moments": [0.0] * 6,
    }


def loads(config: SimulatorConfig, scheduler: Scheduler, include: str) -> dict[str, Any]:
    """/v1/loads; `include` is its comma-separated query parameter, empty for all sections."""
    sections = set(filter(None, include.split(","))) or {"all"}
    load = core_load(config, scheduler)
    capacity = _positions(config)
    extra: dict[str, dict[str, Any]] = {
        "memory": {"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": capacity},
        "disagg": {
            "mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
        },
        "queues": {
            "waiting": scheduler.engine.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0,
        },
    }  # fmt: skip
    for name, section in extra.items():
        if name in sections or "all" in sections:
            load["disaggregation" if name == "disagg" else name] = section
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": VERSION,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [load],
    }


def models(config: SimulatorConfig) -> dict[str, Any]:
    card = {
        "id": config.model, "object": "model", "created": int(time.time()), "owned_by": "sglang",
        "root": config.model, "parent": None, "max_model_len": config.context_length,
    }  # fmt: skip
    return {"object": "list", "data": [card]}


def metrics(config: SimulatorConfig, scheduler: Scheduler, journal: Journal) -> str:
    """The few of SGLang's Prometheus series that a dashboard of this project reads."""
    load = core_load(config, scheduler)
    series: dict[str, tuple[str, float]] = {
        "sglang:num_running_reqs": ("gauge", load["num_running_reqs"]),
        "sglang:num_queue_reqs": ("gauge", load["num_waiting_reqs"]),
        "sglang:gen_throughput": ("gauge", load["gen_throughput"]),
        "sglang:token_usage": ("gauge", load["token_usage"]),
        "sglang:generation_tokens_total": ("counter", journal.total.tokens),
        "sglang:num_requests_total": ("counter", journal.total.received),
        "sglang:num_aborted_requests_total": ("counter", journal.total.aborted),
    }
    lines = [
        f'# TYPE {name} {kind}\n{name}{{model_name="{config.model}"}} {value}' for name, (kind, value) in series.items()
    ]
    return "\n".join(lines) + "\n"
