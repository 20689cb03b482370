"""Ids: from the row alone, each its own."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.ids import Ordinals, canonical, damaged_id, prompt_id, with_ordinal


@pytest.mark.parametrize(
    ("row", "own"),
    [
        ({"id": "a", "uuid": "b"}, "a"),
        ({"id": 0}, "0"),
        ({"id": None, "uuid": "b"}, "b"),
        ({"id": "", "task_id": 7}, "7"),
        ({"id": True, "question_id": 81}, "81"),
        ({"id": 1.5, "uid": "u"}, "u"),
        ({"key": 1000}, "1000"),
        ({"instance_id": "p__q-1"}, "p__q-1"),
        ({"task_id": "HumanEval/0"}, "HumanEval/0"),
    ],
)
def test_own_ids(row: dict[str, Any], own: str) -> None:
    assert prompt_id(row) == own


@pytest.mark.parametrize("value", [{"id": "x" * 513}, {"prompt": "p"}, [1], "text", 3, None, {"id": []}])
def test_content_ids(value: Any) -> None:
    assert prompt_id(value).startswith("h-")
    assert len(prompt_id(value)) == 26


def test_content_ids_stay_as_they_are() -> None:
    # An id is what a completion is found by: these are fixed for ever.
    assert prompt_id({"prompt": "Why?", "n": 1}) == prompt_id({"n": 1, "x": None, "prompt": "Why?"})
    assert prompt_id({"prompt": "Why?"}) == "h-b2ef86b9a58794c36374b2b7"
    assert damaged_id(b"{") == "bad-7af8e6eba62a3839cc1bb371"


@given(
    st.dictionaries(
        st.text(), st.none() | st.text() | st.lists(st.none() | st.integers()) | st.dictionaries(st.text(), st.none())
    )
)
def test_canonical_form_is_json_and_stable(row: dict[str, Any]) -> None:
    text = canonical(row)
    again = json.loads(text)
    assert canonical(again) == text
    assert all(value is not None for value in again.values())
    items = list(row.items())
    random.Random(0).shuffle(items)
    assert canonical(dict(items)) == text


def test_surrogates_have_ids() -> None:
    assert prompt_id({"prompt": "\ud800"}).startswith("h-")
    assert Ordinals().next("\ud800") == 1


@given(st.lists(st.sampled_from(["a", "a~2", "a~3", "a~2~2", "b", ""]), max_size=30))
def test_numbered_ids_are_unique(owns: list[str]) -> None:
    numbers = Ordinals()
    given_ids = [with_ordinal(own, numbers.next(own)) for own in owns]
    assert len(set(given_ids)) == len(owns)
    for own in set(owns):
        assert own in given_ids


def test_many_ids_and_many_of_one() -> None:
    numbers = Ordinals()
    assert all(numbers.next(str(n)) == 1 for n in range(5000))
    assert [numbers.next("0") for _ in range(2000)] == list(range(2, 2002))
    assert numbers.next("4999") == 2
