"""What each answer of a real server means: the table of outcomes, and every recorded answer.

The recordings are not part of the repository: without them those tests are skipped.
"""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from workers import outcomes
from workers.outcomes import Accept, Reject, Retry, RunFault, ServerFault, sort_answer, sort_broken
from workers.sglang import Broken

CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "sglang-captures"


def success(
    reason: Any = None, ids: list[int] | None = None, tokens: int | None = None, text: str = "hi", **meta: Any
) -> bytes:
    ids = [5, 6, 2] if ids is None else ids
    info = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 2} if reason is None else reason,
        "prompt_tokens": 4,
        "completion_tokens": len(ids) if tokens is None else tokens,
        "weight_version": "default",
        **meta,
    }
    return json.dumps({"text": text, "output_ids": ids, "meta_info": info}).encode()


def openai(message: str, code: int) -> bytes:
    return json.dumps({"object": "error", "message": message, "type": str(code), "param": None, "code": code}).encode()


def nested(message: str) -> bytes:
    return json.dumps({"error": {"message": message}}).encode()


@pytest.mark.parametrize(
    ("reason", "truncated"),
    [
        ({"type": "stop", "matched": 2}, False),
        ({"type": "stop", "matched": "</s>"}, False),
        ({"type": "stop", "matched": [5, 6]}, False),
        ({"type": "stop", "matched": None}, False),
        ({"type": "length", "length": 3}, True),
    ],
)
def test_a_whole_answer_is_accepted(reason: dict[str, Any], truncated: bool) -> None:
    outcome = sort_answer(200, success(reason))
    assert isinstance(outcome, Accept)
    assert outcome.truncated is truncated
    assert outcome.answer.output_ids == [5, 6, 2]


def test_text_with_half_a_surrogate_pair_is_accepted() -> None:
    outcome = sort_answer(200, success(text="half \ud83d"))
    assert isinstance(outcome, Accept) and outcome.answer.text == "half \ud83d"


NOT_ACCEPTED: dict[str, tuple[int, bytes, type, str]] = {
    "NaN, which looks like success": (200, success({"type": "stop", "matched": "NaN happened"}), Retry, "nan"),
    "less ids than tokens": (200, success(ids=[5], tokens=2), Retry, "wrong_ids"),
    "more ids than tokens": (200, success(ids=[5, 6], tokens=1), Retry, "wrong_ids"),
    "no token at all": (200, success(ids=[]), Retry, "wrong_ids"),
    "no ids": (200, b'{"text": "x", "meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": 1}}',
               RunFault, "request"),
    "aborted by hand or by a pause": (200, success({"type": "abort", "message": "Aborted"}), Retry, "aborted"),
    "aborted while it waited": (200, b'{"text": "", "output_ids": [], "meta_info": {"id": "k", "finish_reason": '
                                b'{"type": "abort", "message": "Abort in waiting queue", "status_code": null}, '
                                b'"completion_tokens": 0}}', Retry, "aborted"),
    "aborted as a full queue": (200, success({"type": "abort", "message": "full", "status_code": 503}),
                                ServerFault, "busy"),
    "aborted as too many": (200, success({"type": "abort", "message": "slow", "status_code": 429}),
                            ServerFault, "busy"),
    "aborted as a bad request": (200, success({"type": "abort", "message": "bad", "status_code": 400}),
                                 Reject, "bad_request"),
    "an unknown finish": (200, success({"type": "tool"}), Retry, "unknown_finish"),
    "no finish": (200, success(finish_reason=None), Retry, "malformed_answer"),
    "a list": (200, b"[" + success() + b"]", Retry, "malformed_answer"),
    "a stream": (200, b"data: " + success() + b"\n\n", Retry, "malformed_answer"),
    "nothing": (200, b"", Retry, "malformed_answer"),
    "a web page": (200, b"<html>", Retry, "malformed_answer"),
    "half of it": (200, success()[:40], Retry, "malformed_answer"),
    "ids that are none": (200, success(cast(Any, ["a"])), Retry, "malformed_answer"),
    "too long for the context": (400, nested("The input (3000 tokens) is longer than the model's context length "
                                             "(2048 tokens)."), Reject, "too_long"),
    "too long with its answer": (400, nested("Requested token count exceeds the model's maximum context length"),
                                 Reject, "too_long"),
    "a bad parameter": (400, nested("top_p must be in (0, 1], got 7"), Reject, "bad_request"),
    "a repeated rid": (400, nested("Duplicate request ID detected: x"), Retry, "duplicate_rid"),
    "thought gone": (400, nested("Request is disconnected from the client side"), Retry, "disconnected"),
    "a broken contract": (400, b'{"error": "unknown field `max_tokens`"}', RunFault, "request"),
    "a broken body": (400, openai("1 validation error", 400), RunFault, "request"),
    "no key": (401, b'{"error": "Unauthorized"}', RunFault, "key"),
    "a wrong key": (403, b'{"error": "Forbidden"}', RunFault, "key"),
    "no such path": (404, b'{"detail": "Not Found"}', RunFault, "request"),
    "no such method": (405, b'{"detail": "Method Not Allowed"}', RunFault, "request"),
    "a full queue": (503, openai("The request queue is full.", 503), ServerFault, "busy"),
    "preempted": (503, openai("aborted by a higher priority request.", 503), ServerFault, "busy"),
    "waited too long": (503, openai("Request waiting timeout reached.", 503), ServerFault, "busy"),
    "ran too long": (503, openai("Request running timeout reached.", 503), ServerFault, "busy"),
    "still loading": (503, b"", ServerFault, "busy"),
    "a proxy's limit": (429, b"slow down", ServerFault, "busy"),
    "a proxy without a server": (502, b"Bad Gateway", ServerFault, "busy"),
    "a proxy's time-out": (504, b"", ServerFault, "busy"),
    "a crash inside": (500, b"Internal Server Error", Retry, "server_error"),
    "something new": (418, b"", Retry, "server_error"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_ACCEPTED)
def test_everything_else_is_sorted_once(name: str) -> None:
    status, body, kind, reason = NOT_ACCEPTED[name]
    outcome = sort_answer(status, body)
    assert type(outcome) is kind
    assert not isinstance(outcome, Accept) and outcome.reason == reason
    assert outcome.detail and "\n" not in outcome.detail and len(outcome.detail) < 700


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("refused", ServerFault("refused", "why")),
        ("timeout", Retry("timeout", "why")),
        ("broke", ServerFault("broke", "why", broke=True)),
    ],
)
def test_a_broken_connection_is_the_servers_fault_and_may_be_the_prompts_when_cut_in_flight(
    kind: Any, outcome: outcomes.Outcome
) -> None:
    assert sort_broken(Broken(kind, "why")) == outcome


