"""The one list of rights against the scripts that need them, and against the line that the documentation gives."""

import re
from importlib import resources
from pathlib import Path

from budget import redis_rights

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


def documented() -> list[str]:
    (line,) = re.findall(r"^user tokenmill on >PASSWORD (.*)$", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    return line.split()


def test_the_documented_line_is_the_list() -> None:
    line = documented()
    allowed = {word[1:] for word in line if word.startswith("+") and word != "+@connection"}
    assert allowed == redis_rights.commands() and len([word for word in line if word.startswith("+")]) == 1 + len(
        allowed
    )
    assert {word[1:] for word in line if word.startswith("~")} == set(redis_rights.NEEDED)
    assert {word[1:] for word in line if word.startswith("&")} == set(redis_rights.CHANNELS)


def test_every_command_of_the_scripts_is_in_it() -> None:
    sent: set[str] = set()
    for file in (resources.files("budget") / "lua").iterdir():
        text = re.sub(r"--.*", "", file.read_text())
        for call in re.findall(r"redis\.call\(([^,]+),", text):
            sent |= {name.lower() for name in re.findall(r"'(\w+)'", call)}
    needed = {name for names in redis_rights.NEEDED.values() for name in names} | set(redis_rights.KEYLESS)
    assert len(sent) > 30 and sent <= needed, sent - needed
