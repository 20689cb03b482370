"""What an entry of the results stream says, checked before a byte of it reaches a file.

A file must hold only what the next start can read back to the same numbers, so an entry whose lines do
not say what the entry says is `Damaged`, and kept aside.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from results import jsonl
from results.errors import Damaged
from results.index import digest, digest_of_job
from workers.contracts import RejectLine
from workers.encodings import HostileJob, decode_job_data, encode_line, unpack_lines, unpack_records
from workers.pieces import Pieces

Fields = dict[bytes, bytes]
PiecesOf = Callable[[str], Pieces | None]


class Answer(msgspec.Struct, frozen=True):
    """A job's completion: its lines as they are written."""

    key: bytes
    tokens: int
    cut: bool
    data: bytes


class Rejection(msgspec.Struct, frozen=True):
    """A line for rejected.jsonl: a prompt's end, or its return."""

    key: bytes
    kind: Literal["rejected", "retried"]
    line: jsonl.RejectedLine
    data: bytes


def understand(dataset: str, fields: Fields, pieces_of: PiecesOf) -> Answer | Rejection:
    """The meaning of an entry. `pieces_of` finds what tells the texts that did not travel.

    Raises:
        Damaged: it is not what a worker writes, with the reason.
    """
    kind = fields.get(b"kind", b"").decode("ascii", "replace")
    job = fields.get(b"job", b"").decode("utf-8", "replace")
    key = digest_of_job(dataset, job)
    if key is None:
        raise Damaged(f"{job!r} is no job of {dataset}")
    if kind == "commit":
        return _answer(dataset, job, key, fields, pieces_of)
    if kind == "poison":
        return rejection(dataset, job, key, _poison(dataset, job, fields))
    if kind not in ("reject", "retry"):
        raise Damaged(f"its kind is {kind!r}")
    data = _unpacked(fields, unpack_lines)
    line = jsonl.parse_rejected(data)
    if isinstance(line, str) or b"\n" in data[:-1] or not data.endswith(b"\n"):
        raise Damaged("its line is not one line of JSON with an id")
    if line.retried != (kind == "retry"):
        raise Damaged(f"it is a {kind}, and its line says otherwise")
    if digest(dataset, line.id) != key and line.job != job:
        # The line alone must lead back to the job, so it names the job where the id does not.
        plain = jsonl.loads(data)
        assert not isinstance(plain, str)
        return rejection(dataset, job, key, plain)
    return Rejection(key, "retried" if line.retried else "rejected", line, data)


def rejection(dataset: str, job: str, key: bytes, plain: dict[str, Any]) -> Rejection:
    """A rejection made here: `plain` is its line, which names the job where its id does not lead to it."""
    own = str(plain["id"])
    if digest(dataset, own) != key:
        plain = {**plain, "job": job}
    line = jsonl.RejectedLine(id=own, retried=plain.get("retried") is True, job=str(plain.get("job", "")))
    return Rejection(key, "retried" if line.retried else "rejected", line, encode_line(plain))


def _answer(dataset: str, job: str, key: bytes, fields: Fields, pieces_of: PiecesOf) -> Answer:
    tokens = _number(fields, b"tokens")
    data = _unpacked(fields, lambda packed: unpack_records(packed, pieces_of))
    if not data.endswith(b"\n"):
        raise Damaged("its last line is torn")
    found, cut, turns, own = 0, False, list[int](), 0
    for raw in data.split(b"\n")[:-1]:
        line = jsonl.parse(raw)
        if isinstance(line, str) or not line.is_own:
            raise Damaged("a line of it is not a record")
        if digest(dataset, str(line.id)) != key:
            raise Damaged(f"a line of it is of {line.id!r}, which is not job {job}")
        found, cut, own = found + line.completion_tokens, cut or line.is_cut, line.turns
        turns.append(line.turn)
    if not turns or len(turns) != own or turns != list(range(turns[0], turns[0] + own)) or turns[0] > 1:
        raise Damaged(f"it holds the turns {turns} of {own}")
    if found != tokens:
        raise Damaged(f"its lines hold {found} tokens, the counter was moved by {tokens}")
    return Answer(key, tokens, cut, data)


def _poison(dataset: str, job: str, fields: Fields) -> dict[str, Any]:
    """The line of a prompt that too many workers or servers died with; its job's data say which it was."""
    deaths = _number(fields, b"deaths")
    detail = f"it was in flight in {deaths} workers or servers that died"
    row: Any = None
    own = job
    try:
        payload = decode_job_data(fields.get(b"data", b""))
        own = payload.id
        if payload.messages:
            row = {"id": own, "messages": payload.messages, "followups": payload.followups, "tools": payload.tools}
        else:
            row = {"id": own, "input_ids": payload.input_ids}
    except HostileJob as error:
        detail += f"; its job cannot be read: {error}"
    line = RejectLine(
        id=own, dataset=dataset, reason="poison", detail=detail, attempts=_number(fields, b"attempts"), row=row
    )
    return {name: getattr(line, name) for name in line.__struct_fields__}


def _number(fields: Fields, name: bytes) -> int:
    value = fields.get(name, b"")
    if not value.isdigit() or len(value) > 15:
        raise Damaged(f"its {name.decode()} are {value[:40]!r}")
    return int(value)


def _unpacked(fields: Fields, unpack: Callable[[bytes], bytes]) -> bytes:
    try:
        return unpack(fields.get(b"line", b""))
    except ValueError as error:
        raise Damaged(f"its lines cannot be unpacked: {error}") from error
