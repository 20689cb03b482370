"""Rows of token ids: what stands in them, what their masks say, and that both trainers take them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.exports.rows import token_row
from results.turns import Answer, Ids, TurnFile
from tests.unit.exports.shelf import (
    TOKENIZER,
    Shelf,
    conversation,
    one_schema,
    plain_rows,
    record,
    specforge_tasks,
    speculators_files,
)
from workers.encodings import encode_line

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def read(tmp_path: Path, **changes: Any) -> Answer:
    path = tmp_path / "f.jsonl"
    path.write_bytes(encode_line(record(**changes)))
    ((answer,),) = TurnFile(path, "A1", Answer).jobs()
    return answer


def test_a_row_holds_exactly_what_was_sent_and_what_came_back(shelf: Shelf) -> None:
    shelf.put("A1", record("HumanEval/0"))
    (row,) = shelf.rows()
    assert row == {
        "id": "A1/HumanEval/0_gen0",
        "primary_id": "A1/HumanEval/0",
        "dataset": "A1",
        "turn": 1,
        "turns": 1,
        "finish_reason": "stop",
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "cut": False,
        "history_matches": True,
        "model": "m",
        "weight_version": "default",
        "sampling_params_json": '{"temperature":1.0}',
        "worker": "w",
        "created_at": 1_796_000_000.5,
        "text": "hi",
        "input_ids": [11, 12, 13, 14, 900, 901, 2],
        "loss_mask": [0, 0, 0, 0, 1, 1, 1],
    }


def test_specforge_takes_every_row_and_drops_none(shelf: Shelf) -> None:
    shelf.put("A1", *(record(f"p{number}", output_ids=[5] * (number + 1)) for number in range(20)))
    shelf.put("B2", record("p1", dataset="B2", text="\u2028 \x85 \N{PILE OF POO} \0"))
    outcome = shelf.export()
    (file,) = outcome.files
    tasks = specforge_tasks(outcome.folder / file.file)
    assert len(tasks) == file.rows == 21
    assert sum(sum(mask) for _, mask in tasks) == file.supervised == sum(range(1, 21)) + 3


def test_ids_of_two_datasets_and_of_turns_do_not_collide(shelf: Shelf) -> None:
    shelf.put("A1", record("a"), record("a_gen0"), *conversation("b", ["x", "y"]))
    shelf.put("B2", record("a", dataset="B2"))
    rows = shelf.rows()
    assert [row["id"] for row in rows] == [
        "A1/a_gen0", "A1/a_gen0_gen0", "A1/b_gen0", "A1/b_gen1", "B2/a_gen0",
    ]  # fmt: skip
    assert len({row["primary_id"] for row in rows}) == 4


def test_columns_have_one_type_whatever_the_answers_hold(shelf: Shelf) -> None:
    shelf.put(
        "A1", record("a"), record("b", created_at=1, finish_reason="length", matched="", sampling={"stop": ["x"]})
    )
    schema = one_schema(shelf.rows())
    assert schema["created_at"] is float
    assert schema["sampling_params_json"] is str


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=IDS, said=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), cut=st.none() | st.integers(1, 90))
def test_a_mask_is_as_long_as_its_ids_and_counts_the_answer(
    tmp_path: Path, asked: list[int], said: list[int], cut: int | None
) -> None:
    answer = read(tmp_path, input_ids=asked, output_ids=said)
    whole = json.loads(token_row(answer, "A1", 0, history_matches=True, max_length=None).encode())
    assert whole["input_ids"] == asked + said
    assert len(whole["loss_mask"]) == len(whole["input_ids"])
    assert sum(whole["loss_mask"]) == whole["completion_tokens"] == len(said)
    row = json.loads(token_row(answer, "A1", 0, history_matches=True, max_length=cut).encode())
    assert row["input_ids"] == whole["input_ids"][:cut]
    assert row["loss_mask"] == whole["loss_mask"][:cut]
    assert row["cut"] == (len(row["input_ids"]) < len(whole["input_ids"]))


def test_cut_at_every_offset_the_mask_stays_as_long_as_the_ids(shelf: Shelf) -> None:
    shelf.put("A1", record("p"))
    for length in range(5, 9):
        (row,) = shelf.rows(max_length=length)
        assert len(row["loss_mask"]) == len(row["input_ids"]) == min(length, 7)
        assert sum(row["loss_mask"]) == min(length, 7) - 4
    for length in range(1, 5):
        # Nothing of the answer would be left, and trainers drop such rows in silence.
        with pytest.raises(Exception, match="1 too_few_supervised"):
            shelf.export(max_length=length)


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("ids", [[0], [2**31 - 1], [10, 200, 3000], [1_999_999_999, 1], []])
def test_ids_are_read_however_they_are_spaced(ids: list[int], spaced: bool) -> None:
    raw = json.dumps(ids, separators=(" , ", ":") if spaced else (",", ":")).encode()
    found = Ids.read(raw)
    assert found is not None and (found.numbers(), found.count) == (ids, len(ids))


@pytest.mark.parametrize(
    "raw", ["[-1]", "[2147483648]", "[1.0]", "[1e3]", "[true]", "[[1]]", "[null]", '["1"]', "{}", "1"]
)
def test_what_is_no_list_of_ids_is_refused(raw: str) -> None:
    assert Ids.read(raw.encode()) is None


def test_a_text_that_looks_like_a_date_and_half_a_surrogate_pair_do_not_break_a_loader(shelf: Shelf) -> None:
    shelf.put("A1", record("a", text="2024-01-01"), record("b", text="x\ud83dy"), record("\ud83d"))
    outcome = shelf.export()
    rows = plain_rows(outcome.folder / outcome.files[0].file)
    assert [row["text"] for row in rows] == ["2024-01-01\n", "x\ufffdy", "hi"]
    assert rows[2]["primary_id"] == "A1/\\ud83d"
    assert outcome.datasets[0].marked == {"mended_text": 2}


def test_text_is_decoded_from_the_ids_where_it_is_wanted(shelf: Shelf) -> None:
    from workers.chat import ChatTokenizer

    tokenizer = ChatTokenizer.load(TOKENIZER)
    asked = tokenizer.render([{"role": "user", "content": "Hello"}])
    said = tokenizer._encode("Good day")  # pyright: ignore[reportPrivateUsage]
    shelf.put("A1", record("a", input_ids=asked, output_ids=said))
    (row,) = shelf.rows(text=True)
    assert row["text"] == tokenizer.decode(asked + said)
    assert "Hello" in row["text"] and row["text"].endswith("Good day")


def test_a_folder_for_speculators_holds_nothing_but_rows(shelf: Shelf) -> None:
    shelf.put("A1", *(record(f"p{number}") for number in range(5)))
    outcome = shelf.export("speculators")
    folder = shelf.folder / "out" / "exports" / "speculators"
    assert speculators_files(folder) == [folder / "shard-00000.jsonl"]
    assert list(folder.iterdir()) == speculators_files(folder)
    assert outcome.manifest.parent == folder.parent
    rows = plain_rows(folder / "shard-00000.jsonl")
    assert {"input_ids", "loss_mask"} <= one_schema(rows).keys()
    assert all(len(row["input_ids"]) == len(row["loss_mask"]) and sum(row["loss_mask"]) > 0 for row in rows)


def test_shards_follow_each_other_and_lose_no_row(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.exports.files.SHARD_BYTES", 1000)
    shelf.put("A1", *(record(f"p{number}") for number in range(10)))
    rows = shelf.rows("speculators", split=0.5)
    files = [path.name for path in speculators_files(shelf.folder / "out" / "exports" / "speculators")]
    assert len(files) > 3
    assert sorted(row["primary_id"] for row in rows) == [f"A1/p{number}" for number in range(10)]


LOAD = """
import sys, datasets
held = datasets.load_dataset("json", data_dir=sys.argv[1], split="train", cache_dir=sys.argv[2])
print(len(held), sorted(held.column_names) == sorted(sys.argv[3].split()), sum(map(sum, held["loss_mask"])))
"""


def test_datasets_loads_the_folder_without_a_network(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    monkeypatch.setattr("results.exports.files.SHARD_BYTES", 2000)
    dates = [record(f"d{number}", text="2024-01-01") for number in range(6)]
    texts = [record(f"t{number}", text=f"\u2028 {number} \ud800 \0", sampling={"n": number}) for number in range(6)]
    shelf.put("A1", *dates, *texts, *conversation("c", ["x", "y"]))
    columns = shelf.rows("speculators")[0].keys()
    folder, cache = shelf.folder / "out" / "exports" / "speculators", shelf.folder / "cache"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(cache)}
    command = [sys.executable, "-c", LOAD, str(folder), str(cache), " ".join(columns)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["14", "True", "42"], done.stderr


def test_parquet_has_the_same_columns_and_values(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    monkeypatch.setattr("results.exports.parquet._GROUP_TOKENS", 10)
    shelf.put("A1", *(record(f"p{number}", text="\N{PILE OF POO}\ud800") for number in range(5)))
    lines = shelf.rows()
    outcome = shelf.export("parquet")
    reader: Any = parquet
    held: Any = reader.read_table(outcome.folder / outcome.files[0].file)
    assert held.to_pylist() == lines
    assert held.column_names == list(lines[0])


def test_without_pyarrow_parquet_is_a_sentence(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    shelf.put("A1", record())
    with pytest.raises(Exception, match="pip install pyarrow"):
        shelf.export("parquet")
