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
        # Asked for in vain since the last `note`: a batch asks for the same thousand times.
        self._missing: set[str] = set()
        self._noted: str | None = None

    def find(self, digest: str) -> Pieces | None:
        """The pieces of that digest; None where they are nowhere.

        Raises:
            RedisAway, RedisRefuses, BadFolder, NotWritable, DiskFault: ask again later.
        """
        if digest in self._known or digest in self._missing or not _DIGEST.fullmatch(digest):
            return self._known.get(digest)
        pieces = found(self._kept(digest), digest) or found(runbook.pieces(self._connection, digest), digest)
        if pieces is None:
            self._missing.add(digest)
            return None
        self._known[digest] = pieces
        self._keep(pieces)
        return pieces

    def note(self, tokenizer: str | None) -> None:
        """Now and then: keep what the tokenizer's facts name, before a result needs it, and what was deleted."""
        self._missing.clear()
        for pieces in self._known.values():
            self._keep(pieces)
        if tokenizer is None or tokenizer == self._noted:
            return
        # Whoever cannot read the facts and needs them says so.
        digest = ""
        with suppress(msgspec.DecodeError, RecursionError):
            digest = msgspec.json.decode(tokenizer, type=TokenizerFacts).pieces_digest
        if not digest or self.find(digest) is not None:
            self._noted = tokenizer

    def restore(self) -> None:
        """Give an emptied Redis what is known, for the workers that come, and look anew at what it has."""
        self._noted = None
        for digest, pieces in self._known.items():
            runbook.lay_down_pieces(self._connection, digest, pieces.packed)

    def _keep(self, pieces: Pieces) -> None:
        path = self._folder.pieces(pieces.digest)
        if not path.exists() or path.stat().st_size != len(pieces.packed):
            disk.replace(path, [pieces.packed])

    def _kept(self, digest: str) -> bytes | None:
        path = self._folder.pieces(digest)
        disk.check_regular(path)
        with disk.translated(path):
            try:
                return path.read_bytes() if path.stat().st_size <= runbook.MOST_PIECES else None
            except FileNotFoundError:
                return None
