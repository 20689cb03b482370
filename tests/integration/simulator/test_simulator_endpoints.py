"""What a client of the simulator can rely on beside single answers: load, limits, keys, samples."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.server import Simulator

Call = Callable[..., Awaitable[tuple[int, Any]]]


def run_scene(scene: Callable[[Simulator, Call], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        base = SimulatorConfig(lengths={"*": LengthSpec(shape="constant", mean=50)})
        config = msgspec.structs.replace(base, **settings)
        connector = aiohttp.TCPConnector(limit=0)
        async with Simulator(config) as simulator, aiohttp.ClientSession(connector=connector) as session:

            async def call(path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
                method = "GET" if body is None else "POST"
                async with session.request(method, simulator.url + path, json=body, headers=headers) as response:
                    raw = await response.read()
                    return response.status, json.loads(raw) if response.content_type.endswith("json") else raw

            await scene(simulator, call)

    asyncio.run(main())


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the server is asked, it does not call
            await asyncio.sleep(0.005)


def test_the_load_shows_slots_and_queue() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        flights = [asyncio.ensure_future(call("/generate", {"input_ids": [n]})) for n in range(5)]
        await _until(lambda: simulator.in_flight == 5)
        _, body = await call("/v1/loads?include=core")
        load = body["loads"][0]
        assert (load["num_running_reqs"], load["num_waiting_reqs"], load["max_running_requests"]) == (2, 3, 2)
        assert "memory" not in load
        _, metrics = await call("/metrics")
        assert b'sglang:num_queue_reqs{model_name="simulated"} 3' in metrics
        assert (await call("/flush_cache", {}))[0] == 400
        await call("/abort_request", {"abort_all": True})
        answers = [(await flight)[1] for flight in flights]
        reasons = [answer["meta_info"]["finish_reason"]["message"] for answer in answers]
        assert reasons == ["Aborted"] * 2 + ["Abort in waiting queue"] * 3
        assert simulator.state["peak_in_flight"] == 5
        assert (await call("/flush_cache", {}))[0] == 200

    run_scene(scene, max_running_requests=2, time_scale=0.01)


def test_a_thousand_requests_in_flight_are_answered_once_each() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        answers = await asyncio.gather(*(call("/generate", {"input_ids": [n], "rid": f"{n:04}"}) for n in range(1000)))
        assert [body["meta_info"]["id"] for _, body in answers] == [f"{n:04}" for n in range(1000)]
        state = simulator.state
        assert (state["served"], state["generated_tokens"], state["running"], state["waiting"]) == (1000, 50_000, 0, 0)

    run_scene(scene, time_scale=100.0)


def test_samples_of_one_request_differ_and_a_seed_repeats_them() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        async def ids(**params: Any) -> list[list[int]]:
            _, body = await call("/generate", {"input_ids": [1, 2], "sampling_params": params})
            answers: list[Any] = body if "n" in params else [body]
            return [answer["output_ids"] for answer in answers]

        one, two = await ids(n=2)
        assert one != two
        assert await ids() == [one]
        assert await ids(sampling_seed=5) == await ids(sampling_seed=5) != [one]

    run_scene(scene, time_scale=1000.0)


def test_the_prompts_ids_come_back_when_asked_for() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        _, body = await call("/generate", {"input_ids": [1, 2], "return_prompt_token_ids": True})
        assert body["prompt_token_ids"] == [1, 2]

    run_scene(scene, time_scale=1000.0)


def test_a_key_is_asked_for_everywhere_but_where_probes_go() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        assert (await call("/generate", {"input_ids": [1]}))[0] == 401
        assert (await call("/nowhere"))[0] == 401
        assert (await call("/generate", {"input_ids": [1]}, Authorization="Bearer wrong"))[0] == 401
        for path in ("/health", "/health_generate", "/ready", "/metrics"):
            assert (await call(path))[0] == 200
        assert (await call("/generate", {"input_ids": [1]}, Authorization="Bearer right"))[0] == 200

    run_scene(scene, api_key="right", time_scale=1000.0)


def test_a_slowed_server_is_slower_by_its_own_count() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        assert await call("/slow_down", {"forward_sleep_time": 9.99}) == (200, None)
        _, body = await call("/generate", {"input_ids": [1]})
        meta = body["meta_info"]
        # 9.99 + 0.01 s a token, a thousand times as fast.
        assert round(meta["decode_throughput"]) == 100

    run_scene(scene, time_scale=1000.0)
