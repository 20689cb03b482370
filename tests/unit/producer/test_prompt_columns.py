"""Parquet and the hub's sets: typed rows become the rows that JSON Lines would have been."""

import csv
import datetime
import decimal
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import files
from producer.defects import Defect
from producer.errors import PromptsProblem
from producer.files import PromptSource, find
from producer.rows import to_prompt

Rows = list[dict[str, Any]]


def as_parquet(path: Path, rows: Rows) -> Path:
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    # The first row decides which columns there are.
    names = dict.fromkeys(name for row in rows for name in row)
    table = arrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    parquet.write_table(table, path, row_group_size=7)
    return path


def as_csv(path: Path, rows: Rows) -> Path:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    for row in rows:
        cells = {name: held if isinstance(held, str) else json.dumps(held) for name, held in row.items()}
        writer.writerow({name: cell for name, cell in cells.items() if row[name] is not None})
    path.write_text(out.getvalue(), "utf-8", newline="")
    return path


def as_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ids(path: Path) -> dict[str, str]:
    """The prompt that each id belongs to."""
    found: dict[str, str] = {}
    for row in PromptSource.open(str(path), 1):
        prompt = to_prompt(row.value)
        assert not isinstance(prompt, Defect)
        found[row.id] = json.dumps([prompt.messages, prompt.followups, prompt.tools])
    return found


def test_parquet_rows_and_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_parquet(tmp_path / "a.parquet", [{"id": n, "prompt": f"p{n}"} for n in range(20)])
    as_lines(tmp_path / "b.jsonl", [{"id": 3, "prompt": "x"}])
    source = PromptSource.open(str(tmp_path / "*"), 0)
    held = {row.id: row for row in source}
    assert len(source) == len(held) == 21
    assert held["3"].where == f"{tmp_path / 'a.parquet'}, row 4"
    assert held["3~2"].value == {"id": 3, "prompt": "x"}
    assert [row.id for row in PromptSource.open(str(tmp_path / "a.parquet"), None)] == [str(n) for n in range(20)]
    monkeypatch.setattr(files, "SHUFFLE_ROWS", 5)
    windowed = PromptSource.open(str(tmp_path / "a.parquet"), 0)
    assert windowed.note is not None
    assert sorted(int(row.id) for row in windowed) == list(range(20))


def test_types_that_json_has_not(tmp_path: Path) -> None:
    day, cost = datetime.date(2026, 1, 2), decimal.Decimal("1.5")
    rows: Rows = [{"prompt": "p", "n": float("nan"), "day": day, "cost": cost, "raw": b"xy"}]
    (row,) = PromptSource.open(str(as_parquet(tmp_path / "p", rows)))
    assert row.value == {"prompt": "p", "n": None, "day": "2026-01-02", "cost": "1.5", "raw": {"bytes": 2}}


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "p.parquet", [{"prompt": "p"}] * 100)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(PromptsProblem, match="is a damaged Parquet file") as caught:
        PromptSource.open(str(path))
    assert "\n" not in str(caught.value)


def test_without_the_extras_their_names_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.parquet").write_bytes(b"PAR1....PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PromptsProblem, match="needs pyarrow: pip install pyarrow"):
        PromptSource.open(str(tmp_path / "p.parquet"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    for use in (find, PromptSource.open):
        with pytest.raises(PromptsProblem, match="needs its library: pip install datasets"):
            use("hf://owner/name?split=train")


@pytest.mark.parametrize("prompts", ["hf://", "hf://a/b?splits=x", "hf://a/b?split="])
def test_a_wrong_name_of_the_hub(prompts: str) -> None:
    with pytest.raises(PromptsProblem, match="names no data set of the hub"):
        find(prompts)


# The library warns of its own file handles and of forks; neither is ours to mend.
@pytest.mark.filterwarnings("ignore")
def test_a_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    rows: Rows = [{"id": n, "prompt": f"p{n}", "tags": ["a"] * n} for n in range(9)]
    saved = datasets.Dataset.from_list(rows)
    saved.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"test": saved}).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "built").mkdir()
    as_lines(tmp_path / "built" / "train.jsonl", rows)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for prompts in (
        f"hf://{tmp_path}/saved",
        f"hf://{tmp_path}/splits?split=test",
        f"hf://{tmp_path}/built?split=train",
    ):
        assert find(prompts) == []
        source = PromptSource.open(prompts, 0)
        assert sorted((row.value for row in source), key=lambda row: row["id"]) == rows
        assert {row.id for row in source} == {str(n) for n in range(9)}
        assert next(iter(source)).where.startswith(f"{prompts}, row ")
    for prompts in (f"hf://{tmp_path}/splits?split=nope", "hf://nobody/no-such-set"):
        with pytest.raises(PromptsProblem, match="cannot be had from this machine or the hub") as caught:
            PromptSource.open(prompts)
        assert "\n" not in str(caught.value)


def test_ids_stay_when_a_file_is_saved_in_another_format_and_order(tmp_path: Path) -> None:
    rows: Rows = [
        {
            "prompt": f"p{n}\r\n",
            "n": n,
            "score": n / 4,
            "good": n % 2 == 0,
            "tags": ["a", "b"][: n % 3],
            "meta": {"level": n, "of": None if n % 2 else "x"},
            "note": None if n % 5 else "1.0",
        }
        for n in range(30)
    ]
    answer = {"role": "assistant", "content": "a"}
    rows += [{"messages": [{"role": "user", "content": f"u{n}"}, answer]} for n in range(5)]
    before = ids(as_lines(tmp_path / "p.jsonl", rows))
    assert len(before) == 35
    random.Random(1).shuffle(rows)
    assert ids(as_csv(tmp_path / "p.csv", rows)) == before
    assert ids(as_parquet(tmp_path / "p.parquet", rows)) == before


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.integers(-(2**53), 2**53)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"prompt": cells.filter(str.strip)},
            optional={
                "n": numbers,
                "x": st.floats(allow_nan=False, allow_infinity=False),
                "flag": st.booleans(),
                "tags": st.lists(cells, max_size=3),
                "meta": st.fixed_dictionaries({"a": cells, "b": numbers | st.none()}),
                "more": cells | st.none(),
            },
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda row: json.dumps(row, sort_keys=True),
    )
)
def test_ids_are_those_of_the_rows_in_every_format(tmp_path_factory: pytest.TempPathFactory, rows: Rows) -> None:
    folder = tmp_path_factory.mktemp("formats")
    before = ids(as_lines(folder / "p.jsonl", rows))
    assert ids(as_csv(folder / "p.csv", rows)) == before
    assert ids(as_parquet(folder / "p.parquet", rows)) == before
