"""A text that its ids tell does not travel, and comes out as it was, to the byte; any other text travels."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from tests.unit.workers.test_lines import RECORD
from workers.chat import ChatTokenizer
from workers.contracts import Record
from workers.encodings import encode_line, pack_records, unpack_lines, unpack_records
from workers.pieces import Pieces, Telling, digest_of, found, lay_down
from workers.thinking import Thinking

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "tokenizer"
REAL = ROOT.parent / "shared" / "tokenizers"
_loaded: dict[str, tuple[Tokenizer, Pieces, st.SearchStrategy[int]]] = {}


def of(tokenizer: Tokenizer, thinking: Thinking | None = None) -> Pieces:
    packed = lay_down(tokenizer, thinking)
    assert packed is not None
    return Pieces(packed)


def load(name: str) -> tuple[Tokenizer, Pieces, st.SearchStrategy[int]]:
    """A tokenizer, its pieces, and ids of its vocabulary, the special ones among them."""
    folder = EXAMPLE if name == "example" else REAL / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    if name not in _loaded:
        backend = ChatTokenizer.load(str(folder)).backend
        assert backend is not None
        known = sorted(backend.get_vocab().values())
        _loaded[name] = backend, of(backend), st.sampled_from(known) | st.sampled_from(known[-30:])
    return _loaded[name]


def byte_level(*tokens: str, special: tuple[str, ...] = ()) -> Tokenizer:
    """A tokenizer of these tokens, with GPT-2's letters for bytes."""
    return _made(decoders.ByteLevel(), tokens, special)


def _made(decoder: Any, tokens: tuple[str, ...], special: tuple[str, ...]) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    made.decoder = decoder
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return made


def answer(text: str, ids: list[int], **changes: Any) -> Record:
    return msgspec.structs.replace(RECORD, text=text, output_ids=ids, completion_tokens=len(ids), **changes)


def travelled(records: list[Record], pieces: Pieces) -> tuple[bool, bytes]:
    """Whether the texts stayed behind, and the lines at the other end."""
    packed, told_by = pack_records(records, pieces)
    lines = unpack_records(packed, {pieces.digest: pieces}.get)
    assert lines == b"".join(map(encode_line, records))
    assert told_by == ("" if packed.startswith(zstandard.FRAME_HEADER) else pieces.digest)
    return told_by != "", lines


@pytest.mark.parametrize("name", ["example", "deepseek_v4_chat", "gpt2_chatml", "qwen_chatml"])
@given(data=st.data(), keep=st.booleans())
def test_the_pieces_say_what_the_tokenizer_says(name: str, data: st.DataObject, keep: bool) -> None:
    tokenizer, pieces, known = load(name)
    ids = data.draw(st.lists(known, max_size=30))
    sampling: dict[str, Any] = {"skip_special_tokens": False} if keep else {}
    told = pieces.texts(Telling(input_ids=[], output_ids=ids, matched="", sampling=sampling))
    assert told == (tokenizer.decode(ids, skip_special_tokens=not keep), "", "")


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_that_its_ids_tell_stays_behind(text: str) -> None:
    tokenizer, pieces, _ = load("example")
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    record = answer(tokenizer.decode(ids), [*ids, 2], matched="2", messages=[{"content": "\ud800 null"}])
    stayed, lines = travelled([record], pieces)
    assert stayed
    assert json.loads(lines)["text"] == record.text


@pytest.mark.parametrize("text", ["another", "", "a \ud800"])
def test_any_other_text_travels(text: str) -> None:
    pieces = of(byte_level("a", "Ġb"))
    told = answer("a b", [0, 1], matched="")
    assert travelled([told], pieces)[0]
    assert not travelled([msgspec.structs.replace(told, text=text)], pieces)[0]
    assert not travelled([told, msgspec.structs.replace(told, text=text)], pieces)[0]


def test_special_tokens_and_the_stop_token_are_left_out_as_the_server_does() -> None:
    pieces = of(byte_level("a", "Ġb", "stop", special=("<|end|>",)))
    assert pieces.texts(answer("", [0, 3, 1, 2], matched="2")) == ("a b", "", "")
    assert pieces.texts(answer("", [0, 3, 1, 2], matched="2", sampling={"no_stop_trim": True})) == ("a bstop", "", "")
    assert pieces.texts(answer("", [0, 3], matched="", sampling={"skip_special_tokens": False})) == (
        "a<|end|>", "", "",
    )  # fmt: skip


