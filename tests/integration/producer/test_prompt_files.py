"""The run file's own prompts through the loop: the quickstart's, and ids that stand twice in a set."""

import json
import threading
from pathlib import Path

import pytest

from budget import runbook
from budget.errors import Interrupted, Problem
from budget.snapshot import read
from producer import loop
from producer.errors import PromptsProblem
from producer.prompt_set import Files
from tests.integration.producer.conftest import Run, Server, entry, wait_until
from workers.contracts import DatasetConfig, RunConfig, Timing, TokenizerFacts, job_id
from workers.encodings import decode_job_data
from workers.pieces import found

EXAMPLES = Path(__file__).parents[3] / "examples"


def a_config(*prompts: Path) -> RunConfig:
    return RunConfig(
        name="test",
        output="out",
        tokenizer=str(EXAMPLES / "tokenizer"),
        datasets=[
            DatasetConfig(
                name=path.name.partition("_")[0], prompts=str(path), max_tokens=1000, sampling={"max_new_tokens": 10}
            )
            for path in prompts
        ],
        timing=Timing(lease_ms=2000, renew_ms=200, sweep_ms=200, retry_ms=100),
    )


def produce_all(run: Run) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []

    def produce() -> None:
        try:
            loop.produce(run.config, run.server.url, [], stay=True, stop=stop)
        except Problem as error:
            failed.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        wait_until(
            lambda: failed or all(s.inputs is not None and not s.unsent for s in read(run.client, run.all).datasets)
        )
    finally:
        stop.set()
        thread.join(30)
    assert [type(error).__name__ for error in failed if not isinstance(error, Interrupted)] == []


def test_the_quickstart_is_queued_whole(server: Server) -> None:
    config = a_config(*sorted(path for path in (EXAMPLES / "prompts").iterdir()))
    assert len(config.datasets) == 10
    run = Run(server, config)
    run.publish()
    produce_all(run)
    facts = entry(run.client, "tokenizer")
    assert set(facts) == set(TokenizerFacts.__struct_fields__)
    assert found(runbook.pieces(run.client, facts["pieces_digest"]), facts["pieces_digest"]) is not None
    for state in read(run.client, run.all).datasets:
        assert state.inputs
        assert state.queued + state.rejected == state.inputs, state.name
        assert state.rejected == 0, state.name
        payload = decode_job_data(run.client.hget(f"rq:job:{run.queue(state.name)[0]}", "data"))
        assert payload.input_ids
        assert max(payload.input_ids) < facts["vocab_size"]


def test_an_id_met_again_is_another_prompt(server: Server, tmp_path: Path) -> None:
    for shard in ("1", "2"):
        lines = [json.dumps({"id": number, "prompt": f"shard {shard}, {number}"}) for number in range(5)]
        (tmp_path / f"A-{shard}.jsonl").write_text("\n".join(lines) + "\n")
    config = a_config(tmp_path / "A_*.jsonl")
    config = RunConfig(
        name="test",
        output="out",
        tokenizer=config.tokenizer,
        datasets=[
            DatasetConfig(
                name="A", prompts=str(tmp_path / "A-*.jsonl"), max_tokens=1000, sampling={"max_new_tokens": 10}
            )
        ],
        timing=config.timing,
    )
    run = Run(server, config)
    run.publish()
    produce_all(run)
    ids = [str(number) for number in range(5)] + [f"{number}~2" for number in range(5)]
    assert sorted(run.queue("A")) == sorted(job_id("A", own) for own in ids)


def test_a_damaged_row_is_rejected_and_named(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "A_x.jsonl"
    path.write_text('{"id": "good", "prompt": "Hello"}\n{"id": "torn", "prom\n{"id": "empty", "prompt": ""}\n')
    run = Run(server, a_config(path))
    run.publish()
    produce_all(run)
    state = run.state("A")
    assert (state.inputs, state.queued, state.rejected) == (3, 1, 2)


def test_a_missing_file_is_said_before_anything_is_opened(tmp_path: Path) -> None:
    config = a_config(tmp_path / "none.jsonl")
    with pytest.raises(PromptsProblem):
        Files(config).check(config.datasets)
