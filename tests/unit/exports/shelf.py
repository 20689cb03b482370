"""A run's output folder with answers in it, and readers that follow each trainer's own rules."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from results.exports import Options, Outcome, export
from workers.contracts import DatasetConfig, Record, RunConfig
from workers.encodings import encode_line

ROOT = Path(__file__).resolve().parents[3]
TOKENIZER = str(ROOT / "examples" / "tokenizer")


def record(own: str = "p", **changes: Any) -> Record:
    """One answer; `output_ids` decides how many tokens it has."""
    plain: dict[str, Any] = {
        "id": own, "dataset": "A1", "turn": 1, "turns": 1, "prompt_tokens": 0, "finish_reason": "stop",
        "matched": "2", "input_ids": [11, 12, 13, 14], "output_ids": [900, 901, 2], "text": "hi",
        "messages": [{"role": "user", "content": "2+2?"}], "sampling": {"temperature": 1.0}, "model": "m",
        "weight_version": "default", "server": "http://s:1", "worker": "w", "attempt": 1, "rid": "r",
        "latency_s": 0.5, "created_at": 1_796_000_000.5,
    }  # fmt: skip
    plain.update(changes)
    plain.setdefault("completion_tokens", len(plain["output_ids"]))
    plain["prompt_tokens"] = plain["prompt_tokens"] or len(plain["input_ids"])
    return Record(**plain)


def conversation(own: str, said: Sequence[str], **changes: Any) -> list[Record]:
    """A prompt with several turns, each asked with the answers before it."""
    messages: list[dict[str, Any]] = []
    found: list[Record] = []
    for turn, text in enumerate(said, start=1):
        messages = [*messages, {"role": "user", "content": f"question {turn}"}]
        ids = list(range(10 * turn))
        found.append(record(own, turn=turn, turns=len(said), messages=messages, text=text, input_ids=ids, **changes))
        messages = [*messages, {"role": "assistant", "content": text}]
    return found


class Shelf:
    """A run named r with the datasets A1 and B2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("A1", "B2")
        self.config = RunConfig(
            name="r",
            output=str(folder / "out"),
            tokenizer=TOKENIZER,
            datasets=[DatasetConfig(name=name, prompts="p", max_tokens=1000) for name in names],
        )
        for name in names:
            (folder / "out" / name).mkdir(parents=True, exist_ok=True)

    def put(self, dataset: str, *lines: Record | bytes) -> None:
        """Put lines at the end of a dataset's answers."""
        with self.answers(dataset).open("ab") as file:
            for line in lines:
                file.write(line if isinstance(line, bytes) else encode_line(line))

    def answers(self, dataset: str) -> Path:
        return self.folder / "out" / dataset / "raw_responses.jsonl"

    def rejected(self, dataset: str) -> Path:
        return self.folder / "out" / dataset / "rejected.jsonl"

    def export(self, kind: Any = "specforge", **options: Any) -> Outcome:
        return export(self.config, Options(format=kind, **options))

    def rows(self, kind: Any = "specforge", **options: Any) -> list[dict[str, Any]]:
        """What an export wrote, as plain JSON."""
        outcome = self.export(kind, **options)
        return [row for file in outcome.files for row in plain_rows(outcome.folder / file.file)]


def plain_rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def specforge_tasks(path: Path, *, max_length: int = 2048, minimum: int = 1) -> list[tuple[list[int], list[int]]]:
    """Rows as SpecForge's pre-tokenized path takes them: its rules, its refusals, its silent drops."""
    assert path.is_file(), "it opens one file, not a folder"
    tasks: list[tuple[list[int], list[int]]] = []
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} must be an object")
            if not {"input_ids", "loss_mask"} <= row.keys():
                raise ValueError(f"line {number} must contain both input_ids and loss_mask")
            ids, mask = _integers(row["input_ids"]), _integers(row["loss_mask"])
            if any(bit not in (0, 1) for bit in mask):
                raise ValueError(f"line {number}: a mask is of 0 and 1")
            if len(ids) != len(mask):
                raise ValueError(f"line {number}: lengths differ")
            if not ids:
                raise ValueError(f"line {number} contains an empty token sequence")
            ids, mask = ids[:max_length], mask[:max_length]
            if sum(mask) >= minimum:
                tasks.append((ids, mask))
    return tasks


def _integers(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    held = cast("list[Any]", value)
    if any(isinstance(item, bool) or not isinstance(item, int) for item in held):
        raise ValueError("not integers")
    return held


def speculators_files(folder: Path) -> list[Path]:
    """What `--data DIR` reads: every JSON file below it, whatever it is."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".jsonl"))


def one_schema(rows: Sequence[dict[str, Any]]) -> dict[str, type[Any]]:
    """The one type of every column; fails where a row has others, which makes a file unloadable."""
    schemas: list[dict[str, type[Any]]] = [{name: type(value) for name, value in row.items()} for row in rows]
    assert all(schema == schemas[0] for schema in schemas)
    assert type(None) not in schemas[0].values()
    return schemas[0]
