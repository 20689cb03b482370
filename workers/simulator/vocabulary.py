"""Tokens and text of the simulated model: a real tokenizer's, or numbers where none is given.

The ids that answers are drawn from never hold a special token: an end-of-turn id in the middle of an
answer would be data that no real server produces.
"""

import json
import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Ids are drawn by 16 random bits each, through a table: the cheapest way that Python has to make many.
_TABLE = 1 << 16


class Vocabulary:
    """What the server needs to know of its model's tokens."""

    def __init__(
        self, size: int, eos_id: int, *, ordinary: list[int] | None = None, tokenizer: "Tokenizer | None" = None
    ) -> None:
        self.size = size
        self.eos_id = eos_id
        self._tokenizer = tokenizer
        ids = ordinary if ordinary is not None else [i for i in range(size) if i != eos_id]
        if not ids:
            raise ValueError("the vocabulary has no token besides the special ones")
        if len(ids) > _TABLE:
            ids = random.Random(0).sample(ids, _TABLE)
        self._table = [ids[i % len(ids)] for i in range(_TABLE)]

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def draw(self, key: int, count: int) -> list[int]:
        """`count` ids that belong to `key`; fewer of them are a prefix of more."""
        if count <= 0:
            return []
        # Whole 32-bit words, or the last word of a shorter draw would differ from the same one of a longer.
        noise = random.Random(key).randbytes((count * 2 + 3) // 4 * 4)
        return list(map(self._table.__getitem__, memoryview(noise).cast("H")[:count]))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a prompt given as text: the tokenizer's, else one per word, a checksum of the word."""
        if self._tokenizer is not None:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return [self._table[zlib.crc32(word.encode("utf-8", "surrogatepass")) % _TABLE] for word in text.split()]

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        """The text of these ids."""
        if self._tokenizer is not None:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special)
        shown = [i for i in ids if i != self.eos_id] if skip_special else ids
        return " ".join(map(str, shown))


def _read_json(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(path.read_bytes())) if path.exists() else {}


def load_vocabulary(name: str | None, *, vocab_size: int, eos_id: int) -> Vocabulary:
    """The vocabulary of the tokenizer in the folder, or of that name on the hub; without one, of plain numbers.

    Raises:
        ValueError: there is no usable tokenizer.
    """
    if name is None:
        return Vocabulary(vocab_size, eos_id)
    path = Path(name) / "tokenizer.json"
    if not path.is_file():
        return _by_transformers(name)
    from tokenizers import Tokenizer  # lazy: a server without a tokenizer starts in a third of the time

    tokenizer = Tokenizer.from_file(str(path))
    settings = _read_json(Path(name) / "tokenizer_config.json")
    eos: Any = settings.get("eos_token")
    if isinstance(eos, dict):
        eos = cast(dict[str, Any], eos).get("content")
    found = tokenizer.token_to_id(eos) if isinstance(eos, str) else None
    # The embedding may be padded beyond the tokenizer; the server's limit is the model's.
    return _of(tokenizer, _model_vocab_size(_read_json(Path(name) / "config.json")), eos_id if found is None else found)


def _by_transformers(name: str) -> Vocabulary:
    """From files of other names, or from the hub, as the run itself loads it: that takes seconds."""
    from workers.chat import ChatProblem, ChatTokenizer

    try:
        chat = ChatTokenizer.load(name)
    except ChatProblem as problem:
        raise ValueError(str(problem)) from problem
    eos_id = chat.eos_ids[0] if chat.eos_ids else chat.vocab_size - 1
    backend = chat.backend
    return Vocabulary(chat.vocab_size, eos_id) if backend is None else _of(backend, chat.vocab_size, eos_id)


def _of(tokenizer: "Tokenizer", model_size: int, eos_id: int) -> Vocabulary:
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ordinary = sorted(set(tokenizer.get_vocab(with_added_tokens=True).values()) - special - {eos_id})
    size = max(tokenizer.get_vocab_size(with_added_tokens=True), model_size)
    return Vocabulary(size, eos_id, ordinary=ordinary, tokenizer=tokenizer)


def _model_vocab_size(settings: dict[str, Any]) -> int:
    size: Any = settings.get("vocab_size")
    return size if isinstance(size, int) else 0
