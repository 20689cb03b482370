"""Log lines that say what happened in the user's words; as JSON for machines."""

import json
import logging
import sys
from typing import Any, Literal

from budget import plain

Format = Literal["text", "json"]


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("tokenmill."),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        part = record.name.removeprefix("tokenmill.")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname}: "
        line = f"{self.formatTime(record, '%H:%M:%S')} {part}: {level}{plain.one_line(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(kind: Format = "text", *, verbose: bool = False) -> None:
    """Log to standard error; standard output is for answers. RQ's own chatter is left out unless wanted."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if kind == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tokenmill").setLevel(logging.DEBUG if verbose else logging.INFO)
    rq = logging.getLogger("rq.worker")
    rq.setLevel(logging.INFO if verbose else logging.WARNING)
    rq.propagate = False
    if not rq.handlers:
        rq.addHandler(handler)  # so that RQ adds none of its own
