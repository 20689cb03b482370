"""An export from beginning to end: each dataset's answers through the shapes into files, then published."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from results import disk, jsonl
from results.exports import parquet
from results.exports.files import JsonLines, OutFile, Shards, Writer
from results.exports.manifest import Part, Tally, manifest, part
from results.exports.options import ExportProblem, Options, Side, place
from results.exports.rows import ChatRow, Row, TokenRow, chat_row, continues, no_date, primary_id, token_row
from results.exports.staging import Staging
from results.folder import OutputFolder
from results.turns import Answer, TurnFile
from workers.contracts import RunConfig

Decode = Callable[[Sequence[int]], str]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What an export has written, and the account of every line."""

    folder: Path
    manifest: Path
    files: list[OutFile]
    datasets: list[Part]


def export(config: RunConfig, options: Options) -> Outcome:
    """Write one export of the run's answers; what was there before stays as it was where this fails.

    Raises:
        ExportProblem: the options do not go together, a name is taken by something else, or there is no row.
        ExportTaken: another export writes the same files.
        NotWritable, DiskFault: the files cannot be read or written.
    """
    options.check()
    where = place(options, Path(config.output))
    folder = OutputFolder(config.output)
    names = list(dict.fromkeys(options.datasets)) or [dataset.name for dataset in config.datasets]
    if options.format == "parquet":
        parquet.require()
    shapes = _Shapes(options, _decoder(config, folder) if options.text else None)
    with disk.translated(where.folder), Staging(where, options.sides) as staging, _Out(options, staging) as out:
        parts = [_dataset(name, folder, shapes, out) for name in names]
        files = out.close()
        if not files:
            raise ExportProblem(_nothing(config, parts))
        staging.publish(files, manifest(config, options, folder, parts, files))
    return Outcome(folder=where.folder, manifest=where.manifest, files=files, datasets=parts)


def _dataset(name: str, folder: OutputFolder, shapes: "_Shapes", out: "_Out") -> Part:
    source = TurnFile(folder.answers(name), name, Answer, hashed=True)
    tally = Tally()
    for turns in source.jobs():
        for row in shapes.rows(turns, name, tally):
            out.write(row, primary_id(turns[0], name))
    return part(name, source, tally, _rejected(folder.rejected(name), source))


class _Shapes:
    """Answers into rows of the wanted format, with what the options leave out."""

    def __init__(self, options: Options, decode: Decode | None) -> None:
        self._options = options
        self._decode = decode
        self._known: set[bytes] = set()

    def rows(self, turns: list[Answer], dataset: str, tally: Tally) -> Iterator[Row]:
        if self._options.format == "conversations":
            yield from self._conversation(turns, dataset, tally)
            return
        for generation, turn in enumerate(turns):
            matches = generation == 0 or continues(turns[generation - 1], turn)
            if self._is_cut_off([turn], tally):
                continue
            row = token_row(turn, dataset, generation, history_matches=matches, max_length=self._options.max_length)
            if not self._is_wanted(row, turn, 1, tally):
                continue
            if self._decode is not None:
                row.columns["text"] = self._decode(row.ids.numbers())
            row.columns["text"] = no_date(row.columns["text"])
            tally.marked.update(
                [*(["history_differs"] if not matches else []), *(["cut"] if row.columns["cut"] else [])]
            )
            tally.take(row, [turn])
            yield row

    def _conversation(self, turns: list[Answer], dataset: str, tally: Tally) -> Iterator[ChatRow]:
        if self._is_cut_off(turns, tally):
            return
        row = chat_row(turns, dataset)
        if isinstance(row, str):
            tally.leave_out(row, len(turns))
        elif self._is_wanted(row, turns[-1], len(turns), tally):
            if not all(continues(before, now) for before, now in itertools.pairwise(turns)):
                tally.marked["history_differs"] += 1
            tally.take(row, turns)
            yield row

    def _is_cut_off(self, turns: list[Answer], tally: Tally) -> bool:
        if self._options.finish == "any" or all(turn.finish_reason == "stop" for turn in turns):
            return False
        tally.leave_out("truncated", len(turns))
        return True

    def _is_wanted(self, row: TokenRow | ChatRow, answer: Answer, lines: int, tally: Tally) -> bool:
        if row.supervised < self._options.min_supervised:
            tally.leave_out("too_few_supervised", lines)
            return False
        if self._options.dedupe:
            key = hashlib.blake2b((answer.asked + answer.said).data, digest_size=16).digest()
            if key in self._known:
                tally.leave_out("identical", lines)
                return False
            self._known.add(key)
        return True


class _Out:
    """The sides' writers; one without rows is never made. A context manager, which leaves no file open."""

    def __init__(self, options: Options, staging: Staging) -> None:
        self._staging = staging
        self._share = options.split
        self._kind: Callable[[Path, str, Side], Writer] = {
            "speculators": Shards, "parquet": parquet.ParquetRows,
        }.get(options.format, JsonLines)  # fmt: skip
        self._writers: dict[Side, Writer] = {}

    def __enter__(self) -> "_Out":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.discard()

    def write(self, row: Row, own: str) -> None:
        side = _side(own, self._share)
        writer = self._writers.get(side)
        if writer is None:
            writer = self._kind(self._staging.path(side), self._staging.place.name(side), side)
            self._writers[side] = writer
        writer.write(row)

    def close(self) -> list[OutFile]:
        return [file for side in sorted(self._writers, reverse=True) for file in self._writers[side].close()]


def _side(own: str, share: float | None) -> Side:
    """A prompt's side: by its id alone, so that it stays there when answers are added."""
    if share is None:
        return "all"
    digest = hashlib.blake2b(own.encode("utf-8"), digest_size=8).digest()
    return "train" if int.from_bytes(digest) < share * 2**64 else "eval"


def _rejected(path: Path, source: TurnFile[Answer]) -> Counter[str]:
    """How many prompts are rejected now, by reason: the last line of an id counts, and an answer outweighs it."""
    now: dict[str, str] = {}
    for line in jsonl.rejected_lines(path):
        now.pop(line.id, None)
        if not line.retried and not source.knows(line.id):
            now[line.id] = line.reason
    return Counter(now.values())


def _decoder(config: RunConfig, folder: OutputFolder) -> Decode:
    from workers.chat import ChatTokenizer

    tokenizer = ChatTokenizer.load(config.tokenizer, config.chat_template_kwargs)
    state = folder.state()
    noted: Any = json.loads(state.facts.get("tokenizer", "{}")) if state is not None else {}
    if noted.get("tokenizer_hash", tokenizer.tokenizer_hash) != tokenizer.tokenizer_hash:
        raise ExportProblem(
            f"{config.tokenizer} is not the tokenizer that the answers were made with: name that one in [model], or "
            f"leave --text away"
        )
    return tokenizer.decode


def _nothing(config: RunConfig, parts: list[Part]) -> str:
    left_out = sum((Counter(part.left_out) for part in parts), Counter[str]())
    if not left_out:
        return f"there are no answers in {config.output} yet: nothing was exported"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.most_common())
    return f"no row is left to export ({reasons}): ask for less, or run the job on"
