"""What /generate refuses, in which shape, and what kills the server."""

import json
from typing import Any

import pytest

from workers.simulator.bodies import Batch, parse_generate
from workers.simulator.errors import ApiError, Poison
from workers.simulator.vocabulary import Vocabulary

VOCABULARY = Vocabulary(2048, 2)


def _parse(body: Any) -> Batch:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_generate(raw, "application/json", VOCABULARY, 2048)


def _refused(body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _parse(body)
    return caught.value


def _with(**params: Any) -> dict[str, Any]:
    return {"input_ids": [1, 2, 3], "sampling_params": params}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_tokens": 3}, "unknown field `max_tokens`, expected one of `max_new_tokens`, "),
        ({"seed": 3}, "unknown field `seed`, "),
        ({"temperature": "hot"}, 'invalid type: string "hot", expected f64'),
        ({"max_new_tokens": 1.5}, "invalid type: floating point `1.5`, expected i64"),
        ({"max_new_tokens": True}, "invalid type: boolean `true`, expected i64"),
        ({"ignore_eos": 1}, "invalid type: integer `1`, expected a boolean"),
        ({"stop": 5}, "invalid type: integer `5`, expected a value or an array of values for StringOrList"),
        ({"stop_token_ids": ["x"]}, 'invalid type: string "x", expected i64'),
        ({"sampling_seed": 2**63}, f"invalid type: integer `{2**63}`, expected i64"),
    ],
)
def test_the_sampling_contract_answers_with_a_bare_string(params: dict[str, Any], words: str) -> None:
    error = _refused(_with(**params))
    assert error.status == 400
    assert error.body["error"].startswith(words)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0."),
        ({"min_p": 2}, "min_p must be in [0, 1], got 2."),
        ({"frequency_penalty": 5}, "frequency_penalty must be in [-2, 2], got 5."),
        ({"repetition_penalty": 3}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 3."),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1."),
        ({"max_new_tokens": 8, "min_new_tokens": 9}, "min_new_tokens must be in [0, max_new_tokens(8)], got 9."),
        ({"logit_bias": {"2048": 1}}, "logit_bias must has keys in [0, 2047], got 2048."),
        ({"regex": "a", "json_schema": "{}"}, "Only one of json_schema, regex, ebnf, or structural_tag can be set."),
        ({"max_new_tokens": 2046}, "Requested token count exceeds the model's maximum context length of 2048 tokens."),
    ],
)
def test_a_value_out_of_range_answers_with_a_message(params: dict[str, Any], words: str) -> None:
    error = _refused(_with(**params))
    assert (error.status, error.streamable) == (400, False)
    assert error.body["error"]["message"].startswith(words)
    assert _refused({**_with(**params), "stream": True}).streamable


@pytest.mark.parametrize(("tokens", "accepted"), [(2041, True), (2042, False), (2047, False), (2048, False)])
def test_the_longest_prompt(tokens: int, accepted: bool) -> None:
    body = {"input_ids": [7] * tokens, "sampling_params": {"max_new_tokens": None}}
    if accepted:
        assert len(_parse(body).prompts) == 1
    else:
        assert "error" in _refused(body).body


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{not json", b"[1]", b'{"input_ids": [1], "sampling_params": {"temperature": NaN}}',
        {"input_ids": 5}, {"input_ids": ["1"]}, {"input_ids": [1, 2.5]}, {"input_ids": [1, [2]]},
        {"input_ids": [[1], 2]}, {"input_ids": [2**70]}, {"text": 5}, {"input_ids": [1], "rid": 5},
        {"input_ids": [1], "sampling_params": "x"},
    ],
)  # fmt: skip
def test_a_body_of_the_wrong_type_answers_like_fastapi(body: Any) -> None:
    error = _refused(body)
    assert error.status == 400
    assert (error.body["object"], error.body["type"], error.body["code"]) == ("error", "Bad Request", 400)


@pytest.mark.parametrize(
    "body",
    [{"input_ids": [-1]}, {"input_ids": [2048]}, {"input_ids": [[1], [5000]]}, b'{"input_ids": [[]]}', {"text": ""}],
)
def test_what_kills_the_server(body: Any) -> None:
    with pytest.raises(Poison):
        _parse(body)


def test_an_empty_prompt_among_others_is_answered() -> None:
    assert [len(prompt.input_ids) for prompt in _parse({"input_ids": [[1], []]}).prompts] == [1, 0]


def test_lists_in_lists_out() -> None:
    assert not _parse({"input_ids": [1]}).as_list
    assert _parse({"input_ids": [[1]]}).as_list
    assert _parse(_with(n=3)).as_list
    assert [p.index for p in _parse(_with(n=3)).prompts] == [0, 1, 2]
    assert not _parse(_with(n=0)).as_list


def test_rids() -> None:
    assert [p.rid for p in _parse({"input_ids": [[1], [2]], "rid": "a"}).prompts] == ["a_0", "a_1"]
    assert [p.rid for p in _parse({"input_ids": [[1], [2]], "rid": ["a", "b"]}).prompts] == ["a", "b"]
    assert _parse({"input_ids": [1], "rid": "a"}).prompts[0].rid == "a"
    wrong: list[list[str]] = [["a"], ["a", "a"]]
    for rid in wrong:
        assert "message" in _refused({"input_ids": [[1], [2]], "rid": rid}).body["error"]


def test_one_bad_prompt_fails_the_batch() -> None:
    params = [{"temperature": 0}, {"temperature": -1}]
    assert "temperature" in _refused({"input_ids": [[1], [2]], "sampling_params": params}).body["error"]["message"]
    assert _refused({"input_ids": [[1], [2]], "sampling_params": params[:1]}).status == 500
