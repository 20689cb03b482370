"""Tables: the header found, records cut at the right newline, and no text changed."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from producer.defects import Defect
from producer.errors import PromptsProblem
from producer.files import PromptSource
from producer.rows import to_prompt

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def rows(path: Path, **fields: Any) -> list[dict[str, Any]]:
    return [row.value for row in PromptSource.open(str(path), None, fields)]


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.csv", "act,prompt\r\nChef,Cook!\r\n", [{"act": "Chef", "prompt": "Cook!"}]),
        ("p.csv", '\ufeffid,prompt\n1,"a\nb, ""c"""\n', [{"id": "1", "prompt": 'a\nb, "c"'}]),
        ("p.csv", 'id,prompt\n1,"a\r\n\r\nb"\r\n\r\n', [{"id": "1", "prompt": "a\r\n\r\nb"}]),
        ("p.csv", "prompt\nWhy?\n", [{"prompt": "Why?"}]),
        ("p.csv", 'id;prompt\n1;"a; b"\n', [{"id": "1", "prompt": "a; b"}]),
        ("p.csv", 'id,prompt\n1,5" disk\n2, x \n', [{"id": "1", "prompt": '5" disk'}, {"id": "2", "prompt": " x "}]),
        # A header whose names say nothing is still one, and then nobody can tell where the prompt stands.
        ("p.csv", "sentence1,label\nA dog runs.,1\n", [{"sentence1": "A dog runs.", "label": "1"}]),
        ("p.tsv", "question\tanswer\nWhy?\tbecause\n", [{"question": "Why?", "answer": "because"}]),
        ("p.tsv", "2+2?\t4\n3+3?\t6", [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}]),
        ("p.tsv", '"Hi," he said.\t"2,125"\n', [{"question": '"Hi," he said.', "answer": '"2,125"'}]),
        ("p.tsv", '"a\tb\nc"\t"d"\n', [{"question": "a\tb\nc", "answer": "d"}]),
        ("p.tsv", "1 + 1?\n2 + 2?\n", [{"question": "1 + 1?"}, {"question": "2 + 2?"}]),
        # A table is known by a header of known names whatever it is called, JSON Lines whatever it is called.
        ("p.txt", "id\tprompt\n1\tx\n", [{"id": "1", "prompt": "x"}]),
        ("p.csv", '{"prompt": "a, b"}\n{"prompt": "c"}\n', [{"prompt": "a, b"}, {"prompt": "c"}]),
        ("p.csv", 'prompt,x\n{"a": 1},2\n', [{"prompt": '{"a": 1}', "x": "2"}]),
    ],
)  # fmt: skip
def test_tables(tmp_path: Path, name: str, content: str, expected: list[dict[str, str]]) -> None:
    assert rows(written(tmp_path / name, content)) == expected
    packed = written(tmp_path / f"{name}.gz", gzip.compress(content.encode()))
    denser = written(tmp_path / f"{name}.zst", zstandard.compress(content.encode()))
    assert rows(packed) == rows(denser) == expected


def test_what_fields_say_of_a_table(tmp_path: Path) -> None:
    path = written(tmp_path / "p.tsv", "id\tprompt\nb\tc\n")
    assert rows(path) == [{"id": "b", "prompt": "c"}]
    assert rows(path, header=False) == [{"question": "id", "answer": "prompt"}, {"question": "b", "answer": "c"}]
    assert rows(path, columns=["x", "y"]) == [{"x": "id", "y": "prompt"}, {"x": "b", "y": "c"}]
    assert rows(path, columns=["id", "prompt"]) == [{"id": "b", "prompt": "c"}]
    assert rows(path, header=True, columns=["x", "y"]) == [{"x": "b", "y": "c"}]
    wide = written(tmp_path / "w.csv", "q1?,a b,3\nq2?,c d,4\n")
    with pytest.raises(PromptsProblem, match="3 columns of unknown names"):
        rows(wide)
    assert rows(wide, header=False, columns=["question", "b", "c"])[0]["question"] == "q1?"
    with pytest.raises(PromptsProblem, match="3 columns, `columns` in its fields names 1"):
        rows(wide, columns=["x"])
    odd = written(tmp_path / "o.csv", "My Question!,qid\nWhy?,7\n")
    assert rows(odd, prompt="My Question!") == [{"My Question!": "Why?", "qid": "7"}]
    with pytest.raises(PromptsProblem, match="has no column nope; it has My Question!, qid"):
        rows(odd, prompt="My Question!", id="nope")
    with pytest.raises(PromptsProblem, match="two columns named a"):
        rows(written(tmp_path / "t.csv", "a,prompt,a\n1,2,3\n"))


def test_records_that_do_not_fit_are_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "p.csv", b'id,prompt\n1,a\n2\n3,a,b\n"x"y,b\n\xff,b\n4,"open\nend')
    source = PromptSource.open(str(path), 0)
    held = {row.position: row for row in source}
    assert len(source) == len(held) == 6
    found = {position: row.defect.detail for position, row in held.items() if row.defect is not None}
    assert found[3] == "the row has 1 cell, the table has 2 columns"
    assert found[4] == "the row has 3 cells, the table has 2 columns"
    assert "record of a table" in found[5]
    assert found[6] == "byte 1 of the row is not UTF-8"
    assert 7 in found
    assert held[7].shown == '4,"open\nend'
    assert held[2].where == f"{path}, line 2"


def test_structures_in_cells(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "it's"}, {"role": "assistant", "content": "a"}]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["messages", "tools"])
    writer.writerow([json.dumps(messages), '[{"name": "f"}]'])
    writer.writerow([str(messages), ""])  # as pandas writes a column of lists
    first, second = rows(written(tmp_path / "p.csv", out.getvalue()))
    for row in (first, second):
        prompt = to_prompt(row)
        assert not isinstance(prompt, Defect)
        assert (prompt.messages, prompt.reference) == ([messages[0]], "a")
    prompt = to_prompt(first)
    assert not isinstance(prompt, Defect)
    assert prompt.tools == [{"type": "function", "function": {"name": "f"}}]
    # JSON that is no conversation is what the user asks.
    plain = to_prompt({"prompt": '{"task": "x"}'})
    assert not isinstance(plain, Defect)
    assert plain.messages[0]["content"] == '{"task": "x"}'


@given(
    st.lists(st.tuples(texts, texts), min_size=1, max_size=6),
    st.sampled_from([(",", "p.csv"), ("\t", "p.tsv"), (";", "p.csv")]),
    st.sampled_from(["\r\n", "\n"]),
    st.booleans(),
)
def test_any_table_gives_back_its_texts(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[tuple[str, str]],
    mark: tuple[str, str],
    end: str,
    quote_all: bool,
) -> None:
    delimiter, name = mark
    out = io.StringIO()
    quoting = csv.QUOTE_ALL if quote_all or delimiter == "\t" else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow(["prompt", "answer"])
    writer.writerows(pairs)
    path = written(tmp_path_factory.mktemp("table") / name, out.getvalue())
    for seed in (None, 3):
        got = {row.position: row.value for row in PromptSource.open(str(path), seed)}
        assert [got[at] for at in sorted(got)] == [{"prompt": p, "answer": a} for p, a in pairs]
