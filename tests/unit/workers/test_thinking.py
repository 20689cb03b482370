"""A reasoning model's thoughts, apart from what it says."""

from pathlib import Path

import pytest

from workers.chat import ChatTokenizer
from workers.thinking import Thinking

TAGS = Thinking(opens="<think>", closes="</think>", open_ids=[7], close_ids=[8])
PLAIN, OPENED, CLOSED = [1, 2, 3], [1, 2, 7, 9], [1, 7, 9, 8, 9]
SHARED = Path(__file__).parents[4] / "shared" / "tokenizers"


@pytest.mark.parametrize(
    ("text", "asked", "parts"),
    [
        ("<think>\nwhy\n</think>\n\nso", PLAIN, ("\nwhy\n", "\n\nso")),
        ("\n<think>why</think>so", PLAIN, ("why", "so")),
        ("why</think>so", OPENED, ("why", "so")),
        ("<think>why</think>so", OPENED, ("why", "so")),
        # Cut within its thoughts: nothing of it is visible.
        ("<think>why", PLAIN, ("why", "")),
        ("why", OPENED, ("why", "")),
        # No thoughts: the text is what is visible.
        ("so", PLAIN, ("", "")),
        ("so", CLOSED, ("", "")),
        ("", OPENED, ("", "")),
        ("<think>\n\n</think>\n\nso", PLAIN, ("", "")),
        # About the tags, not with them.
        ("write </think> so", PLAIN, ("", "")),
        ("write <think> so", PLAIN, ("", "")),
        ("<think>a</think>b</think>c", PLAIN, ("a", "b</think>c")),
    ],
)
def test_thoughts_are_told_from_what_is_said(text: str, asked: list[int], parts: tuple[str, str]) -> None:
    assert TAGS.split(text, asked) == parts


def test_tags_of_several_tokens_are_found_in_the_prompts_end() -> None:
    tags = Thinking(opens="[THINK]", closes="[/THINK]", open_ids=[5, 6], close_ids=[5, 7, 6])
    assert (
        tags.begun([1, 5, 6, 2]) and not tags.begun([5, 6, 5, 7, 6]) and not tags.begun([6, 5]) and not tags.begun([])
    )


@pytest.mark.parametrize(
    ("name", "kwargs", "begun"), [("deepseek_v4_chat", {"thinking": True}, True), ("deepseek_v4_chat", {}, False)]
)
def test_a_template_that_opens_the_thoughts_is_known_by_its_ids(
    name: str, kwargs: dict[str, bool], begun: bool
) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")
    chat = ChatTokenizer.load(str(SHARED / name), kwargs)
    assert chat.thinking is not None
    ids = chat.render([{"role": "user", "content": "2+2?"}])
    assert chat.thinking.begun(ids) is begun
    assert chat.thinking.split("hm</think>4", ids) == (("hm", "4") if begun else ("", ""))


def test_a_model_without_such_tags_has_none() -> None:
    assert ChatTokenizer.load(str(Path(__file__).parents[3] / "examples" / "tokenizer")).thinking is None
