"""Foreign text, made fit to be shown: prompts, reasons of servers and names of workers can hold anything."""

import unicodedata

# They make what follows read backwards, also outside of the text that holds them.
_TURNS_AROUND = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_HIDDEN = "\ufffd"
LONGEST = 4000


def shown(text: str) -> str:
    """Characters that cannot be seen, and act (on a terminal, on a page), become U+FFFD; lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(character if _is_harmless(character) else _HIDDEN for character in text)


def one_line(text: str) -> str:
    """The same, in one line of a length that people read: nobody can make a line of a log up, or bury one.

    The middle is what is left out, since our own sentences end in what to do.
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
    return shown(" ".join(text.splitlines()))


def _is_harmless(character: str) -> bool:
    if character in _TURNS_AROUND:
        return False
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
