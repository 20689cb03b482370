"""The simulated server against recorded answers of a real SGLang 0.5.23.

Each recorded request is sent to a simulator set up like the recorded server; status, shape (keys and
JSON types, all the way down) and the words of errors must agree. What an answer says is the model's, so
lengths and reasons are compared only where the request fixes them. The recordings are not part of the
repository: without them these tests are skipped.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.server import Simulator

EXAMPLE = str(Path(__file__).resolve().parents[3] / "examples" / "tokenizer")
CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "sglang-captures"
PREFIXES = (
    "abort", "apikey_", "badsp_", "both_text", "body_", "continue_", "custom_lp", "dup_", "gen_",
    "hidden_states", "ids_", "info_", "lora_", "maxnew_", "miss_", "not_found", "oai_chat",
    "overload_", "pause", "promptlen_", "rid_", "slow_down", "stream_str", "text_", "unknown_field",
)  # fmt: skip
OUT_OF_SCOPE = {
    "badsp_regex_bad": "the words are those of the grammar compiler; status and shape are tested apart",
    "body_24MB": "27 s in the real server; the rule is that of promptlen_70000",
    "info_metrics": "Prometheus series of a real engine",
    "apikey_none_GET_metrics": "Prometheus series of a real engine",
    "info_openapi": "FastAPI's own document",
    "apikey_ok_admin_update_weights_from_disk": "there are no weights",
    "oai_chat_too_long": "its body was not kept whole; test_simulator_completions has such a one",
    "overload_rejected_chat": "the other ones of its scene have no tokenizer; test_simulator_completions has it",
    "gen_logprob": "log probabilities are not simulated",
    "gen_logprob_full": "log probabilities are not simulated",
    "gen_logprob_start_too_big": "log probabilities are not simulated",
    "gen_logprob_temp07_topp": "log probabilities are not simulated",
    "gen_logprob_temp1": "log probabilities are not simulated",
    "gen_logprob_token_ids": "log probabilities are not simulated",
    "gen_stream_logprob": "log probabilities are not simulated",
    "gen_stop_list_no_trim": "where the stop string comes is the model's; unit tests have their own",
    "gen_stop_regex": "where the expression matches is the model's; unit tests have their own",
    "gen_stop_string": "where the stop string comes is the model's; unit tests have their own",
    "gen_stop_token_ids": "where the stop token comes is the model's; unit tests have their own",
    "paused_generate": "its client gave up; test_a_paused_server_answers_nothing has it",
    "paused_health": "20 s in the real server; test_a_paused_server_answers_nothing has it",
    "paused_health_generate": "its client gave up; test_a_paused_server_answers_nothing has it",
}
KILLERS = ("ids_empty_in_list", "ids_negative", "ids_oov", "text_empty")
# (configuration's changes, requests in flight, what is then sent, which of the requests it ends early)
SCENES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "abort": ({}, ["abort_target_nonstream"], ["abort_running"]),
    "abort a stream": ({}, ["abort_target_stream"], ["abort_running_stream"]),
    "abort by prefix": ({}, ["abort_prefix_target_job-1", "abort_prefix_target_job-12"], ["abort_prefix"]),
    "abort all": ({}, ["abort_all_target_a", "abort_all_target_b"], ["abort_all"]),
    "abort an empty rid": ({}, ["abort_emptyrid_target"], ["abort_empty_rid"]),
    "abort a batch's member": ({}, ["abort_batch_target"], ["abort_batch_member"]),
    "abort a batch's prefix": ({}, ["abort_batch_prefix_target"], ["abort_batch_prefix"]),
    "abort in the queue": ({"max_running_requests": 1}, ["abortq_running", "abortq_queued"], ["abortq_abort"]),
    "pause": ({}, ["pause_target"], ["pause_generation"]),
    "duplicate rid": ({}, ["dup_rid_first"], ["dup_rid_second"]),
    "overload": (
        {"max_running_requests": 1, "max_queued_requests": 1},
        ["overload_running", "overload_queued"],
        [
            "overload_rejected", "overload_rejected_stream", "overload_rejected_batch", "overload_v1_loads",
            "overload_health",
        ],
    ),
}  # fmt: skip
# Keys of the real answer that the simulated one leaves out, by the capture's prefix and the key's place.
LEFT_OUT = {
    "info_model_info": "embedding: settings of embedding models",
    "info_get_model_info": "embedding: settings of embedding models",
    "info_server_info": "500 settings of a real engine",
    "info_get_server_info": "500 settings of a real engine",
    "apikey_ok_server_info": "500 settings of a real engine",
}

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason=f"no recordings in {CAPTURES}")


def _load(name: str) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((CAPTURES / f"{name}.json").read_text()))


IN_SCENES = {name for _, targets, sent in SCENES.values() for name in (*targets, *sent)}
NAMES = sorted(path.stem for path in CAPTURES.glob("*.json") if path.stem.startswith(PREFIXES))
ALONE = [name for name in NAMES if name not in OUT_OF_SCOPE and name not in KILLERS and name not in IN_SCENES]


def _config(name: str = "", **changes: Any) -> SimulatorConfig:
    base = SimulatorConfig(
        model="tiny-qwen3",
        vocab_size=2048,
        context_length=2048,
        # Longer than any of these requests asks for, as the recorded model is: it stops only where it is made to.
        lengths={"*": LengthSpec(shape="constant", mean=9999)},
        api_key="sekret-123" if name.startswith("apikey_") else None,
        tokenizer=EXAMPLE if name.startswith("oai_chat") else None,
        # A stream's first event must not be its last one.
        time_scale=0.1 if name.startswith("gen_stream") else 200.0,
    )
    return msgspec.structs.replace(base, **changes)


def _whole_body(name: str) -> bytes:
    """The body of a promptlen_ request, of which the recording keeps the beginning."""
    filler = [7] * int("".join(filter(str.isdigit, name.removesuffix("new_100"))) or 3000)
    ids: list[Any] = [[100, 200, 300, 400, 500], filler] if "batch" in name else filler
    new = 100 if name.endswith("new_100") else 4
    params = {"max_new_tokens": new, "temperature": 0}
    return json.dumps({"input_ids": ids, "sampling_params": params, "stream": name.endswith("stream")}).encode()


async def _send(session: aiohttp.ClientSession, url: str, name: str) -> tuple[int, bytes]:
    request = _load(name)["request"]
    path = request["url"].partition("://")[2].partition("/")[2]
    body: Any = request["raw"] if request["raw"] is not None else request["body"]
    data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
    if name.startswith("promptlen_"):
        data = _whole_body(name)
    async with session.request(request["method"], f"{url}/{path}", data=data, headers=request["headers"]) as response:
        return response.status, await response.read()


def _events(body: bytes | str) -> list[Any]:
    text = body.decode() if isinstance(body, bytes) else body
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


def _differences(real: Any, ours: Any, where: str, *, subset: bool = False) -> list[str]:
    """Where keys or JSON types differ."""
    if isinstance(real, dict) and isinstance(ours, dict):
        one, two = cast(dict[str, Any], real), cast(dict[str, Any], ours)
        missing: set[str] = set() if subset else set(one) - set(two)
        found = [f"{where}.{key} is missing" for key in sorted(missing)]
        found += [f"{where}.{key} does not exist in the real one" for key in sorted(set(two) - set(one))]
        for key in sorted(set(one) & set(two)):
            # Nothing is cached in a simulated server: null, as the real one has it for a prompt that it has not seen.
            if key != "cached_tokens_details":
                found += _differences(one[key], two[key], f"{where}.{key}", subset=subset)
        return found
    if isinstance(real, list) and isinstance(ours, list):
        first, second = cast(list[Any], real), cast(list[Any], ours)
        if bool(first) != bool(second):
            return [f"{where} has {len(second)} elements, the real one {len(first)}"]
        return _differences(first[0], second[0], f"{where}[]", subset=subset) if first else []
    same = type(cast(object, real)) is type(cast(object, ours))
    return [] if same else [f"{where} is {ours!r}, the real one {real!r}"]


def _fixed(answer: dict[str, Any], given_ids: bool) -> dict[str, Any]:
    """What the request alone decides of an answer."""
    meta: dict[str, Any] = answer["meta_info"]
    aborted = "abort" in str(meta["finish_reason"])
    return {
        "finish_reason": meta["finish_reason"],
        "completion_tokens": None if aborted else meta["completion_tokens"],
        "ids": None if aborted else len(answer["output_ids"]),
        "prompt_tokens": meta.get("prompt_tokens") if given_ids else None,
        "id": meta["id"] if len(meta["id"]) < 32 else "a uuid",
    }


def _compare(name: str, status: int, body: bytes) -> None:
    capture = _load(name)
    assert status == capture["status"], body[:500]
    real: Any = capture["body_json"]
    given_ids = "text" not in str(capture["request"]["body"])[:20]
    if real is None:
        text = capture["body_text"] or ""
        if text.startswith("data: "):
            real_events, our_events = _events(text), _events(body)
            assert our_events[-1] == real_events[-1] == "[DONE]"
            for at in (0, -2):
                assert _differences(real_events[at], our_events[at], f"event {at}") == []
            if "meta_info" in real_events[-2]:
                assert _fixed(our_events[-2], given_ids) == _fixed(real_events[-2], given_ids)
            elif "usage" not in real_events[-2]:
                assert our_events[-2] == real_events[-2]
        elif capture["request"]["method"] != "HEAD":
            assert body.decode() == text
        return
    ours = json.loads(body)
    assert _differences(real, ours, "body", subset=name in LEFT_OUT) == []
    if isinstance(real, dict) and status != 200:
        assert _words(ours) == _words(cast(dict[str, Any], real))
    for one, two in zip(_answers(real), _answers(ours), strict=True):
        assert _fixed(two, given_ids) == _fixed(one, given_ids)


def _answers(body: Any) -> list[dict[str, Any]]:
    bodies = cast(list[Any], body) if isinstance(body, list) else [body]
    return [answer for answer in bodies if isinstance(answer, dict) and "output_ids" in answer]


def _words(error: dict[str, Any]) -> Any:
    """An error's message: all of it, but for the line of the real server's source, and a JSON parser's words."""
    if error.get("object") != "error":
        return error
    message = str(error["message"]).partition("\n\n  File")[0]
    return message.partition("'ctx'")[0] if "json_invalid" in message else message


