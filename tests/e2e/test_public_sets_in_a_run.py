"""Public prompt sets, as they are published, through a whole run and out again as training files."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from click.testing import CliRunner

from tests.e2e_support import ROOT, Job
from tests.job_fixtures import StartSimulator
from tokenmill.inspecting import command
from workers.simulator.lengths import LengthSpec

SHARED = ROOT.parent / "shared"
TOKENIZER = SHARED / "tokenizers" / "qwen_chatml"
pytestmark = pytest.mark.skipif(not TOKENIZER.is_dir(), reason=f"{SHARED} is not there")

# File, rows, and how many of them are prompts: all but the definitions of tools.
SETS = {
    "human_eval": ("human_eval/HumanEval.jsonl.gz", 164, 164),
    "gsm8k": ("gsm8k/test.jsonl", 718, 718),
    "mbpp": ("mbpp/sanitized-mbpp.json", 427, 427),
    "mt_bench": ("mt_bench/question.jsonl", 80, 80),
    "bfcl_simple": ("bfcl/BFCL_v4_live_simple.json", 258, 258),
    "bfcl_turns": ("bfcl/BFCL_v4_multi_turn_base.json", 134, 134),
    "bfcl_parallel": ("bfcl/BFCL_v4_parallel_multiple.json", 200, 200),
    "bfcl_tools": ("bfcl/multi_turn_func_doc_gorilla_file_system.json", 18, 0),
    "self_instruct": ("self_instruct/*.jsonl", 427, 427),
    "ifeval": ("ifeval/en_input_data.jsonl", 541, 541),
    "glaive": ("glaive_toolcall_en/glaive_toolcall_en_demo.json", 177, 177),
    "identity": ("fastchat_identity/dummy_conversation.json", 500, 500),
    "swe_easy": ("swe_agent/swe-bench-dev-easy.json", 5, 5),
    "swe_debug": ("swe_agent/debug_20240322.json", 5, 5),
    "swe_traj": ("swe_agent/*.traj", 4, 4),
    "arena_hard": ("arena_hard/question.jsonl", 500, 500),
    "mgsm": ("mgsm/mgsm_*.tsv", 1250, 1250),
    "awesome": ("awesome_prompts/prompts.csv", 598, 598),
    "math_hard": ("gtalign_math_hard/test.parquet", 353, 353),
}
TOKENS = 8


@pytest.fixture
def public(job: Job, start_simulator: StartSimulator) -> Job:
    simulator = start_simulator(
        tokenizer=str(TOKENIZER),
        speed=1000,
        max_running_requests=256,
        lengths={"*": LengthSpec(shape="constant", mean=TOKENS)},
    )
    job.tables["run"]["max_tokens_per_dataset"] = "none"
    job.tables["model"]["tokenizer"] = str(TOKENIZER)
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": 128}
    job.tables["timing"] = {}
    for name, (path, _, _) in SETS.items():
        job.datasets[name] = {"name": name, "prompts": str(SHARED / "data" / path)}
    return job.write()


def exported(job: Job, form: str) -> list[Path]:
    done = job.call("export", "--format", form, "--json")
    assert done.code == 0, done.err
    account = json.loads(done.out)
    for part in account["datasets"]:
        assert part["lines"] == part["lines_used"] + sum(part["left_out"].values()), part
    folder = job.output / "exports"
    return sorted((folder / "speculators").iterdir()) if form == "speculators" else [folder / f"{form}.jsonl"]


def check_token_rows(rows: list[dict[str, Any]], answers: dict[str, dict[str, Any]]) -> None:
    """By what both trainers check, and against the answers: the mask is 1 on what was generated, nothing else."""
    for row in rows:
        ids, mask, answer = row["input_ids"], row["loss_mask"], answers[row["id"]]
        assert len(ids) == len(mask) and set(mask) <= {0, 1}
        assert all(type(token) is int for token in ids)
        assert ids == answer["input_ids"] + answer["output_ids"]
        assert mask == [0] * len(answer["input_ids"]) + [1] * answer["completion_tokens"]


@pytest.mark.timeout(600)
def test_every_row_becomes_an_answer_or_a_reject_and_a_row_for_each_trainer(public: Job) -> None:
    ended = public.call("run", "--json", patience_s=500)
    assert ended.code == 0, ended.err
    public.check()
    answers: dict[str, dict[str, Any]] = {}
    turns: Counter[str] = Counter()
    for shown in json.loads(ended.out.splitlines()[-1])["datasets"]:
        _, rows, prompts = SETS[shown["name"]]
        assert (shown["inputs"], shown["committed"], shown["rejected"]) == (rows, prompts, rows - prompts)
        for line in public.lines(shown["name"]):
            answers[f"{line['dataset']}/{line['id']}_gen{line['turn'] - 1}"] = line
            turns[shown["name"]] += 1
    assert turns["mt_bench"] == 160 and turns["human_eval"] == 164

    (specforge,) = exported(public, "specforge")
    rows = [json.loads(line) for line in specforge.read_text("utf-8").splitlines()]
    assert len(rows) == len(answers)
    check_token_rows(rows, answers)

    shards = exported(public, "speculators")
    assert all(path.suffix == ".jsonl" for path in shards)
    loaded: Any = datasets.load_dataset(
        "json", data_files=[str(path) for path in shards], split="train", cache_dir=str(public.folder / "cache")
    )
    assert loaded.num_rows == len(answers)
    check_token_rows(list(loaded.select(range(0, loaded.num_rows, 50))), answers)

    (chats,) = exported(public, "conversations")
    loaded = datasets.load_dataset(
        "json", data_files=[str(chats)], split="train", cache_dir=str(public.folder / "cache")
    )
    declared = {row["id"] for row in loaded if json.loads(row["tools"])}
    assert sum(own.startswith(("bfcl_simple/", "bfcl_parallel/")) for own in declared) == 458


@pytest.mark.parametrize("name", SETS)
def test_inspect_says_how_many_rows_are_prompts(name: str) -> None:
    path, rows, prompts = SETS[name]
    shown = CliRunner().invoke(command, [str(SHARED / "data" / path), "--tokenizer", str(TOKENIZER), "--json"])
    assert shown.exit_code == 0, shown.output
    (seen,) = json.loads(shown.stdout)
    assert (seen["rows"], seen["prompts"]) == (rows, prompts)
