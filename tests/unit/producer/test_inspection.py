"""An inspection says what the producer will do, and adds up."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from producer.inspection import Inspection, inspect
from tokenmill.inspecting import command
from workers.chat import ChatTokenizer
from workers.contracts import DatasetConfig

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "tokenizer"
SETS = ROOT.parent / "shared" / "data"
TOKENIZERS = ROOT.parent / "shared" / "tokenizers"
U = {"role": "user", "content": "u"}
ROWS: list[Any] = [
    {"id": "a", "prompt": "Why?"},
    {"id": "a", "prompt": "Why?"},
    {"id": "s", "system": "Be brief.", "prompt": "Why not <|im_end|>?"},
    {"messages": [U, {"role": "assistant", "content": "x"}, {"role": "user", "content": "v"}]},
    {"messages": [U, {"role": "assistant", "content": "y"}]},
    {"uid": 4, "prompt": "word " * 400},
    {"prompt": ""},
    [1],
]  # fmt: skip


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer.load(str(EXAMPLE))


def look(path: Path, held: list[Any], chat: ChatTokenizer | None = None, **options: Any) -> Inspection:
    path.write_text("".join(json.dumps(row) + "\n" for row in held) + "{broken\n")
    return inspect(DatasetConfig(name="D", prompts=str(path), max_tokens=None), chat, seed=None, **options)


def test_everything_is_counted(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = tmp_path / "p.jsonl"
    seen = look(path, ROWS, chat, context_length=200)
    assert (seen.rows, seen.looked_at, seen.prompts, seen.rejected) == (9, 9, 5, 4)
    assert seen.shapes == {"prompt": 4, "messages": 2}
    assert seen.ids == {"their content": 4, "id": 3, "uid": 1}
    assert (seen.repeated_ids, seen.distinct, seen.distinct_openings) == (1, 4, 3)
    assert (seen.several_turns, seen.most_turns, seen.with_system, seen.with_reference) == (1, 2, 1, 1)
    assert (seen.over_context, seen.context_length, seen.template_system) == (1, 200, "")
    assert [(held.reason, held.count, held.where) for held in seen.rejects] == [
        ("too_long", 1, f"{path}, line 6"),
        ("empty_prompt", 1, f"{path}, line 7"),
        ("not_an_object", 1, f"{path}, line 8"),
        ("malformed", 1, f"{path}, line 9"),
    ]
    assert [(held.text, held.prompts, held.where) for held in seen.special] == [("<|im_end|>", 1, f"{path}, line 3")]
    assert not seen.special_becomes_tokens
    assert [sample.id for sample in seen.samples][:3] == ["a", "a~2", "s"]
    assert seen.samples[0].text == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert seen.samples[0].tokens == len(chat.render([{"role": "user", "content": "Why?"}]))
    assert seen.lengths is not None
    assert (seen.lengths.unit, seen.lengths.least <= seen.lengths.p50 <= seen.lengths.most) == ("tokens", True)
    assert (seen.files[0].format, seen.files[0].rows) == ("JSON Lines", 9)


def test_without_a_tokenizer_and_with_fewer_rows(tmp_path: Path) -> None:
    seen = look(tmp_path / "p.jsonl", ROWS, rows=2, samples=1)
    assert (seen.rows, seen.looked_at, seen.prompts, len(seen.samples)) == (9, 2, 2, 1)
    assert seen.samples[0].text == "user: Why?"
    assert seen.lengths is not None
    assert (seen.lengths.unit, seen.lengths.total) == ("characters", 8)
    assert any("looked at 2 of 9 rows" in note for note in seen.notes)


KEYS = st.sampled_from(["prompt", "id", "text", "messages"])


@given(st.lists(st.dictionaries(KEYS, st.text() | st.none()), min_size=1))
def test_it_always_adds_up(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    seen = look(tmp_path_factory.mktemp("inspection") / "p.jsonl", rows)
    assert seen.prompts + seen.rejected == seen.looked_at == seen.rows == len(rows) + 1
    assert sum(held.count for held in seen.rejects) == seen.rejected
    assert seen.distinct_openings <= seen.distinct <= seen.prompts == sum(seen.shapes.values())


def test_the_command_on_a_run_file_and_on_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text('qid,question_text\n7,"Why\x1b[31m?"\n8,[bold]How?\n')
    run = tmp_path / "run.toml"
    fields = 'fields = { prompt = "question_text", id = "qid" }'
    run.write_text(
        f'[model]\ntokenizer = "{EXAMPLE}"\n[[dataset]]\nname = "D"\nprompts = "p.csv"\nmax_tokens = 1\n{fields}\n'
    )
    shown = CliRunner().invoke(command, [str(run)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "<|im_start|>user\nWhy\\x1b[31m?<|im_end|>" in shown.output, "control characters are told, not obeyed"
    assert "[bold]How?" in shown.output
    assert "2 of 2 rows; 0 rejected" in shown.output
    alone = ["--field", "prompt=question_text", "--field", "id=qid", "--json"]
    told = CliRunner().invoke(command, [str(path), *alone], catch_exceptions=False)
    (held,) = json.loads(told.output)
    assert (held["prompts"], held["ids"], held["files"][0]["format"]) == (2, {"qid": 2}, "CSV")
    assert {sample["id"] for sample in held["samples"]} == {"7", "8"}


def test_a_system_prompt_of_the_templates_own_is_said(tmp_path: Path) -> None:
    folder = TOKENIZERS / "qwen_chatml"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    (tmp_path / "p.jsonl").write_text('{"prompt": "Why?"}\n{"system": "s", "prompt": "How?"}\n')
    shown = CliRunner().invoke(command, [str(tmp_path / "p.jsonl"), "--tokenizer", str(folder)], catch_exceptions=False)
    assert "the template adds its own to 1 prompts: 'You are a helpful assistant'" in " ".join(shown.output.split())


def published() -> list[tuple[str, int, int]]:
    """File, rows and distinct prompts of every public set, as its list of sources has them."""
    if not SETS.is_dir():
        return []
    found: list[tuple[str, int, int]] = []
    folder = ""
    for line in (SETS / "SOURCES.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            folder = line.split()[1]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[2].isdecimal():
            found.append((f"{folder}/{cells[0]}", int(cells[2]), int(cells[3])))
    return found


def test_the_public_sets_are_there() -> None:
    if not published():
        pytest.skip(f"{SETS} is not there")
    assert len(published()) == 26


@pytest.mark.parametrize(("name", "rows", "distinct"), published())
def test_public_sets_have_the_rows_and_prompts_that_they_are_known_for(name: str, rows: int, distinct: int) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    seen = inspect(DatasetConfig(name="D", prompts=str(SETS / name), max_tokens=None), None)
    assert (seen.rows, seen.prompts, seen.rejected) == (rows, rows, 0)
    # Its list counts what is asked before the first answer, which is all of it where a file has none.
    assert distinct in (seen.distinct_openings, seen.distinct)
