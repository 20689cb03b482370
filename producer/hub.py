"""`hf://owner/name?split=train&config=…`: a data set of the Hugging Face hub, or a folder of one on this machine.

The library that downloads and caches it is an extra, imported when such a name is met. What it gives is
read row by row from its memory-mapped cache, so a large set costs disk and no memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from producer.columns import as_json
from producer.errors import PromptsProblem
from producer.scan import Piece

SCHEME = "hf://"
OPTIONS = ("split", "config", "revision")


class HubName(NamedTuple):
    """A data set's name, as `prompts` spells it."""

    prompts: str
    name: str
    split: str
    config: str | None
    revision: str | None

    @classmethod
    def parse(cls, prompts: str) -> "HubName":
        """Raises PromptsProblem where it is not `hf://owner/name` with known options."""
        name, _, query = prompts.removeprefix(SCHEME).partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        unknown = [option for option in options if option not in OPTIONS or not options[option]]
        if unknown or not name.strip("/"):
            raise PromptsProblem(
                f"{prompts} names no data set of the hub; write hf://owner/name?split=train"
                f"{', with ' + ', '.join(OPTIONS) + ' as its options' if unknown else ''}"
            )
        return cls(
            prompts, unquote(name), options.get("split", "train"), options.get("config"), options.get("revision")
        )


def check(prompts: str) -> HubName:
    """The name, if the library that reads it is there; nothing is downloaded."""
    found = HubName.parse(prompts)
    _library(prompts)
    return found


def load(found: HubName) -> Any:
    """The data set, from the library's cache or the hub; a folder that `save_to_disk` wrote is read in place.

    Raises:
        PromptsProblem: the library is missing, or gives no such set.
    """
    datasets = _library(found.prompts)
    try:
        folder = Path(found.name)
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            held = datasets.load_from_disk(found.name)
            return held[found.split] if hasattr(held, "keys") else held
        return datasets.load_dataset(found.name, found.config, split=found.split, revision=found.revision)
    except Exception as error:
        # It raises whatever its file formats, its builders and the network raise; either way there is no set.
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise PromptsProblem(
            f"{found.prompts} cannot be had from this machine or the hub ({reason}); correct its name, split or "
            f"config, or download it and name the files"
        ) from error


def rows(held: Any) -> Iterator[Piece]:
    """The set's rows in order; `position` counts them from 1."""
    for number, row in enumerate(held, 1):
        yield Piece(as_json(row), number, 0)


def _library(prompts: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise PromptsProblem(
            f"{prompts} is on the Hugging Face hub, which needs its library: pip install datasets, or download "
            f"the set and name its files"
        ) from error
    return datasets
