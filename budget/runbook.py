"""The run's own entry in Redis: whose database it is, the run's configuration, and the caps.

One Redis database holds one run. The collector publishes it; workers and producers wait for it. A
second run, another output folder, or a dataset whose tokenizer, template, sampling or prompts changed
is refused with the difference named.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import redis
from redis.exceptions import WatchError

from budget import damage, keys
from budget.connections import RedisDamaged, translated
from budget.errors import Refused, UserProblem
from budget.protocol import PROTOCOL, other, release


class AnotherRun(Refused):
    """The database belongs to another run or folder."""


class Changed(UserProblem):
    """What answers were collected under has changed since."""


def run_id(connection: "redis.Redis") -> str:
    """The run_id of the Redis server itself: new with each of its starts."""
    client: Any = connection
    with translated():
        return str(client.info("server")["run_id"])


def is_ready(connection: "redis.Redis") -> bool:
    """Whether the collector has seeded the files into this start of Redis."""
    client: Any = connection
    with translated():
        ready = client.get(keys.READY)
    return ready is not None and ready == run_id(connection).encode()


def was_restarted(connection: "redis.Redis") -> bool:
    """Whether Redis has been started again since the files were seeded into it."""
    client: Any = connection
    with translated():
        ready = client.get(keys.READY)
    return ready is not None and ready != run_id(connection).encode()


def renew_log(connection: "redis.Redis") -> None:
    """Have Redis write its append-only file anew, in the background.

    A power cut may leave half a transaction at the file's end. Redis 7.0 passes over it at its start, keeps
    it, and runs it together with what follows at the start after that: an answer would be counted twice.
    """
    client: Any = connection
    with translated():
        if client.info("persistence").get("aof_enabled"):
            client.bgrewriteaof()


def published(connection: "redis.Redis") -> dict[str, str]:
    """The fields of the run's entry; empty where no run has been published."""
    client: Any = connection
    with translated():
        entry = client.hgetall(keys.RUN).items()
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in entry}


def fingerprint_of(entry: Mapping[str, str], dataset: str) -> dict[str, str]:
    """What a dataset's answers were collected under, as the run's entry has it; empty where it does not know.

    Raises:
        RedisDamaged: the entry holds something else there.
    """
    field = f"fingerprint:{dataset}"
    return damage.decoded(entry.get(field, "{}"), dict[str, str], keys.RUN, field)


def refuse_other(entry: Mapping[str, str], own: int = PROTOCOL) -> None:
    """Refuse a run's entry that another version of Tokenmill wrote; one that says nothing is anybody's.

    Raises:
        OtherProtocol: that is so.
        RedisDamaged: the entry holds no number there.
    """
    text = entry.get("protocol")
    if text is not None and damage.whole(text.encode(), keys.RUN, "protocol") != own:
        raise other(text, entry.get("release", "unknown"), own)


