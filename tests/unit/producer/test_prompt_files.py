"""A source yields every row once, in an order that the seed alone decides, under ids that stay."""

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import files, packed
from producer.errors import PromptsProblem
from producer.files import PromptSource, permutation

Rows = list[dict[str, Any]]


def as_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_gzip(path: Path, rows: Rows) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def as_array(path: Path, rows: Rows) -> Path:
    path.write_text(json.dumps(rows, indent=1))
    return path


def as_packed_array(path: Path, rows: Rows) -> Path:
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    return path


LAYOUTS: list[Callable[[Path, Rows], Path]] = [as_lines, as_gzip, as_array, as_packed_array]


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("seed", [None, 0, 7])
def test_every_row_once_in_every_layout(tmp_path: Path, write: Callable[[Path, Rows], Path], seed: int | None) -> None:
    rows: Rows = [{"id": n, "prompt": f"p{n}"} for n in range(50)]
    source = PromptSource.open(str(write(tmp_path / "p", rows)), seed)
    ids = [row.id for row in source]
    assert len(source) == 50
    assert sorted(ids, key=int) == [str(n) for n in range(50)]
    assert (ids == sorted(ids, key=int)) == (seed is None)
    assert ids == [row.id for row in source]


def test_order_comes_from_the_seed_alone(tmp_path: Path) -> None:
    path = as_lines(tmp_path / "p.jsonl", [{"id": n, "prompt": "x"} for n in range(30)])
    one, two, other = (PromptSource.open(str(path), seed) for seed in (1, 1, 2))
    assert [row.id for row in one] == [row.id for row in two]
    assert [row.id for row in one] != [row.id for row in other]


def test_the_permutation_stays_as_it_is() -> None:
    # A run continues on another machine and another Python in the same order: these are fixed for ever.
    assert list(permutation(8, 0)) == [0, 3, 4, 7, 1, 2, 5, 6]
    assert list(permutation(8, 1)) == [0, 2, 3, 6, 7, 4, 5, 1]


@given(st.integers(0, 200), st.integers(0, 2**32))
def test_permutations_are_permutations(count: int, seed: int) -> None:
    assert sorted(permutation(count, seed)) == list(range(count))


@given(
    st.lists(
        st.fixed_dictionaries(
            {"prompt": st.sampled_from("ab")}, optional={"id": st.sampled_from(["a", "a~2", "b", 1, "1"])}
        ),
        min_size=1,
        max_size=12,
    )
)
def test_ids_are_unique_and_the_same_in_all_layouts_and_orders(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows
) -> None:
    folder = tmp_path_factory.mktemp("files")
    seen: list[dict[int, str]] = []
    for write in LAYOUTS:
        path = write(folder / write.__name__, rows)
        for seed in (None, 0):
            got = list(PromptSource.open(str(path), seed))
            assert len({row.id for row in got}) == len(rows)
            seen.append({row.position: row.id for row in got})
    assert all(held == seen[0] for held in seen)


def test_ids_met_again_are_numbered_in_file_order_across_shards(tmp_path: Path) -> None:
    for shard in ("b", "a", "c"):
        as_lines(tmp_path / f"{shard}.jsonl", [{"id": 0, "prompt": shard}, {"id": 1, "prompt": shard}])
    source = PromptSource.open(str(tmp_path / "*.jsonl"), 5)
    assert [path.name for path in source.paths] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert {row.id: row.value["prompt"] for row in source} == {
        "0": "a", "1": "a", "0~2": "b", "1~2": "b", "0~3": "c", "1~3": "c",
    }  # fmt: skip


def test_rows_without_ids_keep_theirs_when_saved_in_another_format_and_order(tmp_path: Path) -> None:
    rows: Rows = [{"prompt": f"p{n}", "meta": {"b": [1, None], "a": 2.5}} for n in range(20)]
    before = {row.id for row in PromptSource.open(str(as_lines(tmp_path / "p", rows)))}
    other: Rows = [
        {"meta": {"a": 2.5, "b": [1, None], "c": None}, "new": None, "prompt": row["prompt"]} for row in rows
    ]
    random.Random(0).shuffle(other)
    assert {row.id for row in PromptSource.open(str(as_array(tmp_path / "q", other)))} == before
    assert all(name.startswith("h-") for name in before)


