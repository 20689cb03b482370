"""The small files beside a model's tokenizer: sizes, end tokens and sampling defaults; only read, never guessed."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from budget.errors import UserProblem

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")


class ChatProblem(UserProblem):
    """A tokenizer or a template that cannot be used for any row: the sentence names it and the mend."""


def json_file(folder: Path | None, name: str) -> dict[str, Any]:
    if folder is None or not (folder / name).is_file():
        return {}
    try:
        held: Any = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChatProblem(f"{folder / name} cannot be read ({one_line(error)}); copy it again") from error
    return cast("dict[str, Any]", held) if isinstance(held, dict) else {}


def setting(config: dict[str, Any], names: Sequence[str]) -> int | None:
    """A size from config.json; models that also see or hear keep the text's under `text_config`."""
    for held in (config.get("text_config"), config):
        if isinstance(held, dict):
            for name in names:
                value = cast("dict[str, Any]", held).get(name)
                if isinstance(value, int) and value > 0:
                    return value
    return None


def stop_ids(own: int | None, configured: Any) -> list[int]:
    held: list[Any] = cast("list[Any]", configured) if isinstance(configured, list) else [configured]
    return sorted({token for token in (own, *held) if isinstance(token, int)})


def one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200].rstrip(".") if lines else type(error).__name__


def fingerprint_of(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=12).hexdigest()
