"""Each shape of row becomes the prompt that its author meant, or a defect that says why not."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.rows import SHAPES, Defect, Prompt, to_prompt

U: dict[str, Any] = {"role": "user", "content": "u"}
A: dict[str, Any] = {"role": "assistant", "content": "a"}
S: dict[str, Any] = {"role": "system", "content": "s"}
T: dict[str, Any] = {"role": "tool", "content": "t"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def prompt(row: Any) -> Prompt:
    result = to_prompt(row)
    assert isinstance(result, Prompt), result
    return result


def defect(row: Any) -> Defect:
    result = to_prompt(row)
    assert isinstance(result, Defect), result
    assert result.detail
    assert "\n" not in result.detail
    return result


SHAPED: list[tuple[Any, list[Any]]] = [
    ({"messages": [S, U, A]}, [[S, U]]),
    ({"messages": [U]}, [[U]]),
    ({"messages": [U, A, user("v"), A]}, [[U], [user("v")]]),
    ({"messages": [U, user("v"), A, S, user("w")]}, [[U, user("v")], [S, user("w")]]),
    ({"messages": [A, U]}, [[A, U]]),
    ({"messages": [U, A, A, user("v")]}, [[U], [user("v")]]),
    ({"messages": [{"role": "developer", "content": "s"}, U]}, [[S, U]]),
    ({"messages": [U, {"role": "assistant", "content": None}]}, [[U]]),
    ({"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "x"}]}, [[U]]),
    ({"conversations": [{"role": "user", "content": "u"}]}, [[U]]),
    ({"conversations": [{"from": "Human", "value": "u"}]}, [[U]]),
    ({"prompt": "\n u \n"}, [[user("\n u \n")]]),
    ({"prompt": [S, U]}, [[S, U]]),
    ({"question": "u", "answer": "x"}, [[U]]),
    ({"question": [[S, U], [user("v")]]}, [[S, U], [user("v")]]),
    ({"question": [[U, A, user("v")]]}, [[U], [user("v")]]),
    ({"question": [[U], [CALL, T], [user("v")]]}, [[U, CALL, T, user("v")]]),
    ({"question": [U]}, [[U]]),
    ({"query": "u"}, [[U]]),
    ({"problem": "u"}, [[U]]),
    ({"problem_statement": "u"}, [[U]]),
    ({"instruction": "u", "input": ""}, [[U]]),
    ({"instruction": "u", "input": None}, [[U]]),
    ({"instruction": "u", "input": "i"}, [[user("u\n\ni")]]),
    ({"instruction": "u", "instances": [{"input": "i"}]}, [[user("u\n\ni")]]),
    ({"instruction": "u", "instances": []}, [[U]]),
    ({"instruction": "", "input": "u"}, [[U]]),
    ({"instruction": "v", "history": [["u", "a"]]}, [[U], [user("v")]]),
    ({"text": "u"}, [[U]]),
    ({"input": "u", "output": "o"}, [[U]]),
    ({"input": [U]}, [[U]]),
    ({"turns": ["u", "v"]}, [[U], [user("v")]]),
    ({"turns": [{"content": "u"}]}, [[U]]),
    ({"turns": [{"from": "human", "value": "u"}]}, [[U]]),
    ({"history": [S, U, A, user("v")]}, [[S, U, A, user("v")]]),
    ({"system": "s", "prompt": "u"}, [[S, U]]),
    ({"system_prompt": "s", "messages": [U, A, user("v")]}, [[S, U], [user("v")]]),
    ({"system": "other", "messages": [S, U]}, [[S, U]]),
    ({"system": "", "prompt": "u"}, [[U]]),
    ({"messages": [user("v"), CALL, T, A]}, [[user("v"), CALL, T]]),
    ({"messages": [U, A, user("v"), CALL, T, A, user("w"), A]}, [[U, A, user("v"), CALL, T, A, user("w")]]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]}, [[user("ab")]]),
    ({"messages": None, "prompt": "u"}, [[U]]),
    ({"messages": [], "prompt": "u"}, [[U]]),
]


@pytest.mark.parametrize(("row", "turns"), SHAPED)
def test_shapes(row: Any, turns: list[list[dict[str, Any]]]) -> None:
    found = prompt(row)
    assert [found.messages, *found.followups] == turns
    assert found.input_ids == []


@pytest.mark.parametrize("ids", [[0], [5, 6, 7], [[5, 6, 7]]])
def test_input_ids(ids: list[Any]) -> None:
    found = prompt({"input_ids": ids, "messages": [U]})
    assert found.input_ids == (ids[0] if isinstance(ids[0], list) else ids)
    assert found.messages == []


def test_the_order_of_shapes() -> None:
    values: dict[str, Any] = {
        "input_ids": [1], "messages": [user("messages")], "conversations": [user("conversations")],
        "history": [user("history")], "turns": ["turns"],
    }  # fmt: skip
    row = {name: values.get(name, name) for name in reversed(list(SHAPES))}
    # Beside an instruction, history has another meaning.
    del row["history"]
    for name in SHAPES:
        found = prompt(row)
        # An instruction takes its input with it.
        expected = "instruction\n\ninput" if name == "instruction" else name
        assert found.input_ids == [1] if name == "input_ids" else found.messages[-1]["content"] == expected
        del row[name]
        if name == "instruction":
            row["history"] = values["history"]


def test_function_calls_and_results_of_sharegpt() -> None:
    found = prompt(
        {
            "conversations": [
                {"from": "human", "value": "u"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "t"},
                {"from": "gpt", "value": "a"},
            ],
            "tools": '[{"name": "f", "description": "d", "parameters": {}}]',
        }
    )
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]
    assert found.messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    assert found.tools == [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
    assert found.followups == []
    loose = prompt({"conversations": [{"from": "function_call", "value": "f(1)"}, {"from": "human", "value": "u"}]})
    assert loose.messages[0] == {"role": "assistant", "content": "f(1)"}


@pytest.mark.parametrize("tools", [None, "", "[]", []])
def test_no_tools(tools: Any) -> None:
    assert prompt({"prompt": "u", "tools": tools}).tools == []


def test_tools_under_function_and_as_texts() -> None:
    wrapped = {"type": "function", "function": {"name": "f"}}
    assert prompt({"prompt": "u", "function": [{"name": "f"}]}).tools == [wrapped]
    assert prompt({"prompt": "u", "tools": ['{"name": "f"}']}).tools == [wrapped]
    assert prompt({"prompt": "u", "tools": [wrapped]}).tools == [wrapped]
    assert prompt({"prompt": "u", "tools": {"name": "f"}}).tools == [wrapped]


DEFECTIVE: list[tuple[Any, str]] = [
    (None, "not_an_object"),
    ([U], "not_an_object"),
    ("text", "not_an_object"),
    (3, "not_an_object"),
    ({}, "no_prompt"),
    ({"answer": "x"}, "no_prompt"),
    ({"prompt": None}, "no_prompt"),
    ({"messages": []}, "no_prompt"),
    ({"turns": []}, "no_prompt"),
    ({"prompt": ""}, "empty_prompt"),
    ({"prompt": " \n"}, "empty_prompt"),
    ({"turns": ["u", ""]}, "empty_prompt"),
    ({"instruction": "", "input": ""}, "empty_prompt"),
    ({"messages": [user("")]}, "empty_prompt"),
    ({"messages": [U, CALL, T, user("")]}, "empty_prompt"),
    ({"messages": [{"role": "user", "content": None}]}, "content_null"),
    ({"messages": [{"role": "user"}]}, "content_null"),
    ({"turns": [None]}, "content_null"),
    ({"prompt": 3}, "wrong_type"),
    ({"prompt": {"text": "u"}}, "wrong_type"),
    ({"messages": "u"}, "wrong_type"),
    ({"messages": ["u"]}, "wrong_type"),
    ({"messages": [{"content": "u"}]}, "wrong_type"),
    ({"messages": [{"role": 1, "content": "u"}]}, "wrong_type"),
    ({"messages": [{"role": "user", "content": 5}]}, "wrong_type"),
    ({"question": [[U], U]}, "wrong_type"),
    ({"question": [[]]}, "no_prompt"),
    ({"instruction": "v", "history": ["u"]}, "wrong_type"),
    ({"prompt": "u", "system": 4}, "wrong_type"),
    ({"messages": [{"role": "narrator", "content": "u"}]}, "unknown_role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "not_text"),
    ({"messages": [{"role": "user", "content": [3]}]}, "not_text"),
    ({"prompt": "u", "images": ["a.png"]}, "not_text"),
    ({"messages": [S]}, "no_user_turn"),
    ({"messages": [A]}, "no_user_turn"),
    ({"messages": [U, A, S]}, "ends_wrong_side"),
    ({"messages": [U, S]}, "ends_wrong_side"),
    ({"input_ids": "1 2"}, "bad_ids"),
    ({"input_ids": [1.0]}, "bad_ids"),
    ({"input_ids": [True]}, "bad_ids"),
    ({"input_ids": [1, -1]}, "bad_ids"),
    ({"input_ids": [[1], [2]]}, "bad_ids"),
    ({"input_ids": []}, "empty_prompt"),
    ({"input_ids": [[]]}, "empty_prompt"),
    ({"prompt": "u", "tools": "not json"}, "bad_tools"),
    ({"prompt": "u", "tools": [3]}, "bad_tools"),
]


@pytest.mark.parametrize(("row", "reason"), DEFECTIVE)
def test_defects(row: Any, reason: str) -> None:
    assert defect(row).reason == reason


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["user", "gpt", "tool", "text", "", "x"])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "from", "content", "value", "tool_calls", "type", "text", "function", "name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.sampled_from([*SHAPES, "system", "tools", "function", "images", "instances"]), anything))
def test_every_row_is_a_prompt_or_a_defect(row: dict[str, Any]) -> None:
    result = to_prompt(row)
    if isinstance(result, Prompt):
        assert bool(result.messages) != bool(result.input_ids)
        for turn in [result.messages, *result.followups] if result.messages else []:
            assert turn[-1]["role"] in ("user", "tool")
            assert all(isinstance(message["content"], str) for message in turn)


@given(
    st.lists(st.tuples(st.text(min_size=1), st.text()), min_size=1, max_size=4).filter(
        lambda held: all(u.strip() for u, _ in held)
    )
)
def test_texts_pass_unchanged(pairs: list[tuple[str, str]]) -> None:
    messages = [message for u, a in pairs for message in (user(u), {"role": "assistant", "content": a})]
    found = prompt({"messages": messages})
    assert [turn[0]["content"] for turn in [found.messages, *found.followups]] == [u for u, _ in pairs]
    shared = [{"from": "human" if m["role"] == "user" else "gpt", "value": m["content"]} for m in messages]
    assert msgspec.structs.replace(prompt({"conversations": shared}), shape="messages") == found
    assert found.reference == pairs[-1][1]
    bare = msgspec.structs.replace(found, reference="", shape="turns")
    assert to_prompt({"turns": [u for u, _ in pairs]}) == bare
