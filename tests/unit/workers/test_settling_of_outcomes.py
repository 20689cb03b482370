"""Which verb of the ledger an outcome becomes, and what it is charged with."""

import json
from typing import Any

import msgspec
import pytest

from budget.verbs import Lease
from workers import outcomes
from workers.attempt import Completion
from workers.contracts import DatasetConfig, Payload, Record, RunConfig
from workers.encodings import unpack_lines
from workers.settlement import Settlement, hostile, settle

CONFIG = RunConfig(
    name="t", output="o", tokenizer="t", datasets=[DatasetConfig(name="A1", prompts="p", max_tokens=1)]
)  # fmt: skip
PAYLOAD = Payload(dataset="A1", id="q/1", input_ids=[1, 2])


def lease(**changes: Any) -> Lease:
    fields: dict[str, Any] = {
        "dataset": "A1", "job": "A1-x", "token": "t-1", "data": b"", "attempt": 1, "failures": 0, "deaths": 0,
    }  # fmt: skip
    return Lease(**{**fields, **changes})


def completion(*, truncated: bool = False) -> Completion:
    records = [
        Record(
            id="q/1", dataset="A1", turn=turn, turns=2, prompt_tokens=2, completion_tokens=3, finish_reason="stop",
            matched="2", input_ids=[1, 2], output_ids=[3, 4, 2], text="t", messages=[], sampling={}, model="m",
            weight_version="", server="s", worker="w", attempt=1, rid="r", latency_s=1.0, created_at=1.0,
        )
        for turn in (1, 2)
    ]  # fmt: skip
    return Completion(records=records, tokens=6, truncated=truncated)


def settled(outcome: Any, *, truncated: str = "keep", **held: Any) -> Settlement:
    config = msgspec.structs.replace(CONFIG, truncated=truncated)
    return settle(outcome, lease=lease(**held), payload=PAYLOAD, worker="w", config=config)


def reject_line(settlement: Settlement) -> dict[str, Any]:
    assert settlement.call.script == "reject"
    packed = settlement.call.args[-1]
    assert isinstance(packed, bytes)
    return json.loads(unpack_lines(packed))


def test_a_completion_is_one_commit_of_all_its_turns() -> None:
    settlement = settled(completion())
    assert (settlement.call.script, settlement.kind, settlement.wasted) == ("commit", "commit", 0)
    packed = settlement.call.args[-1]
    assert isinstance(packed, bytes)
    assert [json.loads(line)["turn"] for line in unpack_lines(packed).splitlines()] == [1, 2]
    assert settlement.call.args[:3] == ["A1-x", "t-1", 6]


def test_a_cut_answer_is_kept_or_rejected_as_the_run_says() -> None:
    assert settled(completion(truncated=True)).kind == "commit"
    rejected = settled(completion(truncated=True), truncated="reject")
    assert (rejected.kind, rejected.wasted) == ("reject", 6)
    assert reject_line(rejected)["reason"] == "truncated"


def test_a_prompt_that_can_never_work_is_rejected_at_once_with_its_row() -> None:
    settlement = settled(outcomes.Reject("too_long", "3000 tokens", wasted=4), attempt=2)
    assert (settlement.kind, settlement.wasted) == ("reject", 4)
    assert reject_line(settlement) == {
        "id": "q/1", "dataset": "A1", "reason": "too_long", "detail": "3000 tokens", "attempts": 2,
        "row": {"dataset": "A1", "id": "q/1", "input_ids": [1, 2]},
    }  # fmt: skip


@pytest.mark.parametrize(("failures", "kind"), [(0, "release"), (1, "release"), (2, "reject")])
def test_a_failed_try_is_charged_and_the_third_ends_it(failures: int, kind: str) -> None:
    settlement = settled(outcomes.Retry("nan", "NaN happened", wasted=5), failures=failures)
    assert (settlement.kind, settlement.wasted) == (kind, 5)
    if kind == "release":
        assert "failures" in settlement.call.args
    else:
        assert reject_line(settlement)["detail"] == "NaN happened (3 times)"


@pytest.mark.parametrize("deaths", [0, 3, 7])
def test_a_connection_that_broke_in_flight_is_a_death_and_the_ledger_says_whether_it_is_one_too_many(
    deaths: int,
) -> None:
    settlement = settled(outcomes.ServerFault("broke", "reset", broke=True), deaths=deaths)
    assert settlement.kind == "release"
    assert "deaths" in settlement.call.args


@pytest.mark.parametrize("failures", [0, 2])
@pytest.mark.parametrize(
    "outcome", [outcomes.ServerFault("busy", "full", wasted=2), outcomes.RunFault("key", "Unauthorized")]
)
def test_a_server_at_fault_and_a_wrong_run_charge_the_prompt_nothing(outcome: outcomes.Outcome, failures: int) -> None:
    settlement = settled(outcome, failures=failures, deaths=3)
    assert settlement.kind == "release"
    assert not {"failures", "deaths"} & {str(argument) for argument in settlement.call.args}


def test_a_hostile_job_is_rejected_by_its_jobs_id() -> None:
    line = reject_line(hostile(lease(), "it names os.system"))
    assert (line["id"], line["reason"], line["row"]) == ("A1-x", "hostile_job", {"job": "A1-x"})
