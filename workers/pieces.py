"""The text of token ids, told without their tokenizer.

An answer's text is as large as its ids, and most often nothing but what they stand for. So the producer, which has
the tokenizer, lays down in Redis what each id stands for; a worker leaves out of a result what that tells to the
letter, and the collector puts it back. What it does not tell (a stop string that was cut off, a tokenizer that
decodes by other rules) travels as it is.
"""

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard

from budget.runbook import MOST_PIECES
from workers.contracts import Record
from workers.thinking import Thinking

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# No answer is as long, with each byte escaped in JSON, and all of it told twice, as text and as its two parts.
_LONGEST_TEXT = 256 * 1024 * 1024 // 12

Texts = tuple[str, str, str]


class Telling(msgspec.Struct):
    """What of a record tells its texts."""

    input_ids: list[int]
    output_ids: list[int]
    matched: str
    sampling: dict[str, Any]


class _Laid(msgspec.Struct, frozen=True, array_like=True):
    """As it lies in Redis, in msgpack and zstd: each id's bytes, the special ids, a reasoning model's tags."""

    pieces: list[bytes]
    special: list[int]
    thinking: Thinking | None


class Pieces:
    """What each id of a vocabulary stands for; `packed` as it was laid down, and `digest` names it.

    Raises (making one):
        ValueError: the bytes are not what `lay_down` made.
    """

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self.digest = digest_of(packed)
        try:
            if zstandard.frame_content_size(packed) > MOST_PIECES:
                raise ValueError(f"it is larger than {MOST_PIECES:,} bytes")
            plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MOST_PIECES)
            laid = msgspec.msgpack.decode(plain, type=_Laid)
        except (zstandard.ZstdError, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        special = set(laid.special)
        self._thinking = laid.thinking
        self._all = laid.pieces
        self._plain = [b"" if number in special else piece for number, piece in enumerate(laid.pieces)]
        self._longest = max(map(len, laid.pieces), default=0)

    def texts(self, of: Telling | Record) -> Texts | None:
        """(text, thinking, visible) of an answer, as far as its ids tell them; None where they tell nothing.

        SGLang leaves out the stop token, and special ones unless it is told to keep them.
        """
        ids = of.output_ids
        if ids and of.matched == str(ids[-1]) and not of.sampling.get("no_stop_trim"):
            ids = ids[:-1]
        if len(ids) * self._longest > _LONGEST_TEXT:
            return None
        pieces = self._plain if of.sampling.get("skip_special_tokens", True) else self._all
        try:
            text = b"".join(map(pieces.__getitem__, ids)).decode("utf-8", "replace")
        except IndexError:  # ids that pad the model's vocabulary stand for nothing
            return None
        return (text, *(self._thinking.split(text, of.input_ids) if self._thinking else ("", "")))

    def tells(self, record: Record) -> bool:
        """Whether the record's texts need not travel."""
        return self.texts(record) == (record.text, record.thinking, record.visible)


def found(packed: bytes | None, digest: str) -> Pieces | None:
    """The pieces of that digest, if that is what was found."""
    if packed is None or digest_of(packed) != digest:
        return None
    try:
        return Pieces(packed)
    except ValueError:
        return None


def digest_of(packed: bytes) -> str:
    return hashlib.blake2b(packed, digest_size=16).hexdigest()


def lay_down(tokenizer: "Tokenizer", thinking: Thinking | None = None) -> bytes | None:
    """A tokenizer's pieces, packed; None where it decodes by rules that are not known here."""
    of_token = _rule(tokenizer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if of_token is None or not vocabulary:
        return None
    pieces = [b""] * (max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        pieces[number] = of_token(token)
    special = sorted(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    laid = _Laid(pieces=pieces, special=special, thinking=thinking)
    plain = msgspec.msgpack.encode(laid)
    return zstandard.ZstdCompressor(level=3).compress(plain) if len(plain) <= MOST_PIECES else None


def _rule(tokenizer: "Tokenizer") -> "Callable[[str], bytes] | None":
    """How a token as the vocabulary has it becomes bytes: GPT-2's letters for bytes, or SentencePiece's marks."""
    decoder: Any = tokenizer.decoder
    if decoder is None:
        return None
    # Its parts are shown only here.
    described: dict[str, Any] = json.loads(decoder.__getstate__())
    kinds = [part["type"] for part in described.get("decoders", [described])]
    if kinds == ["ByteLevel"]:
        return _of_letters
    return _of_marks if "ByteFallback" in kinds or "Metaspace" in kinds else None


class _Letters(dict[int, int]):
    """GPT-2's letters: the printable ones of Latin-1 stand for themselves, the other bytes for what follows U+0100."""

    def __init__(self) -> None:
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        super().__init__({letter: letter for letter in printable})
        self.update({256 + at: byte for at, byte in enumerate(others)})

    def __missing__(self, letter: int) -> int:
        return 256  # which Latin-1 has not


_LETTERS = _Letters()


def _of_letters(token: str) -> bytes:
    """A token that holds other letters, such as an added one, is plain text."""
    try:
        return token.translate(_LETTERS).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "replace")


def _of_marks(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("▁", " ").encode("utf-8", "replace")