def test_ids_beyond_the_vocabulary_tell_nothing() -> None:
    pieces = of(byte_level("a", "Ġb"))
    assert pieces.texts(answer("", [0, 7], matched="")) is None
    assert not travelled([answer("a", [0, 7])], pieces)[0]


def test_thoughts_stay_behind_too() -> None:
    tags = Thinking(opens="<think>", closes="</think>", open_ids=[1], close_ids=[2])
    pieces = of(byte_level("a", "<think>", "</think>", "b"), tags)
    whole = answer("a</think>b", [0, 2, 3], input_ids=[9, 1], matched="", thinking="a", visible="b")
    assert travelled([whole], pieces)[0]
    assert not travelled([msgspec.structs.replace(whole, visible="c")], pieces)[0]


def test_sentencepiece_marks_and_bytes_are_known() -> None:
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = _made(decoder, ("▁Hi", "▁there", "<0xC3>", "<0xA9>", "<0xZZ>"), ("<s>",))
    pieces = of(tokenizer)
    for ids in ([0, 1], [0, 2, 3], [5, 1, 4]):
        assert pieces.texts(answer("", ids, matched="")) == (tokenizer.decode(ids), "", "")


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), None])
def test_a_tokenizer_that_decodes_by_other_rules_lays_nothing_down(decoder: Any) -> None:
    assert lay_down(_made(decoder, ("a", "##b"), ())) is None


def test_what_is_not_the_pieces_that_are_named_is_not_used() -> None:
    packed = lay_down(byte_level("a", "Ġb"))
    assert packed is not None
    damaged = [b"", b"junk", packed[:-1], zstandard.compress(b"junk"), zstandard.compress(b"0" * (100 << 20))]
    for other in damaged:
        assert found(other, digest_of(packed)) is None
        assert found(other, digest_of(other)) is None
        with pytest.raises(ValueError, match=r"."):
            Pieces(other)
    assert found(None, digest_of(packed)) is None
    right = found(packed, digest_of(packed))
    assert right is not None
    assert right.digest == digest_of(packed)


def test_an_answer_whose_pieces_are_gone_or_that_they_do_not_tell_is_said_to_be_so() -> None:
    pieces = of(byte_level("a", "Ġb"))
    packed, _ = pack_records([answer("a b", [0, 1], matched="")], pieces)
    with pytest.raises(ValueError, match="is gone from Redis and the output folder"):
        unpack_records(packed, lambda _: None)
    head, _, body = packed.partition(b"\n")
    line = unpack_lines(body)
    for wrong in (
        line.replace(b'"output_ids":[0,1]', b'"output_ids":[0,9]'),
        line.replace(b'"output_ids":[0,1]', b'"output_ids":"ab"'),
        line.replace(b"]}\n", b'],"more":1}\n'),
        line[:-1],
        b"[]\n",
        b"junk\n",
    ):
        with pytest.raises(ValueError, match=r"."):
            unpack_records(head + b"\n" + zstandard.compress(wrong), {pieces.digest: pieces}.get)


def test_texts_too_long_for_any_answer_are_not_told() -> None:
    pieces = of(byte_level("a" * 1_000_000))
    assert pieces.texts(answer("", [0] * 20, matched="")) is not None
    assert pieces.texts(answer("", [0] * 30, matched="")) is None


def test_many_lines_that_tell_more_than_any_result_holds_are_refused() -> None:
    pieces = of(byte_level("a" * 1_000_000))
    packed, _ = pack_records([answer("a" * 20_000_000, [0] * 20, matched="")], pieces)
    head, _, body = packed.partition(b"\n")
    bomb = head + b"\n" + zstandard.compress(unpack_lines(body) * 20)
    with pytest.raises(ValueError, match="larger than"):
        unpack_records(bomb, lambda _: pieces)


def test_a_vocabulary_too_large_for_any_model_is_not_laid_down() -> None:
    assert lay_down(byte_level("a" * 17_000_000)) is None


def test_pieces_nested_too_deep_to_be_read_are_none() -> None:
    deep = zstandard.compress(b"\x94\x90\x90\xc0" + b"\x91" * 100_000)
    assert found(deep, digest_of(deep)) is None
