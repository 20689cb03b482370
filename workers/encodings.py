"""How the wire types travel: a job's data as RQ reads it, lines of the result files, and those packed for Redis."""

import json
import threading
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import zstandard

from workers.contracts import JOB_FUNCTION, Payload, Record, RejectLine
from workers.pieces import Pieces, Telling, Texts

# Some 500 token ids.
PLAIN_JOB_BYTES = 4096


def encode_job_data(payload: Payload) -> bytes:
    """The `data` field of an RQ job hash: RQ's JSON serializer's call tuple, plain or compressed, as RQ reads both.

    A queue holds a bounded number of jobs, so small ones are no burden to Redis, and compressing them would
    cost more than all else that makes a job of a row.
    """
    plain = {**msgspec.to_builtins(payload), "schema": payload.schema}
    # The ids are most of a job, and msgspec writes them ten times faster than json does.
    ids = msgspec.json.encode({"input_ids": plain.pop("input_ids")})
    # json where a prompt holds lone surrogates, which only escaped ASCII can carry.
    rest = _ascii_by_msgspec(plain) or json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    data = b'["%b",null,[],%b,%b]' % (JOB_FUNCTION.encode(), rest[:-1], ids[1:])
    return data if len(data) <= PLAIN_JOB_BYTES else zlib.compress(data, 1)


class HostileJob(ValueError):
    """A job hash whose data is not one of our jobs: another function, a broken or foreign payload."""


_usual_call = msgspec.json.Decoder(tuple[str, None, list[Any], Payload])
# More than any prompt needs, and little enough that a decompression bomb in Redis cannot fill a worker's memory.
MAX_JOB_BYTES = 256 * 1024 * 1024


def decode_job_data(data: bytes) -> Payload:
    """The payload in an RQ job's `data`, compressed or plain.

    Raises:
        HostileJob: the data names another function or is not a payload; nothing of it was run or imported.
    """
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(data, MAX_JOB_BYTES)
        if inflater.unconsumed_tail:
            raise HostileJob(f"its data is larger than {MAX_JOB_BYTES} bytes")
    except zlib.error:
        text = data
    try:
        function, _, args, payload = _usual_call.decode(text)
        if function == JOB_FUNCTION and not args:
            return payload
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # lone surrogates, which only json reads, or what is told apart below
    try:
        call: Any = json.loads(text)
        function, instance, args, kwargs = call
    except (ValueError, TypeError, RecursionError) as error:
        raise HostileJob(f"its data is not a JSON call: {error}") from error
    if function != JOB_FUNCTION or instance is not None or args:
        raise HostileJob(f"it names the function {_short(function)}; only {JOB_FUNCTION} is run")
    try:
        return msgspec.convert(kwargs, Payload)
    except msgspec.ValidationError as error:
        raise HostileJob(f"its payload is malformed: {str(error)[:200]}") from error


def _short(value: Any) -> str:
    """As Python writes it, and no longer than a line of rejected.jsonl should be."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def encode_line(line: Record | RejectLine | dict[str, Any]) -> bytes:
    """One JSON line: ASCII only, no NaN, ended by one newline, whatever the text holds.

    Raises:
        ValueError: a number in it is NaN or infinite.
    """
    if isinstance(line, Record):
        return _with_texts(_without_texts(line), (line.text, line.thinking, line.visible))
    plain = line if isinstance(line, dict) else {name: getattr(line, name) for name in line.__struct_fields__}
    return _ascii(plain) + b"\n"


_IDS = ("input_ids", "output_ids")
_TEXTS = ("text", "thinking", "visible")


def _without_texts(record: Record) -> bytes:
    """A record's line without its texts, which stand last."""
    plain = {name: getattr(record, name) for name in record.__struct_fields__ if name not in _TEXTS}
    # The ids are most of a line, and msgspec writes them ten times faster than json does.
    ids = msgspec.json.encode({name: plain.pop(name) for name in _IDS})
    return (_ascii_by_msgspec(plain) or _ascii(plain))[:-1] + b"," + ids[1:] + b"\n"


