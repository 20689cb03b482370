"""What an answer of SGLang means: the one place that sorts outcomes.

An answer is accepted only if it is HTTP 200, its finish reason is `stop` or `length`, its token ids
are as many as it says and at least one, and it is not the NaN trap (a stop that matched "NaN
happened", which looks like success). Everything else is one of: this prompt can never work (Reject),
it may work next time (Retry), the server is at fault and the prompt is charged nothing (ServerFault),
or the run is wrong and no prompt can work (RunFault).
"""

import json
from typing import Any, Literal, cast

import msgspec

from workers.sglang import Broken, json_object

NAN = "NaN happened"


class FinishReason(msgspec.Struct, frozen=True):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class MetaInfo(msgspec.Struct, frozen=True):
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    weight_version: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """The part of a /generate answer that is kept."""

    meta_info: MetaInfo
    output_ids: list[int] | None = None
    text: str = ""


class Accept(msgspec.Struct, frozen=True):
    answer: Answer

    @property
    def truncated(self) -> bool:
        """Cut at max_new_tokens or at the context's end."""
        reason = self.answer.meta_info.finish_reason
        return reason is not None and reason.type == "length"


class Reject(msgspec.Struct, frozen=True):
    reason: str
    detail: str
    wasted: int = 0


class Retry(msgspec.Struct, frozen=True):
    reason: str
    detail: str
    wasted: int = 0


class ServerFault(msgspec.Struct, frozen=True):
    """`broke`: it was cut in flight, which may have been this prompt's doing; `beside`: a suspect was there too."""

    reason: str
    detail: str
    wasted: int = 0
    broke: bool = False
    beside: bool = False


class RunFault(msgspec.Struct, frozen=True):
    reason: Literal["key", "request"]
    detail: str


Outcome = Accept | Reject | Retry | ServerFault | RunFault

_decoder = msgspec.json.Decoder(Answer)


def _decode(body: bytes) -> Answer | None:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:  # lone surrogates, which msgspec refuses
        return msgspec.convert(json.loads(body), Answer)
    except (ValueError, msgspec.ValidationError):
        return None


def message_of(body: bytes) -> str:
    """The message in an error of any of SGLang's five shapes, shortened; the plain text where it is none."""
    fields = json_object(body)
    error: Any = fields.get("error")
    if isinstance(error, dict):
        error = cast(dict[str, Any], error).get("message")
    found: Any = error or fields.get("message") or fields.get("detail")
    if found:
        return _one_line(str(found).split("\n\n")[0])[:500]
    return _one_line(body[:300].decode("utf-8", "replace")) or "an empty body"


def _one_line(text: str) -> str:
    """It becomes part of a sentence in logs and in rejected.jsonl."""
    return " ".join(text.split())


def sort_answer(status: int, body: bytes) -> Outcome:
    """What an HTTP answer to one /generate request of one prompt means."""
    if status == 200:
        return _sort_success(body)
    message = message_of(body)
    if status in (401, 403):
        return RunFault("key", message)
    if status == 400:
        return _sort_bad_request(body, message)
    if status == 503:
        return ServerFault("busy", message)
    if status in (404, 405):
        return RunFault("request", f"it answers HTTP {status} to /generate ({message}): it is no SGLang server")
    if status in (408, 429, 502, 504):
        return ServerFault("busy", f"HTTP {status}: {message}")
    return Retry("server_error", f"HTTP {status}: {message}")


def _sort_bad_request(body: bytes, message: str) -> Outcome:
    """A 400 names the prompt, unless its shape says that the request itself breaks SGLang's contract."""
    lowered = message.lower()
    if "duplicate request id" in lowered:
        return Retry("duplicate_rid", message)
    if "disconnected from the client" in lowered:
        return Retry("disconnected", message)
    fields = json_object(body)
    if isinstance(fields.get("error"), str) or fields.get("object") == "error":
        return RunFault("request", message)
    if "token" in lowered and ("long" in lowered or "exceed" in lowered):
        return Reject("too_long", message)
    return Reject("bad_request", message)


def _sort_success(body: bytes) -> Outcome:
    answer = _decode(body)
    reason = None if answer is None else answer.meta_info.finish_reason
    if answer is None or reason is None:
        return Retry(
            "malformed_answer", f"the answer is not as SGLang's: {_one_line(body[:200].decode('utf-8', 'replace'))}"
        )
    meta = answer.meta_info
    ids = answer.output_ids
    wasted = max(len(ids or ()), meta.completion_tokens)
    if reason.type == "abort":
        detail = reason.message or "aborted"
        if reason.status_code is None:  # by hand, or a pause: this prompt's own if it happens every time
            return Retry("aborted", detail, wasted)
        if 400 <= reason.status_code < 500 and reason.status_code != 429:
            return Reject("bad_request", detail, wasted)
        return ServerFault("busy", detail, wasted)
    if reason.type not in ("stop", "length"):
        return Retry("unknown_finish", f"finish reason {reason.type!r}", wasted)
    if reason.matched == NAN:
        return Retry("nan", "the server's numerics failed (NaN happened)", wasted)
    if ids is None:
        return RunFault("request", "it returns no output_ids: start it without options that leave them out")
    if len(ids) != meta.completion_tokens or not ids:
        detail = f"{len(ids)} output_ids for {meta.completion_tokens} completion tokens"
        return Retry("wrong_ids", detail, wasted)
    return Accept(answer)


def sort_broken(broken: Broken) -> Outcome:
    """What it means that no whole answer came back."""
    if broken.kind == "refused":
        return ServerFault("refused", broken.detail)
    if broken.kind == "timeout":
        return Retry("timeout", broken.detail or "no answer within the time allowed")
    return ServerFault("broke", broken.detail, broke=True)
