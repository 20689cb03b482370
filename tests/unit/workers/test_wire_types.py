"""The wire types: what goes into a job or a result comes out of it, and what is not ours is refused, not run."""

import json
import zlib
from typing import Any

import msgspec
import pytest
import zstandard

from workers import encodings
from workers.contracts import JOB_FUNCTION, Payload, Record, RejectLine, job_id, worst_case
from workers.encodings import HostileJob, decode_job_data, encode_job_data, encode_line, pack_lines, unpack_lines

TEXTS = [
    "plain",
    "",
    "half \ud83d",
    "\udc00",
    "a\u2028b\u2029c\x85d\x0be",
    "NUL \x00",
    "emoji 🙂",
    "日本語",
    '"\\\n\r\t',
]


def payload(**changes: Any) -> Payload:
    fields: dict[str, Any] = {"dataset": "A1", "id": "HumanEval/0", "input_ids": [1, 2, 3]}
    return Payload(**{**fields, **changes})


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "id": "q", "dataset": "A1", "turn": 1, "turns": 1, "prompt_tokens": 3, "completion_tokens": 2,
        "finish_reason": "stop", "matched": "2", "input_ids": [1, 2, 3], "output_ids": [5, 2], "text": "t",
        "messages": [{"role": "user", "content": "c"}], "sampling": {"temperature": 0.7}, "model": "m",
        "weight_version": "default", "server": "http://x", "worker": "w", "attempt": 1, "rid": "r", "latency_s": 0.25,
        "created_at": 1.5,
    }  # fmt: skip
    return Record(**{**fields, **changes})


@pytest.mark.parametrize("text", TEXTS)
def test_a_payload_comes_back_whatever_its_text(text: str) -> None:
    sent = payload(
        id=text,
        messages=[{"role": "user", "content": text}],
        followups=[[{"role": "user", "content": text}]],
        tools=[{"name": text}],
        max_new_tokens=7,
    )
    assert decode_job_data(encode_job_data(sent)) == sent


def test_job_data_is_what_rq_itself_would_unpack() -> None:
    function, instance, args, kwargs = json.loads(encode_job_data(payload()))
    assert (function, instance, args) == (JOB_FUNCTION, None, [])
    assert msgspec.convert(kwargs, Payload) == payload()
    plain = json.dumps([JOB_FUNCTION, None, [], kwargs]).encode()
    assert decode_job_data(plain) == payload(), "RQ may be set not to compress"


@pytest.mark.parametrize("ids", [100, 10_000])
def test_a_large_job_is_compressed_and_a_small_one_plain(ids: int) -> None:
    sent = payload(input_ids=list(range(ids)))
    data = encode_job_data(sent)
    assert data.startswith(b"[") == (ids == 100)
    assert len(data) < 5 * ids + 200
    assert decode_job_data(data) == sent


def test_a_payload_names_its_schema_and_one_of_another_is_none() -> None:
    _, _, _, kwargs = json.loads(encode_job_data(payload()))
    assert kwargs["schema"] == 1
    with pytest.raises(HostileJob, match="schema 2"):
        decode_job_data(json.dumps([JOB_FUNCTION, None, [], {**kwargs, "schema": 2}]).encode())


def call(function: Any = JOB_FUNCTION, instance: Any = None, args: Any = (), kwargs: Any = None) -> bytes:
    kwargs = {"dataset": "A1", "id": "x", "input_ids": [1]} if kwargs is None else kwargs
    return json.dumps([function, instance, list(args), kwargs]).encode()


