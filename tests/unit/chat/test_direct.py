"""The short way to texts and ids gives transformers' own, or is not taken."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.chat import ChatTokenizer
from workers.direct import Direct, for_template

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "tokenizer"
REAL = ROOT.parent / "shared" / "tokenizers"
_loaded: dict[str, ChatTokenizer] = {}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": texts, "arguments": texts | values})}), max_size=2
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts | st.none()},
    optional={"name": texts, "tool_calls": calls, "reasoning_content": texts},
)
tools = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": values}), max_size=2)


def load(name: str) -> ChatTokenizer:
    folder = EXAMPLE if name == "example" else REAL / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    if name not in _loaded:
        _loaded[name] = ChatTokenizer.load(str(folder), {"thinking": True})
    return _loaded[name]


@pytest.mark.parametrize("name", ["example", "deepseek_v4_chat", "gpt2_chatml", "qwen_chatml"])
@given(asked=st.lists(messages, min_size=1, max_size=4), offered=tools)
def test_what_it_gives_is_what_transformers_gives(name: str, asked: list[Any], offered: list[Any]) -> None:
    chat = load(name)
    direct: Direct = chat.__dict__["_direct"]
    backend: Any = chat.__dict__["_tokenizer"]
    shown = [for_template(message) for message in asked]
    text = direct.text(shown, offered)
    if text is None:
        return
    plain = json.loads(json.dumps(shown))
    assert text == backend.apply_chat_template(
        plain, tools=offered or None, tokenize=False, add_generation_prompt=True, thinking=True
    )
    ids = direct.encode(text)
    assert ids is not None
    assert ids == backend.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", ["example", "deepseek_v4_chat", "gpt2_chatml", "qwen_chatml"])
def test_it_is_taken(name: str) -> None:
    direct: Direct = load(name).__dict__["_direct"]
    assert direct.text([{"role": "user", "content": "Why?"}], [])
    assert direct.encode("Why?")
    assert direct.text([{"role": "user", "content": "Why?", "reasoning_content": "x"}], []) is None


def test_a_template_that_tells_the_two_ways_apart_goes_the_long_way(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    shutil.copytree(EXAMPLE, folder)
    (folder / "chat_template.jinja").write_text("{{ range(99999) | random }}{{ messages[0].content }}")
    chat = ChatTokenizer.load(str(folder))
    direct: Direct = chat.__dict__["_direct"]
    assert direct.text([{"role": "user", "content": "Why?"}], []) is None
    assert chat.text([{"role": "user", "content": "Why?"}]).endswith("Why?")
