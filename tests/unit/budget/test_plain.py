"""Foreign text is shown, not obeyed."""

import pytest

from budget.plain import LONGEST, one_line, shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Grüße, 世界 🙂", "Grüße, 世界 🙂"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2Jgone", "\ufffd[2Jgone"),
        ("\x9b2J\x07\r", "\ufffd2J\ufffd\ufffd"),
        ("exe.\u202egnp", "exe.\ufffdgnp"),
        ("half \ud83d", "half \ufffd"),
    ],
)
def test_what_acts_is_replaced(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_a_line_is_one_line_of_bounded_length() -> None:
    assert one_line("fault\r\n00:00:00 collector: all is well\u2028x") == "fault 00:00:00 collector: all is well x"
    shortened = one_line("x" * 10_000 + ": mend it")
    assert len(shortened) == LONGEST + len(" … ") and shortened.endswith("x: mend it")
