"""Texts that stay behind: the collector puts them back, also where Redis has lost what tells them."""

from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models

from budget import runbook
from results.verify import verify
from workers.contracts import TokenizerFacts
from workers.pieces import Pieces, lay_down


@pytest.fixture
def packed() -> bytes:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "Ġb": 1}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    found = lay_down(tokenizer)
    assert found is not None
    return found


@pytest.fixture
def pieces(packed: bytes) -> Pieces:
    return Pieces(packed)


def publish(rig: Any, packed: bytes, digest: str) -> None:
    """As a producer does."""
    runbook.lay_down_pieces(rig.client, digest, packed)
    facts = msgspec.json.encode(TokenizerFacts(vocab_size=9, pieces=digest)).decode()
    runbook.note_facts(rig.client, {"tokenizer": facts})


def test_a_text_that_stayed_behind_stands_in_the_file(rig: Any, packed: bytes, pieces: Pieces) -> None:
    publish(rig, packed, pieces.digest)
    lines = [rig.commit_told("A1", "early", pieces)]
    rig.collect()
    rig.written()
    lines.append(rig.commit_told("A1", "late", pieces))
    rig.written()
    assert rig.folder.answers("A1").read_bytes() == b"".join(lines)
    rig.check()


def test_the_folder_has_what_tells_the_texts_before_a_result_needs_it(rig: Any, packed: bytes, pieces: Pieces) -> None:
    rig.collect()
    publish(rig, packed, pieces.digest)
    rig.until(lambda: rig.folder.pieces(pieces.digest).exists(), "the pieces in the folder")
    rig.halt()
    rig.client.flushall()
    line = rig.commit_told("A1", "orphan", pieces)
    rig.collect()
    rig.written()
    assert rig.folder.answers("A1").read_bytes() == line
    rig.check()


def test_a_redis_that_was_emptied_is_given_them_for_the_workers_that_come(
    rig: Any, packed: bytes, pieces: Pieces
) -> None:
    rig.collect()
    publish(rig, packed, pieces.digest)
    rig.until(lambda: rig.folder.pieces(pieces.digest).exists(), "the pieces in the folder")
    rig.client.flushall()
    rig.until(lambda: runbook.pieces(rig.client, pieces.digest) == packed, "the pieces in Redis")


def test_a_damaged_copy_in_the_folder_is_mended_from_redis(rig: Any, packed: bytes, pieces: Pieces) -> None:
    publish(rig, packed, pieces.digest)
    rig.folder.prepare(["A1", "B2"])
    rig.folder.pieces(pieces.digest).write_bytes(packed[:-1])
    line = rig.commit_told("A1", "one", pieces)
    rig.collect()
    rig.written()
    assert rig.folder.answers("A1").read_bytes() == line
    assert rig.folder.pieces(pieces.digest).read_bytes() == packed


def test_an_answer_that_nothing_tells_is_kept_aside_and_made_again(rig: Any, pieces: Pieces) -> None:
    rig.collect()
    rig.commit_told("A1", "lost", pieces)
    rig.written()
    assert b"is gone from Redis and the output folder" in rig.folder.quarantine("A1").read_bytes()
    rig.until(lambda: rig.spent("A1") == 0, "the ledger to forget it")
    assert verify(rig.config).findings == []
