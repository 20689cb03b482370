"""The status structure: what it derives from the ledger's numbers, and what the files alone can tell."""

import json
from pathlib import Path
from typing import Any

import msgspec

from budget.snapshot import DatasetState, RunState
from tokenmill import status
from workers.contracts import DatasetConfig, RunConfig

derive = status._dataset  # pyright: ignore[reportPrivateUsage]


def state(name: str = "A1", **changes: Any) -> DatasetState:
    fields: dict[str, Any] = {
        "name": name, "cap": 1000, "open": True, "spent": 400, "reserved": 100, "committed": 8, "rejected": 2,
        "truncated": 1, "dropped": 0, "queued": 5, "intermediate": 0, "leased": 3, "waiting": 0, "done": 10,
        "wasted": 7, "inputs": 30, "foreign": 0, "exhausted": False, "full": False, "max_samples": None,
    }  # fmt: skip
    return DatasetState(**{**fields, **changes})


def shown(dataset: DatasetState, rate: float = 0.0, total_cap: int | None = None) -> status.DatasetStatus:
    return derive(RunState(datasets=[dataset], total_cap=total_cap), dataset, rate)


def test_every_prompt_is_in_exactly_one_count() -> None:
    found = shown(state())
    assert found.inputs == 30
    assert found.committed + found.rejected + found.dropped + found.queued + found.leased + (found.unsent or 0) == 30


def test_lines_of_an_earlier_pipeline_are_no_prompts() -> None:
    found = shown(state(committed=8, done=10, foreign=3))
    assert found.committed == 5
    assert found.unsent == 30 - 7 - 5 - 3


def test_what_is_left_and_when_it_will_be_done() -> None:
    found = shown(state(), rate=60.0)
    assert (found.remaining, found.forecast, found.eta_s, found.tokens_per_s) == (500, 1000, 10.0, 60.0)
    assert shown(state(), rate=0.0).eta_s is None
    assert shown(state(reserved=900), rate=1.0).forecast == 1300


def test_a_complete_dataset_says_why_and_needs_no_more_time() -> None:
    over = shown(state(spent=1100, reserved=0), rate=5.0)
    assert (over.complete, over.reason, over.eta_s) == (True, "budget", 0.0)
    assert (over.remaining, over.forecast) == (-100, 1100)
    assert shown(state(exhausted=True)).reason == "prompts"
    assert shown(state(), total_cap=400).reason == "budget"


def test_without_a_cap_there_is_nothing_to_pass() -> None:
    found = shown(state(cap=None))
    assert (found.cap, found.remaining, found.overshoot, found.eta_s) == (None, None, None, None)
    assert found.forecast > 500  # it ends where its prompts do
    assert shown(state(cap=None, inputs=None)).forecast == 500


def test_before_the_prompts_are_counted_nothing_is_called_unsent() -> None:
    assert shown(state(inputs=None)).unsent is None


def test_offline_counts_the_files(tmp_path: Path) -> None:
    config = RunConfig(
        name="test",
        output=str(tmp_path),
        tokenizer="t",
        datasets=[
            DatasetConfig(name="A1", prompts="a", max_tokens=100),
            DatasetConfig(name="B2", prompts="b", max_tokens=100),
        ],
    )
    (tmp_path / "A1").mkdir()
    (tmp_path / "A1" / "raw_responses.jsonl").write_text(json.dumps({"id": "x", "completion_tokens": 120}) + "\n")
    found = status.offline(config)
    a1, b2 = found.datasets
    assert (a1.spent, a1.complete, a1.reason) == (120, True, "budget")
    assert (b2.spent, b2.complete, b2.reason) == (0, False, None)
    assert (found.state, found.redis, found.generated_tokens) == ("stopped", "not running", 120)
    total = msgspec.structs.replace(config, max_tokens_total=120)
    assert status.offline(total).state == "complete"
