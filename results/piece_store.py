"""The pieces that tell the texts of results, kept in the output folder: Redis may be emptied while they are needed."""

import re
from contextlib import suppress

import msgspec
import redis

from budget import runbook
from results import disk
from results.folder import OutputFolder
from workers.contracts import TokenizerFacts
from workers.pieces import Pieces, found

_DIGEST = re.compile("[0-9a-f]{32}")


class PieceStore:
    """What tells texts, by digest: from memory, else the folder, else Redis, from where the folder gets it."""

    def __init__(self, connection: "redis.Redis", folder: OutputFolder) -> None:
        self._connection = connection
        self._folder = folder
        self._known: dict[str, Pieces] = {}
        self._noted: str | None = None

    def find(self, digest: str) -> Pieces | None:
        """The pieces of that digest; None where they are nowhere.

        Raises:
            RedisAway, RedisRefuses, BadFolder, NotWritable, DiskFault: ask again later.
        """
        if digest in self._known or not _DIGEST.fullmatch(digest):
            return self._known.get(digest)
        pieces = found(self._kept(digest), digest)
        if pieces is None:
            pieces = found(runbook.pieces(self._connection, digest), digest)
            if pieces is not None:
                disk.replace(self._folder.pieces(digest), [pieces.packed])
        if pieces is not None:
            self._known[digest] = pieces
        return pieces

    def note(self, tokenizer: str | None) -> None:
        """Keep what the tokenizer's facts name, before a result needs it."""
        if tokenizer is None or tokenizer == self._noted:
            return
        # Whoever cannot read the facts and needs them says so.
        with suppress(msgspec.DecodeError, RecursionError):
            if digest := msgspec.json.decode(tokenizer, type=TokenizerFacts).pieces_digest:
                self.find(digest)
        self._noted = tokenizer

    def restore(self) -> None:
        """Give an emptied Redis what is known, for the workers that come, and look anew at what it has."""
        self._noted = None
        for digest, pieces in self._known.items():
            runbook.lay_down_pieces(self._connection, digest, pieces.packed)

    def _kept(self, digest: str) -> bytes | None:
        path = self._folder.pieces(digest)
        disk.check_regular(path)
        with disk.translated(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None