async def _until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the server is asked, it does not call
            await asyncio.sleep(0.005)


def _run(config: SimulatorConfig, scene: Callable[[Simulator, aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Simulator(config) as simulator, aiohttp.ClientSession() as session:
            await scene(simulator, session)

    asyncio.run(main())


@pytest.mark.parametrize("name", ALONE or ["none"])
def test_a_recorded_request_is_answered_like_the_real_one(name: str) -> None:
    changes = {"max_running_requests": 1, "max_queued_requests": 1} if name.startswith("overload_batch") else {}

    async def scene(simulator: Simulator, session: aiohttp.ClientSession) -> None:
        _compare(name, *await _send(session, simulator.url, name))

    _run(_config(name, **changes), scene)


@pytest.mark.parametrize("name", SCENES)
def test_a_recorded_scene_goes_like_the_real_one(name: str) -> None:
    changes, targets, sent = SCENES[name]

    async def scene(simulator: Simulator, session: aiohttp.ClientSession) -> None:
        flights: list[asyncio.Task[tuple[int, bytes]]] = []
        for number, target in enumerate(targets, 1):
            flights.append(asyncio.create_task(_send(session, simulator.url, target)))
            await _until(lambda number=number: simulator.in_flight >= number)
        await _until(lambda: cast(int, simulator.state["in_flight_tokens"]) >= 4)
        for other in sent:
            _compare(other, *await _send(session, simulator.url, other))
        for target, flight in zip(targets, flights, strict=True):
            _compare(target, *await flight)

    _run(_config(time_scale=0.5, health_s=0.01, **changes), scene)


@pytest.mark.parametrize("name", KILLERS)
def test_what_kills_the_real_server_kills_the_simulated_one(name: str) -> None:
    async def scene(simulator: Simulator, session: aiohttp.ClientSession) -> None:
        assert _load(name)["status"] == 0
        innocent = asyncio.create_task(_send(session, simulator.url, "maxnew_1900"))
        await _until(lambda: simulator.in_flight == 1)
        for lost in (_send(session, simulator.url, name), innocent):
            with pytest.raises(aiohttp.ClientConnectionError):
                await lost
        assert simulator.crashed.is_set()
        with pytest.raises(aiohttp.ClientConnectionError):
            await _send(session, simulator.url, "info_ready")

    _run(_config(time_scale=1.0, crash_s=0.2), scene)


def test_a_bad_expression_is_refused_in_the_grammars_shape() -> None:
    async def scene(simulator: Simulator, session: aiohttp.ClientSession) -> None:
        status, body = await _send(session, simulator.url, "badsp_regex_bad")
        assert status == 400
        assert json.loads(body)["error"]["message"].startswith("Failed to compile regex grammar: ")

    _run(_config(), scene)


def test_a_paused_server_answers_nothing() -> None:
    async def scene(simulator: Simulator, session: aiohttp.ClientSession) -> None:
        _compare("pause_generation", *await _send(session, simulator.url, "pause_generation"))
        held = asyncio.create_task(_send(session, simulator.url, "paused_generate"))
        await _until(lambda: simulator.in_flight == 1)
        _compare("paused_health", *await _send(session, simulator.url, "paused_health"))
        assert not held.done()
        _compare("continue_generation", *await _send(session, simulator.url, "continue_generation"))
        assert (await held)[0] == 200

    _run(_config(), scene)


def test_every_name_in_these_tables_is_a_recording() -> None:
    named = {*OUT_OF_SCOPE, *KILLERS, *IN_SCENES, *LEFT_OUT}
    assert named - set(NAMES) == set()
