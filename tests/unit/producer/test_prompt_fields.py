"""`fields` goes before all guessing, and says so where it cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.defects import Defect
from producer.fields import at_path, mapped, mistake, unspelled
from producer.files import PromptSource
from producer.rows import Prompt, to_prompt

ROW: dict[str, Any] = {
    "text": "a text",
    "question_text": "Why?",
    "qid": 7,
    "sys": "Be brief.",
    "data": {"turns": [{"q": "one"}, {"q": "two"}], "gold": ["x", 4]},
    "dialog": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}],
    "functions": '[{"name": "f"}]',
    "a.b": "dotted",
}


def prompt(fields: dict[str, Any], row: dict[str, Any] = ROW) -> Prompt:
    assert mistake(fields) == ""
    found = to_prompt(row, fields)
    assert isinstance(found, Prompt), found
    return found


def test_what_is_mapped_is_what_is_asked() -> None:
    assert prompt({}).messages == [{"role": "user", "content": "a text"}]
    found = prompt({"prompt": "question_text", "system": "sys", "tools": "functions", "answer": "data.gold.0"})
    assert found.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert found.tools == [{"type": "function", "function": {"name": "f"}}]
    assert (found.reference, found.shape) == ("x", "prompt")
    assert prompt({"prompt": "data.turns.1.q"}).messages[0]["content"] == "two"
    assert prompt({"prompt": "data.turns.-1.q"}).messages[0]["content"] == "two"
    assert prompt({"prompt": "a.b"}).messages[0]["content"] == "dotted"
    assert prompt({"messages": "dialog"}).reference == "a"
    assert prompt({"messages": "dialog", "reference": "data.gold.1"}).reference == "4"
    assert prompt({"instruction": "question_text", "input": "sys"}).messages[0]["content"] == "Why?\n\nBe brief."
    # What is not a prompt leaves the guess alone.
    assert prompt({"system": "sys"}).messages[1]["content"] == "a text"


def test_a_row_that_lacks_it_is_rejected_with_its_name() -> None:
    found = to_prompt({"text": "x", "k": 1}, {"prompt": "question_text"})
    assert isinstance(found, Defect)
    assert found.reason == "no_prompt"
    assert found.detail == "the row has nothing at question_text, its prompt; it has text, k"


def test_ids_come_from_where_fields_say(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(ROW | {"id": "other"}) + "\n" + json.dumps({"id": "b", "question_text": "x"}) + "\n")
    held = [row.id for row in PromptSource.open(str(path), None, {"id": "qid"})]
    assert held[0] == "7"
    assert held[1].startswith("h-")
    assert next(iter(PromptSource.open(str(path), None, {"id": "data.gold.0"}))).id == "x"
    first = next(iter(PromptSource.open(str(path), None, {"id": "qid"})))
    assert first.shown["id"] == "other", "a rejected row is shown as the file has it"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"promt": "x"}, "unknown key promt: did you mean prompt?"),
        ({"xyzzy": "x"}, "unknown key xyzzy: known are prompt, "),
        ({"prompt": 3}, "prompt must be the row's own name for it"),
        ({"prompt": ""}, "prompt must be the row's own name for it"),
        ({"header": "no"}, "header must be true or false"),
        ({"columns": "a"}, "columns must be a list of names"),
        ({"prompt": "a", "messages": "b"}, "prompt and messages are both named: keep one of them"),
    ],
)
def test_mistakes(fields: dict[str, Any], says: str) -> None:
    assert mistake(fields).startswith(says)


def test_kept_history_is_one_prompt() -> None:
    u, a, v = ({"role": role, "content": text} for role, text in (("user", "u"), ("assistant", "a"), ("user", "v")))
    row = {"messages": [u, a, v, {"role": "assistant", "content": "gold"}]}
    turns, kept = to_prompt(row), to_prompt(row, history="keep")
    assert isinstance(turns, Prompt)
    assert isinstance(kept, Prompt)
    assert (turns.messages, turns.followups, turns.reference) == ([u], [[v]], "gold")
    assert (kept.messages, kept.followups, kept.reference) == ([u, a, v], [], "gold")
    pairs = to_prompt({"instruction": "v", "history": [["u", "a"]]}, history="keep")
    assert isinstance(pairs, Prompt)
    assert pairs.messages == [u, a, v]
    # Texts without answers between them have no history to keep.
    assert to_prompt({"turns": ["u", "v"]}, history="keep") == to_prompt({"turns": ["u", "v"]})


def test_calls_as_the_answer_left_out() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    row = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": None, "tool_calls": [call]}]}
    found = to_prompt(row)
    assert isinstance(found, Prompt)
    assert json.loads(found.reference) == [call]


@pytest.mark.parametrize(
    "text",
    [
        "[x]",
        "{",
        "[",
        "[1",
        "{1, 2}",
        "[b'x']",
        "[NaN]",
        "[1, ",
        "{(1,): 2}",
        "[" * 5000 + "]" * 5000,
        "[" * 501 + "]" * 501,
    ],
)
def test_what_spells_no_json_is_text(text: str) -> None:
    assert unspelled(text) == text


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values.filter(lambda value: isinstance(value, list | dict)))
def test_both_spellings_are_read(value: Any) -> None:
    assert unspelled(json.dumps(value)) == value
    assert unspelled(str(value)) == value


@given(json_values, st.text())
def test_any_path_leads_somewhere_or_nowhere(value: Any, path: str) -> None:
    at_path(value, path)


@given(
    st.dictionaries(st.text(), json_values),
    st.dictionaries(st.sampled_from(["prompt", "id", "tools", "answer"]), st.text(min_size=1)),
)
def test_mapping_is_total_and_leaves_the_row_alone(row: dict[str, Any], fields: dict[str, Any]) -> None:
    before = json.dumps(row)
    seen = mapped(row, fields)
    assert json.dumps(row) == before
    assert isinstance(seen, dict)
    assert isinstance(to_prompt(row, fields), Prompt | Defect)