HOSTILE: dict[str, bytes] = {
    "another function": call("os.system"),
    "a function of ours": call("workers.jobs.other"),
    "no function": call(None),
    "an instance": call(instance="x"),
    "an argument": call(args=["rm -rf /"]),
    "no ids": call(kwargs={"dataset": "A1", "id": "x"}),
    "ids that are texts": call(kwargs={"dataset": "A1", "id": "x", "input_ids": ["1"]}),
    "an id that is a number": call(kwargs={"dataset": "A1", "id": 5, "input_ids": [1]}),
    "kwargs that are a list": call(kwargs=[1]),
    "less than a call": b'["workers.jobs.generate", null]',
    "a number": b"5",
    "null": b"null",
    "nothing": b"",
    "a pickle": b"\x80\x04\x95\x1e\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
    "garbage": bytes(range(256)),
    "compressed garbage": zlib.compress(bytes(range(256))),
    "cut": encode_job_data(payload(input_ids=list(range(1000))))[:200],
    "nested too deeply": b"[" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_job_that_is_not_ours_is_refused_and_nothing_of_it_is_run(name: str) -> None:
    with pytest.raises(HostileJob):
        decode_job_data(HOSTILE[name])


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "MAX_JOB_BYTES", 1_000_000)
    with pytest.raises(HostileJob, match="larger"):
        decode_job_data(zlib.compress(b" " * 10_000_000))
    fits = zlib.compress(b" " * 900_000 + call())
    assert decode_job_data(fits).id == "x"


def test_a_result_that_is_a_bomb_or_damaged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "MAX_JOB_BYTES", 1_000_000)
    streaming = zstandard.ZstdCompressor().compressobj()  # its frame does not say how large it is
    bombs = [pack_lines([b" " * 10_000_000]), streaming.compress(b" " * 10_000_000) + streaming.flush()]
    for packed in [*bombs, b"", b"garbage", pack_lines([b"x" * 100])[:-3]]:
        with pytest.raises(ValueError):
            unpack_lines(packed)


def test_job_ids_are_rqs_kind_of_ids_and_tell_prompts_and_datasets_apart() -> None:
    ids = [job_id(dataset, prompt) for dataset in ("A1", "B2") for prompt in TEXTS]
    assert len(set(ids)) == len(ids)
    assert all(id.isascii() and id.replace("-", "").isalnum() for id in ids)
    assert job_id("A1", "x") == job_id("A1", "x")


@pytest.mark.parametrize("text", TEXTS)
def test_a_record_is_one_ascii_line_whatever_it_holds(text: str) -> None:
    sent = record(id=text, text=text, messages=[{"role": "user", "content": text}], matched=text)
    line = encode_line(sent)
    assert line.isascii() and line.count(b"\n") == 1 and line.endswith(b"\n")
    assert line.splitlines() == [line[:-1]]
    assert json.loads(line) == msgspec.to_builtins(sent)
    assert json.loads(line)["text"] == text
    assert unpack_lines(pack_lines([line, line])) == line * 2


def test_a_line_holds_exactly_the_documented_fields() -> None:
    documented = {
        "id", "dataset", "turn", "turns", "prompt_tokens", "completion_tokens", "finish_reason", "matched",
        "input_ids", "output_ids", "text", "thinking", "visible", "messages", "tools", "reference",
        "sampling", "model", "weight_version", "server", "worker", "attempt", "rid", "latency_s",
        "created_at", "schema",
    }  # fmt: skip
    assert set(json.loads(encode_line(record()))) == documented
    rejected = RejectLine(id="q", dataset="A1", reason="too_long", detail="d", attempts=1, row={"prompt": "\ud83d"})
    assert set(json.loads(encode_line(rejected))) == {"id", "dataset", "reason", "detail", "attempts", "row"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_line_holds_what_is_not_json(number: float) -> None:
    with pytest.raises(ValueError):
        encode_line(record(latency_s=number))
    with pytest.raises(ValueError):
        encode_line({"x": number})


def test_the_worst_case_is_the_longest_answer_of_every_turn() -> None:
    assert worst_case(payload(), {"max_new_tokens": 100}) == 100
    assert worst_case(payload(followups=[[], []]), {"max_new_tokens": 100}) == 300
    assert worst_case(payload(followups=[[]], max_new_tokens=40), {"max_new_tokens": 100}) == 80