def _with_texts(line: bytes, texts: Texts) -> bytes:
    plain: dict[str, Any] = dict(zip(_TEXTS, texts, strict=True))
    return line[:-2] + b"," + (_ascii_by_msgspec(plain) or _ascii(plain))[1:] + b"\n"


def _ascii(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def _ascii_by_msgspec(plain: dict[str, Any]) -> bytes | None:
    """The same several times faster; None where it would not be the same."""
    try:
        encoded = msgspec.json.encode(plain)
    except (UnicodeEncodeError, OverflowError, TypeError):  # lone surrogates, integers of more than 64 bits
        return None
    return encoded if encoded.isascii() and b"null" not in encoded else None  # it writes NaN as null


_thread = threading.local()


def pack_lines(lines: list[bytes]) -> bytes:
    """Lines as they travel through Redis: joined and compressed; zstd's first level costs a tenth of zlib's sixth."""
    # Kept, since making one costs as much as compressing; one a thread, since threads must not share one.
    if not hasattr(_thread, "compressor"):
        _thread.compressor = zstandard.ZstdCompressor(level=1)
    return _thread.compressor.compress(b"".join(lines))


# What zstd makes begins otherwise.
_TOLD = b"told by "


def pack_records(records: list[Record], pieces: Pieces | None) -> tuple[bytes, str]:
    """A job's lines as they travel, without the texts where `pieces` tell them all, and what tells them then."""
    if pieces is None or not all(map(pieces.tells, records)):
        return pack_lines([encode_line(record) for record in records]), ""
    lines = pack_lines([_without_texts(record) for record in records])
    return b"%b%b\n%b" % (_TOLD, pieces.digest.encode(), lines), pieces.digest


def unpack_records(packed: bytes, pieces_of: Callable[[str], Pieces | None]) -> bytes:
    """The lines that `pack_records` was given, to the byte. `pieces_of` finds pieces by their digest.

    Raises:
        ValueError: they are not what it made, or nobody has the pieces any more.
    """
    if not packed.startswith(_TOLD):
        return unpack_lines(packed)
    name, _, lines = packed.removeprefix(_TOLD).partition(b"\n")
    digest = name.decode("ascii", "replace")
    pieces = pieces_of(digest)
    if pieces is None:
        raise ValueError(f"what tells its text ({digest[:40]}) is gone from Redis and the output folder")
    told, room = list[bytes](), MAX_JOB_BYTES
    for line in unpack_lines(lines).splitlines(keepends=True):
        told.append(_told(line, pieces))
        room -= len(told[-1])
        if room < 0:
            raise ValueError(f"a result is larger than {MAX_JOB_BYTES} bytes")
    return b"".join(told)


_telling = msgspec.json.Decoder(Telling)


def _told(line: bytes, pieces: Pieces) -> bytes:
    try:
        telling = _telling.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Lone surrogates in what was asked, which only json reads.
        try:
            telling = msgspec.convert(json.loads(line), Telling)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a line of it is not a record: {error}") from error
    texts = pieces.texts(telling)
    if texts is None or not line.endswith(b"]}\n"):
        raise ValueError("its ids do not tell its text")
    return _with_texts(line, texts)


def unpack_lines(packed: bytes) -> bytes:
    """The lines of a stream entry.

    Raises:
        ValueError: they are not what `pack_lines` made.
    """
    try:
        # Where a frame says how large it is, zstandard heeds no limit.
        if zstandard.frame_content_size(packed) > MAX_JOB_BYTES:
            raise ValueError(f"a result is larger than {MAX_JOB_BYTES} bytes")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_JOB_BYTES)
    except zstandard.ZstdError as error:
        raise ValueError(f"a result is damaged: {error}") from error