def differences(known: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two fingerprints, as `name: old -> new`. A part that only one has is no difference."""
    return [f"{part}: {known[part]} -> {now[part]}" for part in known if part in now and known[part] != now[part]]


def refuse_another(entry: Mapping[str, str], output_id: str | None) -> None:
    """Refuse a database that another output folder has.

    Args:
        entry: the run's entry, as `published` gives it.
        output_id: the folder's id; None where it is a new one.

    Raises:
        AnotherRun: the database is another's.
    """
    if "output_id" in entry and entry["output_id"] != output_id:
        raise AnotherRun(
            f"this Redis database belongs to run {entry.get('name')!r} with another output folder: use another "
            f"database number in TOKENMILL_REDIS_URL, or free this one with `tokenmill reset` and that run's run file"
        )


def refuse_another_name(entry: Mapping[str, str], name: str) -> None:
    """Refuse a database that a run of another name has, where no output folder tells more.

    Raises:
        AnotherRun: the database is another's.
    """
    if entry.get("name", name) != name:
        raise AnotherRun(
            f"this Redis database belongs to run {entry['name']!r}, not to {name!r}: use its run file, or another "
            f"database number in TOKENMILL_REDIS_URL"
        )


def publish(
    connection: "redis.Redis",
    *,
    config: bytes,
    name: str,
    output_id: str,
    protocol: int,
    fingerprints: Mapping[str, Mapping[str, str]],
    max_tokens_total: int | None,
    max_samples: Mapping[str, int | None],
) -> None:
    """Write the run's entry, after checking that the database is this run's or nobody's.

    Raises:
        AnotherRun: it holds another run or another output folder.
        OtherProtocol: another version of Tokenmill wrote it.
        Changed: a dataset's fingerprint differs from what its answers were collected under.
    """
    client: Any = connection
    before = published(connection)
    refuse_another(before, output_id)
    refuse_other(before, protocol)
    for dataset, fingerprint in fingerprints.items():
        if found := differences(fingerprint_of(before, dataset), fingerprint):
            raise changed(dataset, found)
    entry: dict[str, str | bytes] = {
        "config": config,
        "name": name,
        "output_id": output_id,
        "protocol": str(protocol),
        "release": release(),
    }
    for dataset, fingerprint in fingerprints.items():
        entry[f"fingerprint:{dataset}"] = json.dumps(dict(fingerprint))
    total_text = before.get("max_tokens_total")
    total_before = damage.optional(None if total_text is None else total_text.encode(), keys.RUN, "max_tokens_total")
    raised = total_before is not None and (max_tokens_total is None or max_tokens_total > total_before)
    with translated(), client.pipeline() as pipe:
        pipe.hset(keys.RUN, mapping=entry)
        if max_tokens_total is None:
            pipe.hdel(keys.RUN, "max_tokens_total")
        else:
            pipe.hset(keys.RUN, "max_tokens_total", max_tokens_total)
        for dataset, samples in max_samples.items():
            if raised:
                # As `set_cap`: what was full, or out of prompts, under the lower cap is looked at again.
                pipe.hdel(keys.budget(dataset), "full", "exhausted")
            if samples is None:
                pipe.hdel(keys.budget(dataset), "max_samples")
            else:
                pipe.hset(keys.budget(dataset), "max_samples", samples)
        pipe.execute()


def changed(dataset: str, found: list[str]) -> Changed:
    """The refusal of a dataset whose fingerprint differs."""
    return Changed(
        f"dataset {dataset} was collected under something else ({'; '.join(found)}): put it back as it was, or give "
        f"the dataset another name or the run another output folder"
    )


# Of this Redis alone: since when this collector runs, and how many workers and servers have died.
PASSING_FIELDS = ("began", "deaths")


def note_beginning(connection: "redis.Redis") -> None:
    """A collector begins (ms, Redis' clock): a worker that took no job since then went down before it, or with it."""
    client: Any = connection
    with translated():
        seconds, micros = client.time()
        client.hset(keys.RUN, "began", seconds * 1000 + micros // 1000)


# The fact that the run's answers come from the simulated server, which `run` has started for it.
SIMULATED = "simulated"


def note_facts(connection: "redis.Redis", facts: Mapping[str, str]) -> None:
    """Add facts to the run's entry (producer: the tokenizer's; workers: the model; `run`: that it simulates)."""
    client: Any = connection
    with translated():
        client.hset(keys.RUN, mapping=dict(facts))


# Bytes. Nobody's vocabulary is as large, packed or not; what says that it is would fill the memory.
MOST_PIECES = 16 * 1024 * 1024


def lay_down_pieces(connection: "redis.Redis", digest: str, packed: bytes) -> None:
    """Keep a vocabulary's pieces. Before they are named in the facts: whoever reads those must find them."""
    client: Any = connection
    with translated():
        client.set(keys.pieces(digest), packed)


def pieces(connection: "redis.Redis", digest: str) -> bytes | None:
    """The pieces of that digest, or None; a key of another type or size is none: a run can do without."""
    client: Any = connection
    try:
        with translated():
            return client.get(keys.pieces(digest)) if client.strlen(keys.pieces(digest)) <= MOST_PIECES else None
    except RedisDamaged:
        return None


def set_cap(connection: "redis.Redis", dataset: str, cap: int | None, *, from_file: bool = False) -> int | None:
    """Set a dataset's cap in tokens (None: no cap), at any time; returns the one before (None: none or unset).

    A raised cap opens a dataset again that was full or had run out of prompts.
    """
    client: Any = connection
    while True:
        with translated(), client.pipeline() as pipe:
            try:
                pipe.watch(keys.budget(dataset))
                before: bytes | None = pipe.hget(keys.budget(dataset), "cap")
                pipe.multi()
                pipe.hset(keys.budget(dataset), "cap", "none" if cap is None else cap)
                if from_file:
                    pipe.hset(keys.budget(dataset), "cap_file", "none" if cap is None else cap)
                # A cap that is no number is mended by the one that is set.
                old = int(before) if before is not None and before.isdigit() else None
                if before is not None and old is not None and (cap is None or cap > old):
                    pipe.hdel(keys.budget(dataset), "full", "exhausted")
                pipe.execute()
                return old
            except WatchError:
                continue


def restore_caps(connection: "redis.Redis", caps: Mapping[str, tuple[int | None, int | None]]) -> None:
    """Give a Redis that has forgotten them the caps that it had: (cap, what the run file said) by dataset."""
    client: Any = connection
    with translated(), client.pipeline() as pipe:
        for dataset, pair in caps.items():
            for field, value in zip(("cap", "cap_file"), pair, strict=True):
                pipe.hsetnx(keys.budget(dataset), field, "none" if value is None else value)
        pipe.execute()


class FromFile(msgspec.Struct, frozen=True):
    """A cap that was written as the run file has it; `over` is the one set by hand that it replaced, in words."""

    cap: int | None
    over: str = ""

    @property
    def said(self) -> str:
        """For a sentence that begins with the dataset."""
        cap = "without a cap" if self.cap is None else f"{self.cap:,} tokens"
        over = f", in the place of {self.over}, which was set by hand" if self.over else ""
        return f"the budget is {cap}, as the run file says{over}"


def apply_file_caps(
    connection: "redis.Redis", caps: Mapping[str, int | None], *, only_missing: bool = False
) -> dict[str, FromFile]:
    """Write the run file's caps where the file's value changed since it was last written; returns those written.

    So a cap that `budget set` changed in mid-run stays, until the file itself says something new.
    """
    client: Any = connection
    written: dict[str, FromFile] = {}
    for dataset, cap in caps.items():
        with translated():
            known, from_file = client.hmget(keys.budget(dataset), "cap", "cap_file")
        word = b"none" if cap is None else str(cap).encode()
        if known is not None and from_file is None:
            # Set by hand before any file was read: that stays until the file says something new.
            with translated():
                client.hset(keys.budget(dataset), "cap_file", word)
        elif known is None or (from_file != word and not only_missing):
            set_cap(connection, dataset, cap, from_file=True)
            over = known if known is not None and known not in (from_file, word) else b""
            written[dataset] = FromFile(cap, over.decode("utf-8", "replace"))
    return written
