"""What becomes of a payload and of a defect, and how full queues are kept."""

import json

from producer.defects import Defect
from producer.queued import Marks, to_line, to_queued
from workers.contracts import DatasetConfig, Payload, RunConfig

DATASET = DatasetConfig(name="A", prompts="a.jsonl", max_tokens=1, sampling={"max_new_tokens": 100})


def a_payload(prompt_id: str = "q1", later_turns: int = 0, max_new_tokens: int | None = None) -> Payload:
    return Payload(
        dataset="A", id=prompt_id, input_ids=[1], followups=[[]] * later_turns, max_new_tokens=max_new_tokens
    )


def test_the_worst_case_counts_every_turn() -> None:
    assert to_queued(DATASET, "j", a_payload()).worst == 100
    assert to_queued(DATASET, "j", a_payload(later_turns=2)).worst == 300
    assert to_queued(DATASET, "j", a_payload(later_turns=1, max_new_tokens=7)).worst == 14
    assert to_queued(DatasetConfig(name="A", prompts="", max_tokens=1), "j", a_payload()).worst == 128


def test_a_description_is_short_and_can_be_sent() -> None:
    assert to_queued(DATASET, "j", a_payload("HumanEval/0")).description == "HumanEval/0"
    long = to_queued(DATASET, "j", a_payload("x" * 500)).description
    assert len(long) == 60
    assert to_queued(DATASET, "j", a_payload("\ud800")).description.encode() == b"\\ud800"


def test_a_line_holds_any_row() -> None:
    defect = Defect("nan", "it holds NaN")
    line = json.loads(to_line("A", "q\ud800", defect, {"x": "\ud800"}))
    assert (line["id"], line["row"], line["attempts"]) == ("q\ud800", {"x": "\ud800"}, 0)
    assert json.loads(to_line("A", "q", defect, {"x": float("nan")}))["row"] == "{'x': nan}"
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert json.loads(to_line("A", "q", defect, deep))["reason"] == "nan"


def test_a_queue_holds_enough_for_all_servers() -> None:
    def marks(servers: int, concurrency: int) -> Marks:
        return Marks.of(
            RunConfig(
                name="r",
                output="o",
                tokenizer="t",
                datasets=[DATASET],
                servers=[f"http://gpu{number}" for number in range(servers)],
                concurrency=concurrency,
            )
        )

    assert marks(0, 64) == (500, 1000)
    assert marks(8, 256) == (4096, 8192)