def test_malformed_rows_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"id":"x","prompt":"a"}\n{"id": broken\r\n\n{"id": broken\n{"a": NaN}\n')
    source = PromptSource.open(str(path), 3)
    rows = {row.position: row for row in source}
    assert len(source) == 4
    assert rows[2].id.startswith("bad-")
    assert rows[4].id == f"{rows[2].id}~2"
    assert rows[2].value is None
    assert rows[2].shown == '{"id": broken'
    assert rows[1].shown == {"id": "x", "prompt": "a"}
    assert rows[2].defect is not None
    assert rows[5].defect is not None
    assert (rows[2].defect.reason, rows[5].defect.reason) == ("malformed", "nan")
    assert rows[2].where == f"{path}, line 2"
    array = as_array(tmp_path / "q", [{"id": 1}])
    assert next(iter(PromptSource.open(str(array)))).where == f"{array}, element 1"


def test_ids_such_as_slashes_are_kept(tmp_path: Path) -> None:
    path = as_lines(
        tmp_path / "p", [{"task_id": "HumanEval/0", "prompt": "x"}, {"task_id": "HumanEval/1", "prompt": "x"}]
    )
    assert [row.id for row in PromptSource.open(str(path), None)] == ["HumanEval/0", "HumanEval/1"]


def test_the_window_of_a_compressed_set_shuffles_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_gzip(tmp_path / "p.gz", [{"id": n, "prompt": "x"} for n in range(100)])
    assert PromptSource.open(str(path), 0).note is None
    monkeypatch.setattr(files, "SHUFFLE_ROWS", 10)
    source = PromptSource.open(str(path), 0)
    ids = [int(row.id) for row in source]
    assert source.note is not None
    assert "compressed" in source.note
    assert sorted(ids) == list(range(100))
    assert ids != sorted(ids)
    assert all(number <= at + 10 for at, number in enumerate(ids))
    assert PromptSource.open(str(path), None).note is None
    monkeypatch.setattr(files, "SHUFFLE_BYTES", 60)
    assert sorted(int(row.id) for row in PromptSource.open(str(path), 0)) == list(range(100))


def test_plain_and_compressed_shards_are_one_set(tmp_path: Path) -> None:
    as_lines(tmp_path / "a.jsonl", [{"id": 0}, {"id": 1}])
    as_gzip(tmp_path / "b.jsonl.gz", [{"id": 0}, {"id": 2}])
    assert {row.id for row in PromptSource.open(str(tmp_path / "*"), 0)} == {"0", "1", "0~2", "2"}


def test_a_pass_sees_what_was_added_since_the_last(tmp_path: Path) -> None:
    path = as_lines(tmp_path / "a.jsonl", [{"id": n} for n in range(3)])
    source = PromptSource.open(str(tmp_path / "*.jsonl"), 0)
    before = {row.id for row in source}
    with path.open("a") as file:
        file.write('{"id": 3}\n')
    as_lines(tmp_path / "b.jsonl", [{"id": 0}])
    after = {row.id for row in source}
    assert before < after
    assert after - before == {"3", "0~2"}
    assert len(source) == 5


def test_a_file_that_changes_under_a_pass_is_told(tmp_path: Path) -> None:
    path = as_lines(tmp_path / "a.jsonl", [{"id": n, "prompt": "x" * 20} for n in range(10)])
    rows = iter(PromptSource.open(str(path), None))
    next(rows)
    with path.open("r+b") as file:
        file.write(b"\n" * 400)
    with pytest.raises(PromptsProblem, match="changed while it was being read"):
        list(rows)


def test_more_shards_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "OPEN_FILES", 3)
    for shard in range(10):
        as_lines(tmp_path / f"{shard}.jsonl", [{"id": f"{shard}-{n}"} for n in range(5)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert len({row.id for row in PromptSource.open(str(tmp_path / "*.jsonl"), 1)}) == 50
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_name_with_brackets_is_a_file_before_it_is_a_pattern(tmp_path: Path) -> None:
    path = as_lines(tmp_path / "p[1].jsonl", [{"id": 0}])
    assert PromptSource.open(str(path)).paths == [path]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.jsonl", "there is no prompt file"),
        ("*.nothing", "no file matches"),
        ("", "is a folder"),
        ("empty.jsonl", "holds no prompts"),
        ("blank.jsonl", "holds no prompts"),
        ("array.json", "holds no prompts"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "blank.jsonl").write_bytes(b"\n\r\n \n")
    (tmp_path / "array.json").write_bytes(b"[ ]")
    prompts = str(tmp_path / name)
    with pytest.raises(PromptsProblem, match=says) as caught:
        PromptSource.open(prompts)
    assert prompts in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompts", ["s3://somebody/something", "https://somebody/p.jsonl"])
def test_other_places_are_not_read(prompts: str) -> None:
    with pytest.raises(PromptsProblem, match="is not on this machine"):
        PromptSource.open(prompts)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = as_lines(tmp_path / "p.jsonl", [{"id": 0}])
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything: be somebody else for a moment
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_mode & 0o001 == 0:
                folder.chmod(folder.stat().st_mode | 0o011)
        os.seteuid(65534)
    try:
        with pytest.raises(PromptsProblem, match="cannot be read"):
            PromptSource.open(str(path))
    finally:
        os.seteuid(user)
