"""What an export is asked for, and the names of its files."""

from pathlib import Path
from typing import Literal, get_args

import msgspec

from budget.errors import UserProblem

Format = Literal["specforge", "speculators", "conversations", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
Side = Literal["all", "train", "eval"]

_SUFFIX = {"specforge": ".jsonl", "conversations": ".jsonl", "parquet": ".parquet"}


class ExportProblem(UserProblem):
    """An export that cannot be made as it was asked for."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How an export is made.

    `max_length` cuts rows of tokens to so many; `min_supervised` leaves out rows with fewer generated tokens
    after that; `split` is the share of prompts on the training side; `text` decodes ids instead of
    taking the answer's text.
    """

    format: Format
    output: Path | None = None
    datasets: tuple[str, ...] = ()
    max_length: int | None = None
    min_supervised: int = 1
    finish: Literal["any", "stop"] = "any"
    dedupe: bool = False
    split: float | None = None
    text: bool = False

    def check(self) -> None:
        """
        Raises:
            ExportProblem: the options do not go together.
        """
        if self.format == "conversations":
            for name, given in (("--max-length", self.max_length is not None), ("--text", self.text)):
                if given:
                    raise ExportProblem(
                        f"{name} is about token ids, and conversations hold none: leave it away, or export specforge"
                    )
        if self.split is not None and not 0 < self.split < 1:
            raise ExportProblem(f"--split {self.split:g} is no share: give one between 0 and 1, such as 0.95")

    @property
    def sides(self) -> tuple[Side, ...]:
        return ("all",) if self.split is None else ("train", "eval")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an export is written: `stem` names its files, or its folder where `is_folder`."""

    folder: Path
    stem: str
    suffix: str
    is_folder: bool

    @property
    def manifest(self) -> Path:
        """Beside the data: speculators reads every JSON file of a folder of data."""
        return self.folder / f"{self.stem}.manifest.json"

    def name(self, side: Side) -> str:
        """A file's name within the folder, or the folder of a side's shards."""
        if self.is_folder:
            return self.stem if side == "all" else f"{self.stem}/{side}"
        return f"{self.stem}{self.suffix}" if side == "all" else f"{self.stem}.{side}{self.suffix}"


def place(options: Options, output: Path) -> Place:
    """Where the export goes: `exports/` in the run's output folder if nothing is named.

    Raises:
        ExportProblem: the name does not fit the format.
    """
    given = options.output
    if options.format == "speculators":
        # Resolved, so that even `.` has a name.
        target = (given or output / "exports" / "speculators").resolve()
        if target.suffix in (".json", ".jsonl"):
            raise ExportProblem(f"{target} names a file, and speculators reads a folder: name a folder")
        return Place(folder=target.parent, stem=target.name, suffix="", is_folder=True)
    suffix = _SUFFIX[options.format]
    if given is None or given.is_dir() or not given.suffix:
        stem = "rows" if options.format == "parquet" else options.format
        return Place(folder=given or output / "exports", stem=stem, suffix=suffix, is_folder=False)
    if given.suffix != suffix:
        raise ExportProblem(f"{given} does not end in {suffix}, which is what {options.format} is: name it so")
    return Place(folder=given.parent, stem=given.stem, suffix=suffix, is_folder=False)
