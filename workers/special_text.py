"""Text that looks like a special token, in what a prompt file's users wrote, kept to be text.

A prompt is a stranger's: `<|im_end|>` in it must not end the user's turn, nor `<think>` open the model's
thoughts. The promise: a conversation without such text is encoded exactly as ever (it does not come
here); one with it differs only in that these texts are encoded as any other text is. Whether that can be
kept is tried on the tokenizer itself, once; where it cannot, `note` says so and the text stays special.

How: such text is put into the template under a stand-in, the rendered text is encoded, and the stretches
between real special tokens in which a stand-in shows are encoded again, with the text in its place, by a
copy of the tokenizer that knows no special tokens.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from workers.contracts import Message

# Whose content is a stranger's. The assistant's may hold real ones (its thoughts); the system's is the operator's.
GUARDED_ROLES = ("user", "tool")
_PROBE = "Aé 你好\n\n  12345 x=f('y')  🙂 end."


class Guarded(NamedTuple):
    """Messages with `stand_ins` (each: what it stands for) in place of texts that look special."""

    messages: list[Message]
    stand_ins: dict[str, str]


class SpecialText:
    """Finds and protects texts that a tokenizer would take for its special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        vocabulary: dict[str, int] = tokenizer.get_added_vocab()
        # Some tokenizers add runs of spaces and whole words too: those are text, and stay what they are.
        self._marks = {text: token for text, token in vocabulary.items() if _is_mark(text)}
        self._ids = frozenset(self._marks.values())
        self._pattern = re.compile(_alternatives(sorted(self._marks))) if self._marks else None
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._plain: Any = None
        self._note: str | None = None

    def found(self, messages: Sequence[Message]) -> list[str]:
        """The texts in users' messages that look like special tokens, as often as they stand there."""
        return [text for message in messages if _is_guarded(message) for text in self._in(message["content"])]

    def guard(self, messages: Sequence[Message]) -> Guarded | None:
        """The messages with stand-ins; None where nothing looks special."""
        found = self.found(messages)
        if not found or self._pattern is None:
            return None
        everything = "\n".join(str(message.get("content")) for message in messages)
        # Letters and digits: a template may trim, escape or quote what it is given.
        nonce = next(name for name in (f"zq{number}vx" for number in range(10**9)) if name not in everything)
        names = {text: f"{nonce}{number:x}k" for number, text in enumerate(dict.fromkeys(found))}
        pattern = self._pattern
        shown = [
            {**message, "content": pattern.sub(lambda match: names[match.group()], message["content"])}
            if _is_guarded(message)
            else message
            for message in messages
        ]
        return Guarded(shown, {name: text for text, name in names.items()})

    @property
    def note(self) -> str:
        """Why such text cannot be kept apart with this tokenizer; nothing if it can."""
        if self._note is None:
            self._note = self._try()
        return self._note

    def encode(self, text: str, stand_ins: dict[str, str]) -> list[int] | None:
        """The ids of a text rendered with stand-ins; None where they cannot be told exactly."""
        if self.note or not self._all_whole(text, stand_ins):
            return None
        ids: list[int] = []
        for token, start, end, held in self._stretches(text):
            if token is not None:
                ids.append(token)
                continue
            stretch = text[start:end]
            restored = _restored(stretch, stand_ins)
            if restored != stretch:
                held = self._plain_ids(restored)
                if not self._ids.isdisjoint(held):
                    return None
            ids += held
        return ids

    def _try(self) -> str:
        if self._backend is None:
            return "it is written in Python, which cannot encode special tokens as text"
        try:
            held: dict[str, Any] = json.loads(self._backend.to_str())
            held["added_tokens"] = [token for token in held["added_tokens"] if token["content"] not in self._marks]
            held["post_processor"] = None
            self._plain = type(self._backend).from_str(json.dumps(held))
        except Exception as error:
            # The library raises plain Exception; whatever it is, there is no such copy.
            return f"no copy of it without special tokens can be made ({error})"
        for mark in list(self._marks)[:4]:
            for probe in (f"{mark}user\n{_PROBE}{mark}\n{mark}assistant\n", f" a{mark} b{mark}{mark}c ", _PROBE):
                for token, start, end, held_ids in self._stretches(probe):
                    if token is None and self._plain_ids(probe[start:end]) != held_ids:
                        return "it encodes a part of a text otherwise than the whole"
            if not self._ids.isdisjoint(self._plain_ids(f"a {mark} b")):
                return f"its model itself knows {mark} as one token"
        return ""

    def _plain_ids(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _stretches(self, text: str) -> Iterator[tuple[int | None, int, int, list[int]]]:
        """Special tokens and, between them, stretches of the text with their ids."""
        encoding: Any = self._backend.encode(text, add_special_tokens=False)
        begun, held = 0, list[int]()
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._ids:
                held.append(token)
                continue
            if begun < start or held:
                yield None, begun, start, held
            yield token, start, end, []
            begun, held = end, []
        if begun < len(text) or held:
            yield None, begun, len(text), held

    @staticmethod
    def _all_whole(text: str, stand_ins: dict[str, str]) -> bool:
        """Whether the template left the stand-ins as they were; one that cut or recased them left junk."""
        nonce = re.match(r"zq\d+vx", next(iter(stand_ins)))
        for name in stand_ins:
            text = text.replace(name, "")
        return nonce is not None and nonce.group() not in text.lower()

    def _in(self, content: str) -> list[str]:
        return [] if self._pattern is None else self._pattern.findall(content)


def _is_guarded(message: Message) -> bool:
    return message.get("role") in GUARDED_ROLES and isinstance(message.get("content"), str)


def _is_mark(text: str) -> bool:
    edges = (text[:1], text[-1:])
    return len(text) > 2 and not any(edge.isalnum() or edge.isspace() for edge in edges)


def _restored(text: str, stand_ins: dict[str, str]) -> str:
    for name, held in stand_ins.items():
        text = text.replace(name, held)
    return text


def _alternatives(texts: list[str]) -> str:
    """A pattern of the texts, the longest first, as a tree: a thousand of them in a row would be tried one by one."""
    if len(texts) == 1:
        return re.escape(texts[0])
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[:1], []).append(text[1:])
    ends = groups.pop("", None) is not None
    branches = "|".join(re.escape(first) + _alternatives(rest) for first, rest in groups.items())
    return f"(?:{branches}){'?' if ends else ''}" if branches else ""
