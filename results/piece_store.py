"""The pieces that tell the texts of results, kept in the output folder: Redis may be emptied while they are needed."""

import re

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
        self._packed: dict[str, bytes] = {}
        self._noted: str | None = None

    def find(self, digest: str) -> Pieces | None:
        """The pieces of that digest; None where they are nowhere.

        Raises:
            RedisAway, NotWritable, DiskFault: ask again later.
        """
        if digest in self._known or not _DIGEST.fullmatch(digest):
            return self._known.get(digest)
        packed = self._kept(digest)
        pieces = found(packed, digest)
        if pieces is None:
            packed = runbook.pieces(self._connection, digest)
            pieces = found(packed, digest)
            if pieces is not None and packed is not None:
                disk.replace(self._folder.pieces(digest), [packed])
        if pieces is not None and packed is not None:
            self._known[digest] = pieces
            self._packed[digest] = packed
        return pieces

    def note(self, tokenizer: str | None) -> None:
        """Keep what the tokenizer's facts name, before a result needs it."""
        if tokenizer is None or tokenizer == self._noted:
            return
        try:
            digest = msgspec.json.decode(tokenizer, type=TokenizerFacts).pieces
        except msgspec.DecodeError:
            return  # the workers, who need the facts, say so
        if not digest or self.find(digest) is not None:
            self._noted = tokenizer

    def restore(self) -> None:
        """Give an emptied Redis what is known, for the workers that come."""
        for digest, packed in self._packed.items():
            runbook.lay_down_pieces(self._connection, digest, packed)

    def _kept(self, digest: str) -> bytes | None:
        path = self._folder.pieces(digest)
        disk.check_regular(path)
        with disk.translated(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None