def test_what_was_generated_in_vain_is_counted() -> None:
    aborted = sort_answer(200, success({"type": "abort", "message": "Aborted"}, ids=[1, 2, 3]))
    assert isinstance(aborted, Retry) and aborted.wasted == 3
    nan = sort_answer(200, success({"type": "stop", "matched": "NaN happened"}, ids=[1] * 9))
    assert isinstance(nan, Retry) and nan.wasted == 9
    wrong = sort_answer(200, success(ids=[1, 2], tokens=7))
    assert isinstance(wrong, Retry) and wrong.wasted == 7


def recordings() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(CAPTURES.glob("*.json")):
        capture = json.loads(path.read_text())
        if "request" in capture and capture["request"]["url"].endswith("/generate"):
            found[path.stem] = capture
    return found


def body_of(capture: dict[str, Any]) -> bytes:
    text = capture["body_text"] if capture["body_json"] is None else json.dumps(capture["body_json"])
    return text.encode("utf-8", "surrogatepass")


# What curl says of a connection that broke, in the client's words.
CURL = {7: "refused", 18: "broke", 28: "timeout", 52: "broke", 56: "broke"}


def expected(capture: dict[str, Any]) -> type:
    """What the recorded answer means, told from its status and shape alone."""
    status, body = capture["status"], capture["body_json"]
    if status == 200:
        if not isinstance(body, dict):
            return Retry  # batches and streams are never asked for
        fields = cast(dict[str, Any], body)
        reason, tokens = fields["meta_info"]["finish_reason"], fields["meta_info"]["completion_tokens"]
        return Accept if reason["type"] in ("stop", "length") and tokens else Retry
    if status == 400:
        error: Any = body.get("error")
        if not isinstance(error, dict):
            return RunFault
        return Retry if "Duplicate" in str(cast(dict[str, Any], error)["message"]) else Reject
    return {401: RunFault, 405: RunFault, 500: Retry, 503: ServerFault}[status]


def test_every_recorded_answer_is_sorted_as_it_should_be() -> None:
    captures = recordings()
    if not captures:
        pytest.skip(f"there are no recordings in {CAPTURES}")
    for name, capture in captures.items():
        if capture["status"] == 0:
            outcome = sort_broken(Broken(cast(Any, CURL[capture["curl_exit"]]), "why"))
            assert isinstance(outcome, ServerFault | Retry), name
            continue
        outcome = sort_answer(capture["status"], body_of(capture))
        assert type(outcome) is expected(capture), f"{name}: {outcome}"
        if not isinstance(outcome, Accept):
            assert outcome.detail and "\n" not in outcome.detail, name
        else:
            meta = outcome.answer.meta_info
            assert outcome.answer.output_ids and len(outcome.answer.output_ids) == meta.completion_tokens, name


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("abortq_queued", Retry, "aborted"),
        ("pause_target", Retry, "aborted"),
        ("promptlen_2042", Reject, "too_long"),
        ("promptlen_70000", Reject, "too_long"),
        ("maxnew_3000", Reject, "too_long"),
        ("smallkv_info_prompt_800", Reject, "too_long"),
        ("badsp_top_p_2", Reject, "bad_request"),
        ("badsp_max_tokens_alias", RunFault, "request"),
        ("dup_rid_second", Retry, "duplicate_rid"),
        ("overload_rejected", ServerFault, "busy"),
        ("timeout_running", ServerFault, "busy"),
        ("apikey_wrong", RunFault, "key"),
        ("maxnew_0", Retry, "wrong_ids"),
    ],
)
def test_recorded_answers_that_matter_most(name: str, kind: type, reason: str) -> None:
    capture = recordings().get(name)
    if capture is None:
        pytest.skip(f"there is no recording {CAPTURES / name}.json")
    outcome = sort_answer(capture["status"], body_of(capture))
    assert type(outcome) is kind
    assert not isinstance(outcome, Accept) and outcome.reason == reason
