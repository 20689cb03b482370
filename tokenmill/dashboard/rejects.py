"""The last rejected prompts with their rows, from the ends of the files where these are on this machine."""

from pathlib import Path

import msgspec

from results import jsonl
from results.folder import OutputFolder
from results.reporting.gather import shown

EACH = 3
# The end of a file in which its last lines are looked for; a row may be megabytes long, and is then left out.
TAIL_BYTES = 256 * 1024


class Rejected(msgspec.Struct, frozen=True):
    """One rejected prompt; all of it text for people, shortened."""

    dataset: str
    id: str
    reason: str
    detail: str
    row: str


class Rejects:
    """Reads a dataset's file again only when it has changed."""

    def __init__(self, output: Path, datasets: list[str]) -> None:
        folder = OutputFolder(output)
        self._paths = {name: folder.rejected(name) for name in datasets}
        self._seen: dict[str, tuple[int, int]] = {}
        self._found: dict[str, list[Rejected]] = {}

    def read(self) -> list[Rejected]:
        """The last of each dataset, newest first; the dataset whose file changed last comes first."""
        changed: dict[str, int] = {}
        for name, path in self._paths.items():
            try:
                stat = path.stat()
            except OSError:
                self._found.pop(name, None)
                continue
            changed[name] = stat.st_mtime_ns
            if self._seen.get(name) != (stat.st_size, stat.st_mtime_ns):
                self._seen[name] = (stat.st_size, stat.st_mtime_ns)
                self._found[name] = _last(name, path)
        order = sorted(changed, key=lambda name: -changed[name])
        return [line for name in order for line in self._found.get(name, [])]


def _last(dataset: str, path: Path) -> list[Rejected]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return []
    lines = data.split(b"\n")[: -1 if data.endswith(b"\n") else None]
    if size > TAIL_BYTES:
        del lines[0]  # its beginning is missing
    found: dict[str, Rejected | None] = {}
    for raw in reversed(lines):
        line = jsonl.parse_rejected(raw)
        if isinstance(line, str) or line.id in found:
            continue
        plain = jsonl.loads(raw)
        assert not isinstance(plain, str)
        found[line.id] = None if line.retried else Rejected(
            dataset, shown(line.id), shown(line.reason), shown(plain.get("detail", "")),
            shown(plain.get("row"), as_json=True),
        )  # fmt: skip
        if sum(entry is not None for entry in found.values()) == EACH:
            break
    return [entry for entry in found.values() if entry is not None]
