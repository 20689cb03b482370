"""Texts that stay behind: the collector puts them back, also where Redis has lost what tells them."""

import time
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models

from budget import keys, runbook
from budget.connections import RedisAway
from results.piece_store import PieceStore
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
    facts = msgspec.json.encode(TokenizerFacts(vocab_size=9, pieces_digest=digest)).decode()
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


def test_a_batch_that_failed_half_way_is_written_before_the_ledger_hears_of_it(
    rig: Any, packed: bytes, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis goes away as it is asked what tells the second answer, and comes back empty."""
    asked = PieceStore.find

    def away(store: PieceStore, digest: str) -> Pieces | None:
        monkeypatch.setattr(PieceStore, "find", asked)
        rig.client.flushall()
        raise RedisAway("gone")

    monkeypatch.setattr(PieceStore, "find", away)
    rig.commit("A1", "plain", 7)
    rig.commit_told("A1", "told", pieces)
    rig.collect()
    rig.until(lambda: rig.spent("A1") == 7, "the ledger to know what the file has")
    rig.halt()
    assert rig.folder.answers("A1").read_bytes() == rig.record("A1", "plain", 7)


def test_a_copy_that_is_larger_than_pieces_may_be_is_not_read(
    rig: Any, packed: bytes, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.folder.prepare(["A1", "B2"])
    rig.folder.pieces(pieces.digest).write_bytes(packed)
    monkeypatch.setattr(runbook, "MOST_PIECES", len(packed) - 1)
    rig.commit_told("A1", "one", pieces)
    rig.collect()
    rig.until(lambda: rig.folder.quarantine("A1").exists(), "the answer to be kept aside")
    rig.until(lambda: rig.spent("A1") == 0, "the ledger to forget it")


def test_the_lock_is_kept_while_a_batch_takes_long(
    rig: Any, packed: bytes, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To tell the texts of a whole batch may take longer than a lease."""
    asked = PieceStore.find
    held: list[bool] = []

    def slow(store: PieceStore, digest: str) -> Pieces | None:
        time.sleep(rig.config.timing.lease_ms / 1000 / 5)
        held.append(bool(rig.client.exists(keys.COLLECTOR_LOCK)))
        return asked(store, digest)

    publish(rig, packed, pieces.digest)
    lines = [rig.commit_told("A1", str(number), pieces) for number in range(10)]
    monkeypatch.setattr(PieceStore, "find", slow)
    rig.collect()
    rig.written()
    assert rig.folder.answers("A1").read_bytes() == b"".join(lines)
    assert len(held) >= len(lines) and all(held)


@pytest.mark.parametrize("held", [b"junk", ["a", "list"]])
def test_something_else_under_the_key_is_as_good_as_nothing(rig: Any, pieces: Pieces, held: Any) -> None:
    key = keys.pieces(pieces.digest)
    rig.client.set(key, held) if isinstance(held, bytes) else rig.client.rpush(key, *held)
    facts = msgspec.json.encode(TokenizerFacts(vocab_size=9, pieces_digest=pieces.digest)).decode()
    rig.collect()
    runbook.note_facts(rig.client, {"tokenizer": facts})
    rig.commit("A1", "plain", 7)
    rig.commit_told("A1", "told", pieces)
    rig.until(lambda: rig.folder.quarantine("A1").exists(), "the one that nothing tells to be kept aside")
    rig.until(lambda: rig.spent("A1") == 7, "the other to count")


def test_facts_that_cannot_be_read_stop_no_collector(rig: Any) -> None:
    rig.collect()
    runbook.note_facts(rig.client, {"tokenizer": '{"vocab_size":1,"x":' + "[" * 100_000})
    rig.until(lambda: "tokenizer" in rig.folder.state().facts, "the facts in the folder")
    rig.commit("A1", "plain", 7)
    rig.written()
    rig.check()
