"""Public prompt sets, as they are published: each row one prompt or one defect, none lost, none twice."""

from pathlib import Path

import pytest

from producer.defects import Defect
from producer.files import PromptSource
from producer.prompts import to_payload
from producer.rows import to_prompt
from workers.chat import ChatTokenizer
from workers.contracts import DatasetConfig, Payload

ROOT = Path(__file__).parents[3]
SETS = ROOT.parent / "shared" / "data"
TOKENIZERS = ROOT.parent / "shared" / "tokenizers"

# file, rows, prompts, jobs of several turns, prompts with tools
COUNTS = [
    ("human_eval/HumanEval.jsonl.gz", 164, 164, 0, 0),
    ("gsm8k/test.jsonl", 718, 718, 0, 0),
    ("mbpp/sanitized-mbpp.json", 427, 427, 0, 0),
    ("mt_bench/question.jsonl", 80, 80, 80, 0),
    ("bfcl/BFCL_v4_live_simple.json", 258, 258, 0, 258),
    ("bfcl/BFCL_v4_multi_turn_base.json", 134, 134, 132, 0),
    ("bfcl/BFCL_v4_parallel_multiple.json", 200, 200, 0, 200),
    # Definitions of tools, no prompts.
    ("bfcl/multi_turn_func_doc_gorilla_file_system.json", 18, 0, 0, 0),
    ("self_instruct/seed_tasks.jsonl", 175, 175, 0, 0),
    ("self_instruct/user_oriented_instructions.jsonl", 252, 252, 0, 0),
    ("ifeval/en_input_data.jsonl", 541, 541, 0, 0),
    ("glaive_toolcall_en/glaive_toolcall_en_demo.json", 177, 177, 70, 107),
    ("fastchat_identity/dummy_conversation.json", 500, 500, 333, 0),
    ("swe_agent/swe-bench-dev-easy.json", 5, 5, 0, 0),
    ("swe_agent/debug_20240322.json", 5, 5, 0, 0),
    ("swe_agent/*.traj", 4, 4, 0, 0),
    ("arena_hard/question.jsonl", 500, 500, 0, 0),
    ("mgsm/mgsm_zh.tsv", 250, 250, 0, 0),
    ("mgsm/mgsm_*.tsv", 1250, 1250, 0, 0),
    ("awesome_prompts/prompts.csv", 598, 598, 0, 0),
    ("gtalign_math_hard/test.parquet", 353, 353, 0, 0),
]


def source(name: str, seed: int | None = 0) -> PromptSource:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if not SETS.is_dir():
        pytest.skip(f"{SETS} is not there")
    return PromptSource.open(str(SETS / name), seed)


@pytest.mark.parametrize(("name", "rows", "prompts", "several", "tools"), COUNTS)
def test_every_row_is_one_prompt_or_one_defect(name: str, rows: int, prompts: int, several: int, tools: int) -> None:
    found = source(name)
    held = list(found)
    assert len(found) == len(held) == len({row.id for row in held}) == rows
    results = [to_prompt(row.value) for row in held if row.defect is None]
    assert len(results) == rows
    good = [result for result in results if not isinstance(result, Defect)]
    assert len(good) == prompts
    assert sum(bool(prompt.followups) for prompt in good) == several
    assert sum(bool(prompt.tools) for prompt in good) == tools


def test_edges_of_prompts_are_kept() -> None:
    prompts = [to_prompt(row.value) for row in source("human_eval/HumanEval.jsonl.gz", None)]
    texts = [prompt.messages[0]["content"] for prompt in prompts if not isinstance(prompt, Defect)]
    assert sum(text.startswith("\n") for text in texts) == 142
    assert all(text.endswith("\n") for text in texts)


def test_one_set_in_two_files_with_other_keys() -> None:
    found = source("self_instruct/*.jsonl")
    assert len(found) == 427
    dangling = [
        prompt
        for prompt in (to_prompt(row.value) for row in found)
        if not isinstance(prompt, Defect) and prompt.messages[0]["content"].endswith("\n\n")
    ]
    assert not dangling


@pytest.mark.parametrize("tokenizer", ["qwen_chatml", "deepseek_v4_chat"])
def test_all_become_payloads(tokenizer: str) -> None:
    if not TOKENIZERS.is_dir():
        pytest.skip(f"{TOKENIZERS} is not there")
    chat = ChatTokenizer.load(str(TOKENIZERS / tokenizer))
    dataset = DatasetConfig(name="x", prompts="", max_tokens=None, sampling={"max_new_tokens": 4096})
    for name, rows, prompts, _, _ in COUNTS:
        made = [to_payload(dataset, row.id, row.value, chat, 32_768) for row in source(name)]
        assert len(made) == rows
        good = [payload for payload in made if isinstance(payload, Payload)]
        assert len(good) == prompts
        for payload in good:
            assert chat.bos_id is None or payload.input_ids.count(chat.bos_id) == 1
