"""The quickstart's files: they load, render, fit the run file's arithmetic, and are what their scripts write."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from producer.files import PromptSource
from producer.prompts import to_payload
from workers.chat import ChatTokenizer
from workers.contracts import DatasetConfig, Payload

EXAMPLES = Path(__file__).parents[3] / "examples"
RUN: dict[str, Any] = tomllib.loads((EXAMPLES / "quickstart.toml").read_text("utf-8"))
NAMES = [dataset["name"] for dataset in RUN["dataset"]]


@pytest.fixture(scope="module")
def turns() -> dict[str, int]:
    """Answers that each dataset's prompts can give; every one of them must render."""
    chat = ChatTokenizer.load(str(EXAMPLES / RUN["model"]["tokenizer"]))
    chat.check()
    counted: dict[str, int] = {}
    for dataset in RUN["dataset"]:
        config = DatasetConfig(name=dataset["name"], prompts="", max_tokens=None, sampling=RUN["sampling"])
        made = [
            to_payload(config, row.id, row.value, chat, 32_768)
            for row in PromptSource.open(str(EXAMPLES / dataset["prompts"]), 0)
        ]
        good = [payload for payload in made if isinstance(payload, Payload)]
        assert len(good) == len(made)
        counted[dataset["name"]] = sum(payload.turns for payload in good)
    return counted


def test_ten_datasets_of_two_thousand_prompts(turns: dict[str, int]) -> None:
    assert [name[:2] for name in turns] == ["A1", "A2", "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8"]
    assert 2000 <= sum(turns.values()) <= 2200
    assert set(RUN["simulator"]["lengths"]) == set(turns)
    assert (
        sum(file.stat().st_size for file in EXAMPLES.rglob("*") if file.is_file() and "out" not in file.parts)
        < 1_500_000
    )


def test_only_one_dataset_runs_out_of_prompts(turns: dict[str, int]) -> None:
    lengths = RUN["simulator"]["lengths"]
    short: list[str] = []
    total = 0.0
    for dataset in RUN["dataset"]:
        cap = dataset.get("max_tokens", RUN["run"]["max_tokens_per_dataset"])
        expected = turns[dataset["name"]] * lengths[dataset["name"]]["mean"]
        total += min(cap, expected)
        assert expected < 0.8 * cap or expected > 1.4 * cap, "chance must not decide which one it is"
        if expected < cap:
            short.append(dataset["name"])
    assert short == ["B6_questions"]
    assert 350_000 < total < 450_000
    means = [length["mean"] for length in lengths.values()]
    assert max(means) > 10 * min(means)


def test_the_scripts_write_what_is_committed(tmp_path: Path) -> None:
    for script in ("make_prompts.py", "make_tokenizer.py"):
        shutil.copy(EXAMPLES / script, tmp_path)
    for script in ("make_tokenizer.py", "make_prompts.py"):
        subprocess.run([sys.executable, script], cwd=tmp_path, check=True, capture_output=True)
    # The tokenizer's own file is written by a library, in that library's words.
    for folder in ("prompts", "tokenizer"):
        committed = {file.name for file in (EXAMPLES / folder).iterdir()}
        assert committed == {file.name for file in (tmp_path / folder).iterdir()}
    for file in (EXAMPLES / "prompts").iterdir():
        if file.suffix != ".gz":
            assert (tmp_path / "prompts" / file.name).read_bytes() == file.read_bytes(), file.name
