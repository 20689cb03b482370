"""What a reasoning model thought, apart from what it says; the ids and the whole text keep both.

Models write their thoughts between two tags, of which the first may stand in the prompt already. Where the
answer was cut within its thoughts, it has no visible text.
"""

from collections.abc import Sequence

import msgspec

TAGS = (("<think>", "</think>"), ("◁think▷", "◁/think▷"), ("[THINK]", "[/THINK]"))
# A template may put white space after the tag that it opens.
_NEAR = 4


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """A model's tags, as text and as token ids."""

    opens: str
    closes: str
    open_ids: list[int]
    close_ids: list[int]

    def begun(self, ids: Sequence[int]) -> bool:
        """Whether a prompt ends within thoughts: its end opens them and does not close them."""
        tail = list(ids[-(len(self.open_ids) + len(self.close_ids) + _NEAR) :])
        opened = _last(tail, self.open_ids)
        return opened >= 0 and _last(tail[opened:], self.close_ids) < 0

    def split(self, text: str, asked: Sequence[int]) -> tuple[str, str]:
        """(thoughts, visible text) of an answer to the prompt `asked`; ("", "") where it has no thoughts."""
        head = len(text) - len(text.lstrip())
        if text.startswith(self.opens, head):
            rest = text[head + len(self.opens) :]
        elif self.begun(asked):
            rest = text
        else:
            return "", ""
        thoughts, _, visible = rest.partition(self.closes)
        return (thoughts, visible) if thoughts.strip() else ("", "")


def _last(ids: list[int], wanted: list[int]) -> int:
    """Where `wanted` stands last in `ids`; -1 where it does not."""
    starts = range(len(ids) - len(wanted), -1, -1)
    return next((at for at in starts if wanted and ids[at : at + len(wanted)] == wanted), -1)
