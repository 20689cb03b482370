"""A payload holds only what a server can take: ids in the vocabulary, room in the context."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.defects import Defect
from producer.prompts import LONG_TOKEN, SERVER_RESERVE, to_payload
from workers.chat import Unrenderable
from workers.contracts import DatasetConfig, Message, Payload
from workers.encodings import decode_job_data, encode_job_data

DATASET = DatasetConfig(name="B2", prompts="p", max_tokens=10, sampling={"max_new_tokens": 100})


class Words:
    """A tokenizer whose ids are the words' lengths."""

    def __init__(self, vocab_size: int | None = 50) -> None:
        self.vocab_size = vocab_size

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        if any("refuse" in message["content"] for message in messages):
            raise Unrenderable("template", "refused")
        return [len(word) for message in messages for word in message["content"].split()]


def payload(row: Any, context: int | None = None, words: Words | None = None) -> Payload | Defect:
    return to_payload(DATASET, "id~2", row, words or Words(), context)


def test_a_conversation() -> None:
    row = {
        "messages": [
            {"role": "user", "content": "a bb"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "c"},
        ]
    }
    made = payload(row)
    assert isinstance(made, Payload)
    assert (made.dataset, made.id, made.input_ids, made.turns, made.max_new_tokens) == ("B2", "id~2", [1, 2], 2, None)
    assert made.messages == row["messages"][:1]
    assert made.followups == [row["messages"][2:]]
    assert decode_job_data(encode_job_data(made)) == made


def test_defects_of_the_row_the_template_and_the_ids() -> None:
    assert payload({"prompt": ""}) == Defect("empty_prompt", "the prompt is empty")
    assert payload({"prompt": "refuse"}) == Defect("template", "refused")
    for ids in ([3, 50], [3, 10**9]):
        made = payload({"input_ids": ids})
        assert isinstance(made, Defect)
        assert made == Defect("bad_ids", f"token 2 of the prompt is {ids[1]}; the model knows the ids 0 to 49")
    assert isinstance(payload({"input_ids": [3, 50]}, words=Words(None)), Payload)
    assert isinstance(payload({"input_ids": [0, 49]}), Payload)


@given(st.integers(1, 300), st.none() | st.integers(0, 300))
def test_prompt_and_answer_fit_the_context(length: int, context: int | None) -> None:
    made = payload({"input_ids": [1] * length}, context)
    if context is None:
        assert isinstance(made, Payload)
        assert made.max_new_tokens is None
    elif length > context - SERVER_RESERVE:
        assert isinstance(made, Defect)
        assert made.reason == "too_long"
    else:
        assert isinstance(made, Payload)
        answer = made.max_new_tokens or DATASET.sampling["max_new_tokens"]
        assert 1 <= answer <= 100
        assert length + answer <= context
        assert made.max_new_tokens is None or length + answer == context


def test_the_longest_prompt_of_a_real_server() -> None:
    assert isinstance(payload({"input_ids": [1] * 2041}, 2048), Payload)
    assert isinstance(payload({"input_ids": [1] * 2042}, 2048), Defect)


def test_a_huge_text_is_not_tokenized_as_a_whole() -> None:
    class Counting(Words):
        longest = 0

        def render(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
            self.longest = max(self.longest, *(len(message["content"]) for message in messages))
            return super().render(messages, tools)

    words = Counting()
    made = payload({"prompt": "word " * 1_000_000}, context=2000, words=words)
    assert isinstance(made, Defect) and made.reason == "too_long"
    assert "more than 5,888 tokens" in made.detail
    assert words.longest == 2000 * LONG_TOKEN
    # Much text of few tokens is looked at whole, and fits.
    made = payload({"prompt": "a" * 40 + " " * 100_000 + "a"}, context=2000, words=words)
    assert isinstance(made, Payload) and len(made.input_ids) == 2
    assert words.longest == 100_041


def test_a_context_without_a_limit_on_answers() -> None:
    unlimited = DatasetConfig(name="B2", prompts="p", max_tokens=10)
    made = to_payload(unlimited, "x", {"input_ids": [1]}, Words(), 100)
    assert isinstance(made, Payload)
    assert made.max_new_tokens is None


@pytest.mark.parametrize("value", [None, 3, [], {"messages": [{"role": "user", "content": "\ud800 x"}]}])
def test_anything_is_a_payload_or_a_defect(value: Any) -> None:
    assert isinstance(payload(value, 100), Payload | Defect)
