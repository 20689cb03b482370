"""Chat templates and ids: what a model is asked, token for token, and what cannot be asked."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.chat import ChatProblem, ChatTokenizer, Unrenderable, history

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "tokenizer"
REAL = ROOT.parent / "shared" / "tokenizers"
U = {"role": "user", "content": "Why is the sky blue?"}


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer.load(str(EXAMPLE))


def changed(tmp_path: Path, **settings_: Any) -> Path:
    folder = tmp_path / "tokenizer"
    shutil.copytree(EXAMPLE, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | settings_))
    return folder


def test_it_renders_up_to_the_answer(chat: ChatTokenizer) -> None:
    ids = chat.render([U])
    assert chat.decode(ids) == "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    assert all(0 <= token < chat.vocab_size for token in ids)
    assert (chat.vocab_size, chat.eos_ids, chat.generation_config, chat.context_length) == (2000, [2], {}, None)
    assert chat.model_max_length == 32768
    assert chat.decode(ids[:1], skip_special_tokens=True) == ""


def test_tools_calls_and_missing_content(chat: ChatTokenizer) -> None:
    call = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [U, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "t"}]
    text = chat.decode(chat.render(messages, [{"type": "function", "function": {"name": "f"}}]))
    assert '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>' in text
    assert '{"type": "function", "function": {"name": "f"}}' in text
    assert messages[1]["content"] is None, "what was asked must stay as it was asked"


def test_a_later_turn_goes_on_from_the_models_own_answers(chat: ChatTokenizer) -> None:
    more: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "And red?"}],
        [{"role": "user", "content": "Why?"}],
    ]
    asked = history([U], ["Scattering."], more)
    assert asked == [U, {"role": "assistant", "content": "Scattering."}, *more[0]]
    assert chat.render_next([U], ["Scattering."], more) == chat.render(asked)
    assert len(history([U], ["a", "b"], more)) == 5


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_comes_back_whole(chat: ChatTokenizer, text: str) -> None:
    try:
        ids = chat.render([{"role": "user", "content": text}])
    except Unrenderable as error:
        assert error.reason == "surrogate"
        return
    assert chat.decode(ids) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_half_a_surrogate_pair_is_the_rows_fault(chat: ChatTokenizer) -> None:
    with pytest.raises(Unrenderable) as caught:
        chat.render([{"role": "user", "content": "a\ud800"}])
    assert (caught.value.reason, "\\ud800" in caught.value.detail) == ("surrogate", True)


def test_a_begin_token_is_never_doubled(tmp_path: Path) -> None:
    folder = changed(tmp_path, bos_token="<|endoftext|>")
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    chat = ChatTokenizer.load(str(folder))
    assert chat.render([U]).count(0) == 1
    backend: Any = chat.__dict__["_tokenizer"]
    encode = backend.encode
    # A tokenizer that adds its begin token whatever it is told, as some converted ones do.
    backend.encode = lambda text, **named: [0, *encode(text, **named)]  # pyright: ignore
    stubborn = ChatTokenizer(str(folder), backend, {}, folder)
    assert stubborn.render([U]).count(0) == 1
    assert stubborn.render([U])[0] == 0


def test_model_settings_beside_the_tokenizer(tmp_path: Path) -> None:
    folder = changed(tmp_path, model_max_length=10**30)
    (folder / "config.json").write_text(
        json.dumps({"text_config": {"max_position_embeddings": 4096}, "vocab_size": 1500})
    )
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": [2, 7], "max_length": 20})
    )
    chat = ChatTokenizer.load(str(folder))
    assert (chat.context_length, chat.vocab_size, chat.model_max_length) == (4096, 1500, None)
    assert chat.generation_config == {"temperature": 0.6, "top_k": 20}
    assert chat.eos_ids == [2, 7]


def test_the_probe_holds_the_templates_own_tokens(tmp_path: Path, chat: ChatTokenizer) -> None:
    assert chat.probe_text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert chat.decode(chat.probe_ids) == chat.probe_text
    folder = changed(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].no_such.thing }}")
    broken = ChatTokenizer.load(str(folder))
    assert broken.decode(broken.probe_ids) == broken.probe_text != ""


def test_fingerprints_tell_what_matters(tmp_path: Path, chat: ChatTokenizer) -> None:
    copy = changed(tmp_path, model_max_length=77)
    same = ChatTokenizer.load(str(copy))
    assert (same.template_hash, same.tokenizer_hash) == (chat.template_hash, chat.tokenizer_hash)
    thinking = ChatTokenizer.load(str(copy), {"enable_thinking": True})
    assert thinking.template_hash != chat.template_hash
    assert thinking.tokenizer_hash == chat.tokenizer_hash
    (copy / "chat_template.jinja").write_text("{{ messages[0].content }}")
    other = ChatTokenizer.load(str(copy))
    assert other.template_hash != chat.template_hash


def test_template_arguments_reach_the_template(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    (folder / "chat_template.jinja").write_text("{% if enable_thinking %}think{% endif %}{{ messages[0].content }}")
    thinking = ChatTokenizer.load(str(folder), {"enable_thinking": True})
    assert thinking.decode(thinking.render([U])).startswith("think")


def test_without_a_template_only_rendering_fails(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    (folder / "chat_template.jinja").unlink()
    chat = ChatTokenizer.load(str(folder))
    assert chat.decode([5, 6])
    assert not chat.has_template
    with pytest.raises(ChatProblem, match=r"has no chat template; add its chat_template\.jinja"):
        chat.check()


def test_a_broken_template_is_told_once_and_a_refused_row_is_the_rows(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }")
    with pytest.raises(ChatProblem, match="is broken at line 1"):
        ChatTokenizer.load(str(folder)).render([U])
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    chat = ChatTokenizer.load(str(folder))
    with pytest.raises(Unrenderable, match="roles must alternate"):
        chat.render([U])
    with pytest.raises(ChatProblem, match=r"fails on a plain question: .*roles must alternate"):
        chat.check()
    (folder / "chat_template.jinja").write_text("{{ '' }}")
    with pytest.raises(Unrenderable, match="makes nothing"):
        ChatTokenizer.load(str(folder)).render([U])


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./missing", "a/b/c"])
def test_a_missing_folder_is_named(name: str) -> None:
    with pytest.raises(ChatProblem, match="there is no tokenizer folder") as caught:
        ChatTokenizer.load(name)
    assert name in str(caught.value)


def test_a_folder_or_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    for content in (None, "{", "{}"):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ChatProblem, match="is no tokenizer") as caught:
            ChatTokenizer.load(str(tmp_path))
        assert "\n" not in str(caught.value)
    with pytest.raises(ChatProblem, match="is a file"):
        ChatTokenizer.load(str(tmp_path / "tokenizer.json"))


def test_nothing_is_printed_and_nothing_is_imported_early() -> None:
    code = (
        "import sys, workers.chat as c; assert 'transformers' not in sys.modules; "
        f"t = c.ChatTokenizer.load({str(EXAMPLE)!r}); t.render([{{'role': 'user', 'content': 'word ' * 40000}}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("name", ["deepseek_v4_chat", "gpt2_chatml", "qwen_chatml"])
def test_real_tokenizers(name: str) -> None:
    if not (REAL / name).is_dir():
        pytest.skip(f"{REAL / name} is not there")
    chat = ChatTokenizer.load(str(REAL / name))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wie heißt 你好 🙂?\r\n"}]
    ids = chat.render(messages)
    backend: Any = chat.__dict__["_tokenizer"]
    assert ids == backend.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert all(0 <= token < chat.vocab_size for token in ids)
    if chat.bos_id is not None and name != "gpt2_chatml":
        assert ids.count(chat.bos_id) == 1
    assert messages[1]["content"] in chat.decode(ids)
    longer = chat.render_next(messages, ["Ni hao."], [[{"role": "user", "content": "Und?"}]])
    assert len(longer) > len(ids)


def test_the_short_way_to_a_plain_tokenizer_gives_the_same_as_the_long_one(tmp_path: Path) -> None:
    """With a config.json, transformers chooses the class."""
    shutil.copytree(EXAMPLE, tmp_path / "long")
    (tmp_path / "long" / "config.json").write_text('{"model_type": "unheard of"}')
    short, long = ChatTokenizer.load(str(EXAMPLE)), ChatTokenizer.load(str(tmp_path / "long"))
    assert (short.tokenizer_hash, short.template_hash) == (long.tokenizer_hash, long.template_hash)
    assert (short.vocab_size, short.eos_ids, short.bos_id) == (long.vocab_size, long.eos_ids, long.bos_id)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hello <|im_end|>\n"}]
    assert short.render(messages) == long.render(messages)
    assert short.model_max_length == long.model_max_length
