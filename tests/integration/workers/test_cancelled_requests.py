"""Requests that are given up in any state cost the client nothing that it needs for the next ones."""

import asyncio
import contextlib
import random

import msgspec

from workers.sglang import Client
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.server import Simulator

CANCELS, AT_ONCE = 3000, 64


def test_thousands_of_cancelled_requests_and_then_a_hundred_good_ones() -> None:
    draw = random.Random(0)

    async def run() -> None:
        config = SimulatorConfig(time_scale=200, lengths={"*": LengthSpec(shape="constant", mean=30)}, vocab_size=2048)
        async with Simulator(config) as simulator:
            client = Client(None, 30)
            body = msgspec.json.encode({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 40}})
            gate = asyncio.Semaphore(AT_ONCE)
            cancelled = 0

            async def cancel_one() -> None:
                nonlocal cancelled
                async with gate:
                    task = asyncio.create_task(client.generate(simulator.url, body))
                    await asyncio.sleep(draw.uniform(0, 0.03))
                    cancelled += task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

            await asyncio.gather(*(cancel_one() for _ in range(CANCELS)))
            assert cancelled > CANCELS / 10, "the requests were given up in flight"
            answers = await asyncio.gather(*(client.generate(simulator.url, body) for _ in range(100)))
            assert [status for status, _ in answers] == [200] * 100
            await client.close()

    asyncio.run(run())
