"""Faults over real connections: what a client sees of each, and what the server counts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web

from workers.simulator.config import SimulatorConfig
from workers.simulator.faults import Fault
from workers.simulator.lengths import LengthSpec
from workers.simulator.replies import broken_body, without_client
from workers.simulator.server import Simulator

LENGTH = 20
CONFIG = SimulatorConfig(
    lengths={"*": LengthSpec(shape="constant", mean=LENGTH)}, time_scale=200.0, crash_s=20.0, vocab_size=2048
)


class Client:
    """Requests to one simulator, each on a connection of its own."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    async def get(self, path: str) -> int:
        async with self.session.get(self.simulator.url + path) as response:
            await response.read()
            return response.status

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        async with self.session.post(self.simulator.url + path, json=body) as response:
            return response.status, await response.read()

    async def generate(self, ids: list[int] | None = None, **body: Any) -> tuple[int, bytes]:
        return await self.post("/generate", {"input_ids": ids or [5, 6], **body})

    async def answer(self, ids: list[int] | None = None) -> dict[str, Any]:
        status, body = await self.generate(ids)
        assert status == 200
        return cast(dict[str, Any], json.loads(body))


def _run(scene: Callable[[Client], Awaitable[None]], *faults: Fault, **changes: Any) -> None:
    async def main() -> None:
        config = msgspec.structs.replace(CONFIG, faults=list(faults), **changes)
        async with Simulator(config) as simulator:
            client = Client(simulator)
            try:
                await scene(client)
            finally:
                await client.session.close()

    asyncio.run(main())


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the server is asked, it does not call
            await asyncio.sleep(0.005)


def _counts(client: Client) -> tuple[int, ...]:
    state = client.simulator.state
    return tuple(cast(int, state[name]) for name in ("served", "aborted", "failed", "generated_tokens"))


@pytest.mark.parametrize(
    ("mode", "tokens"), [("reset_before_headers", 0), ("reset_after_headers", LENGTH), ("cut_body", LENGTH)]
)
def test_a_broken_connection(mode: Any, tokens: int) -> None:
    async def scene(client: Client) -> None:
        with pytest.raises(aiohttp.ClientError):
            await client.generate()
        await client.answer()
        assert _counts(client) == (1, 0, int(tokens > 0), LENGTH + tokens)

    _run(scene, Fault(mode=mode, count=1))


def test_a_broken_stream() -> None:
    async def scene(client: Client) -> None:
        with pytest.raises(aiohttp.ClientError):
            await client.generate(stream=True)
        status, body = await client.generate(stream=True)
        assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)

    _run(scene, Fault(mode="cut_body", count=1))


def test_a_full_queue_and_an_error_without_a_reason() -> None:
    async def scene(client: Client) -> None:
        assert (await client.generate())[0] == 503
        assert await client.generate() == (500, b"Internal Server Error")
        assert _counts(client) == (0, 0, 0, 0)

    _run(scene, Fault(mode="unavailable", count=1), Fault(mode="error", count=1))


def test_answers_that_look_like_success_and_are_none() -> None:
    async def scene(client: Client) -> None:
        whole = await client.answer()
        assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
        faults = [Fault(mode=mode, count=1) for mode in ("abort", "nan", "wrong_ids", "missing_ids")]
        status, _ = await client.post("/simulator/faults", {"faults": msgspec.to_builtins(faults)})
        assert status == 200
        aborted = await client.answer()
        assert aborted["meta_info"]["finish_reason"]["type"] == "abort"
        assert aborted["output_ids"] == whole["output_ids"][: LENGTH // 2]
        broken = await client.answer()
        assert broken["meta_info"]["finish_reason"] == {"type": "stop", "matched": "NaN happened"}
        short = await client.answer()
        assert len(short["output_ids"]) == short["meta_info"]["completion_tokens"] - 1
        assert "output_ids" not in await client.answer()
        assert _counts(client) == (1, 1, 3, 4 * LENGTH + LENGTH // 2)

    _run(scene)


def test_a_drip_comes_byte_by_byte_and_whole() -> None:
    async def scene(client: Client) -> None:
        assert len((await client.answer())["output_ids"]) == LENGTH

    _run(scene, Fault(mode="drip", seconds=0.0001))


@pytest.mark.parametrize("mode", ["drip", "cut_body", "reset_after_headers"])
def test_a_client_that_leaves_as_its_answer_breaks_is_no_error(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return await broken_body(request, web.json_response({}), mode, 0.0)

    async def main() -> None:
        app = web.Application(middlewares=[without_client])
        app.router.add_get("/", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.ClientError):
                    await session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        finally:
            await runner.cleanup()

    asyncio.run(main())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_hanging_request_is_let_go_with_its_client() -> None:
    async def scene(client: Client) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.generate([9]), 0.2)
        await client.answer([8])

    _run(scene, Fault(mode="hang", token=9))


def test_a_client_that_leaves_aborts_its_request() -> None:
    async def scene(client: Client) -> None:
        flight = asyncio.create_task(client.generate())
        await _until(lambda: client.simulator.in_flight == 1)
        flight.cancel()
        await _until(lambda: client.simulator.in_flight == 0)
        assert _counts(client)[:3] == (0, 1, 0)

    _run(scene, time_scale=0.01)


def test_a_dead_server_is_healthy_and_silent() -> None:
    async def scene(client: Client) -> None:
        flight = asyncio.create_task(client.generate([1, 2]))
        await _until(lambda: client.simulator.in_flight == 1)
        await client.post("/simulator/faults", {"faults": [{"mode": "dead"}]})
        assert await client.get("/health") == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.generate(), 0.2)
        assert not flight.done()
        await client.post("/simulator/faults", {"faults": []})
        assert (await flight)[0] == 200

    _run(scene, time_scale=1.0, health_s=0.0)


def test_a_server_that_refuses_comes_back_on_its_port() -> None:
    async def scene(client: Client) -> None:
        url = client.simulator.url
        await client.post("/simulator/faults", {"faults": [{"mode": "refuse", "seconds": 0.3}]})
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.get("/ready")
        async with asyncio.timeout(60):
            while True:
                try:
                    assert await client.get("/ready") == 200
                    break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.02)
        assert client.simulator.url == url

    _run(scene)


def test_a_server_that_starts_slowly_is_unavailable_until_it_is_up() -> None:
    async def scene(client: Client) -> None:
        assert (await client.get("/ready"), await client.get("/health"), (await client.generate())[0]) == (503,) * 3
        await client.post("/simulator/faults", {"faults": []})
        assert (await client.get("/ready"), await client.get("/health"), (await client.generate())[0]) == (200,) * 3

    _run(scene, Fault(mode="slow_start"))


def test_a_poisonous_prompt_takes_everybody_with_it() -> None:
    async def scene(client: Client) -> None:
        innocent = asyncio.create_task(client.generate([1]))
        await _until(lambda: client.simulator.in_flight == 1)
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.generate([9])
        with pytest.raises(aiohttp.ClientConnectionError):
            await innocent
        assert client.simulator.crashed.is_set()
        await _until(lambda: _counts(client)[2] == 1)

    _run(scene, Fault(mode="crash", token=9), time_scale=1.0, crash_s=0.2)


def test_faults_that_are_none_are_refused() -> None:
    async def scene(client: Client) -> None:
        bodies: list[Any] = [{"faults": [{"mode": "tired"}]}, {"faults": [{"mode": "nan", "probability": 2}]}, {}, []]
        for body in bodies:
            assert (await client.post("/simulator/faults", body))[0] == 400

    _run(scene)
