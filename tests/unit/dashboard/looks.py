"""A run's state for tests of what shows it."""

from typing import Any

from tokenmill.state import DatasetStatus, ServerStatus, Status, Trouble, WorkerStatus

DATASET = "A1_traces"


def status(**changes: Any) -> Status:
    """A run of one dataset; `changes` are its dataset's."""
    fields: dict[str, Any] = {
        "name": DATASET, "cap": 10_000, "spent": 4000, "reserved": 500, "remaining": 5500, "forecast": 10_000,
        "overshoot": 0.0, "complete": False, "reason": None, "inputs": 100, "unsent": 40, "queued": 30, "leased": 12,
        "committed": 10, "dropped": 3, "rejected": 2, "truncated": 1, "tokens_per_s": 250.5, "eta_s": 24.0, "wasted": 7,
    }  # fmt: skip
    return Status(
        run="r", state="running", redis="redis://h/0", sglang="real",
        datasets=[DatasetStatus(**{**fields, **changes})],
        workers=[WorkerStatus(name="w1", host="h", in_flight=12, server="http://gpu0:1", state="busy", slots=64)],
        servers=[
            ServerStatus(url="http://gpu0:1", state="up", running=12, waiting=0, tokens_per_s=250),
            ServerStatus(url="http://gpu1:1", state="down", running=0, waiting=0, tokens_per_s=0, reason="refused"),
            ServerStatus(url="http://gpu2:1", state="draining", running=3, waiting=0, tokens_per_s=50),
        ],
        generated_tokens=4007, wasted_tokens=7, collector=True,
        troubles=[Trouble(level="error", about="servers", what="it is down", mend="start it")],
    )  # fmt: skip
