"""One attempt at one prompt, against the simulated server in this process."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from budget.verbs import Lease
from workers import outcomes
from workers.attempt import Attempt, Completion
from workers.contracts import DatasetConfig, Payload, RunConfig
from workers.rendering import Turns
from workers.servers import Server
from workers.sglang import Client
from workers.simulator.config import SimulatorConfig
from workers.simulator.faults import Fault, Mode
from workers.simulator.lengths import LengthSpec
from workers.simulator.server import Simulator

TOKENIZER = str(Path(__file__).parents[3] / "examples" / "tokenizer")
CONFIG = RunConfig(
    name="t", output="o", tokenizer=TOKENIZER, datasets=[DatasetConfig(name="A1", prompts="p", max_tokens=1)]
)  # fmt: skip
Outcome = Completion | outcomes.Outcome


def simulated(**changes: Any) -> SimulatorConfig:
    fields: dict[str, Any] = {
        "tokenizer": TOKENIZER, "time_scale": 1000, "lengths": {"*": LengthSpec(shape="constant", mean=30)},
        "context_length": 500,
    }  # fmt: skip
    return SimulatorConfig(**{**fields, **changes})


class Scene:
    """A running server, and attempts at it."""

    def __init__(self, simulator: Simulator, client: Client, server: Server) -> None:
        self.simulator = simulator
        self.client = client
        self.server = server

    def attempt(self, sampling: dict[str, Any] | None = None, **payload: Any) -> Attempt:
        fields: dict[str, Any] = {"dataset": "A1", "id": "q/1", "input_ids": [10, 11, 12]}
        return Attempt(
            client=self.client,
            server=self.server,
            lease=Lease(dataset="A1", job="A1-x", token="t", data=b"", attempt=2, failures=0, deaths=0),
            payload=Payload(**{**fields, **payload}),
            sampling={"max_new_tokens": 100, "temperature": 0.5, **(sampling or {})},
            vocab_size=2000,
            worker="w",
            turns=Turns(CONFIG),
        )

    async def running(self, wanted: int) -> None:
        """Waits until the server runs so many requests."""
        async with asyncio.timeout(60):
            while self.simulator.state["running"] != wanted:  # noqa: ASYNC110 - the server has no event to wait for
                await asyncio.sleep(0.01)

    @property
    def received(self) -> int:
        received = self.simulator.state["received"]
        assert isinstance(received, int)
        return received


def play(scene: Callable[[Scene], Awaitable[None]], *, read_s: float = 30.0, **config: Any) -> None:
    async def run() -> None:
        simulator = Simulator(simulated(**config))
        await simulator.start()
        client = Client(None, read_s)
        server = Server(simulator.url)
        try:
            _, server.model = await client.model(simulator.url)
            await scene(Scene(simulator, client, server))
        finally:
            await client.close()
            await simulator.stop()

    asyncio.run(run())


def attempted(payload: dict[str, Any] | None = None, sampling: dict[str, Any] | None = None, **config: Any) -> Outcome:
    found: list[Outcome] = []

    async def scene(at: Scene) -> None:
        found.append(await at.attempt(sampling, **(payload or {})).run())

    play(scene, **config)
    return found[0]


def test_a_completion_records_what_was_sent_and_what_came() -> None:
    outcome = attempted({"messages": [{"role": "user", "content": "hi"}]})
    assert isinstance(outcome, Completion)
    (record,) = outcome.records
    assert (record.id, record.dataset, record.turn, record.turns, record.attempt) == ("q/1", "A1", 1, 1, 2)
    assert record.input_ids == [10, 11, 12] and record.prompt_tokens == 3
    assert len(record.output_ids) == record.completion_tokens == outcome.tokens == 30
    assert (record.finish_reason, record.matched) == ("stop", "2")
    assert record.messages == [{"role": "user", "content": "hi"}]
    assert record.sampling == {"max_new_tokens": 100, "temperature": 0.5}
    assert record.text and record.rid and record.model == "simulated" and record.weight_version == "default"
    assert record.latency_s > 0 and not outcome.truncated


def test_an_answer_at_its_limit_is_marked() -> None:
    outcome = attempted(sampling={"max_new_tokens": 20})
    assert isinstance(outcome, Completion)
    assert outcome.truncated and outcome.tokens == 20
    assert (outcome.records[0].finish_reason, outcome.records[0].matched) == ("length", "")


def test_the_answers_limit_is_cut_to_the_context_and_stored_so() -> None:
    outcome = attempted({"input_ids": [10] * 490}, {"min_new_tokens": 50})
    assert isinstance(outcome, Completion)
    assert outcome.records[0].sampling["max_new_tokens"] == outcome.records[0].sampling["min_new_tokens"] == 10
    assert outcome.tokens <= 10 and outcome.truncated


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([], "empty_prompt"),
        ([5, 2000], "outside_vocabulary"),
        ([-1], "outside_vocabulary"),
        ([5] * 494, "too_long"),
        ([5] * 600, "too_long"),
    ],
)
def test_what_ends_a_server_is_never_sent(ids: list[int], reason: str) -> None:
    async def scene(at: Scene) -> None:
        outcome = await at.attempt(input_ids=ids).run()
        assert isinstance(outcome, outcomes.Reject) and outcome.reason == reason
        assert at.received == 0

    play(scene)


CONVERSATION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "one"}],
    "followups": [[{"role": "user", "content": "two"}], [{"role": "user", "content": "three"}]],
}


def test_turns_run_one_after_another_on_the_models_own_answers() -> None:
    outcome = attempted(CONVERSATION, context_length=5000)
    assert isinstance(outcome, Completion)
    assert [(record.turn, record.turns) for record in outcome.records] == [(1, 3), (2, 3), (3, 3)]
    assert outcome.tokens == 90
    first, second, third = outcome.records
    assert [message["role"] for message in third.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert second.messages[1]["content"] == first.text and third.messages[3]["content"] == second.text
    assert len({record.rid for record in outcome.records}) == 3


def test_tools_are_in_every_record_and_the_files_own_answer_in_the_last() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": 1}}}]
    talk = attempted({**CONVERSATION, "tools": tools, "reference": "42"}, context_length=5000)
    plain = attempted({})
    assert isinstance(talk, Completion) and isinstance(plain, Completion)
    assert [record.reference for record in (*talk.records, *plain.records)] == ["", "", "42", ""]
    assert [json.loads(record.tools) for record in (*talk.records, *plain.records)] == [tools, tools, tools, []]


def test_a_cut_turn_ends_its_conversation() -> None:
    outcome = attempted(CONVERSATION, {"max_new_tokens": 20}, context_length=5000)
    assert isinstance(outcome, Completion)
    assert outcome.truncated and len(outcome.records) == 1 and outcome.records[0].turns == 1


def test_a_turn_that_does_not_fit_rejects_the_whole_and_counts_the_waste() -> None:
    long = [[{"role": "user", "content": "word " * 600}]]
    outcome = attempted({"messages": CONVERSATION["messages"], "followups": long})
    assert isinstance(outcome, outcomes.Reject)
    assert (outcome.reason, outcome.wasted) == ("too_long", 30)


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        ("abort", outcomes.Retry, "aborted"),
        ("nan", outcomes.Retry, "nan"),
        ("wrong_ids", outcomes.Retry, "wrong_ids"),
        ("missing_ids", outcomes.RunFault, "request"),
        ("error", outcomes.Retry, "server_error"),
        ("unavailable", outcomes.ServerFault, "busy"),
        ("reset_before_headers", outcomes.ServerFault, "broke"),
        ("reset_after_headers", outcomes.ServerFault, "broke"),
        ("cut_body", outcomes.ServerFault, "broke"),
    ],
)
def test_each_fault_of_a_server_is_told_by_its_kind(mode: Mode, kind: type, reason: str) -> None:
    outcome = attempted(faults=[Fault(mode=mode)])
    assert type(outcome) is kind
    assert not isinstance(outcome, Completion | outcomes.Accept) and outcome.reason == reason
    if isinstance(outcome, outcomes.ServerFault):
        assert outcome.broke is (reason == "broke")


def test_a_server_that_nobody_listens_at_is_refused_not_broken() -> None:
    async def scene(at: Scene) -> None:
        await at.simulator.stop()
        outcome = await at.attempt().run()
        assert isinstance(outcome, outcomes.ServerFault)
        assert (outcome.reason, outcome.broke) == ("refused", False)

    play(scene)


def test_no_answer_in_time_is_given_up_and_the_server_told() -> None:
    async def scene(at: Scene) -> None:
        attempt = at.attempt()
        outcome = await attempt.run()
        assert isinstance(outcome, outcomes.Retry) and outcome.reason == "timeout"
        await at.running(0)

    play(scene, read_s=0.3, time_scale=0.01)


def test_an_answer_that_drips_is_given_up_as_a_whole() -> None:
    async def scene(at: Scene) -> None:
        outcome = await at.attempt().run()
        assert isinstance(outcome, outcomes.Retry) and outcome.reason == "timeout"

    play(scene, read_s=0.5, faults=[Fault(mode="drip", seconds=0.1)])


def test_a_later_turn_that_fails_wastes_the_earlier_ones() -> None:
    outcome = attempted(CONVERSATION, context_length=5000, faults=[Fault(mode="unavailable", after=1)])
    assert isinstance(outcome, outcomes.ServerFault) and outcome.wasted == 30


def test_a_cancelled_attempt_can_be_given_up_at_the_server() -> None:
    async def scene(at: Scene) -> None:
        attempt = at.attempt()
        task = asyncio.create_task(attempt.run())
        await at.running(1)
        await attempt.give_up()
        outcome = await task
        assert isinstance(outcome, outcomes.Retry) and outcome.reason == "aborted"

    play(scene, time_scale=0.01)
