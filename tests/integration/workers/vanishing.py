"""A request to a server whose machine is gone: no reset, no answer, for ever. Says how it ended, and after how long.

Usage, in a network of its own: unshare -n python -m tests.integration.workers.vanishing
"""

import asyncio
import subprocess
import time

import msgspec

from workers import sglang
from workers.simulator.config import SimulatorConfig
from workers.simulator.server import Simulator

READ_S = 15.0


def link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


async def main() -> None:
    sglang.PROBES = sglang.Probes(after_s=1, every_s=1, tries=2)
    link("up")
    async with Simulator(SimulatorConfig(time_scale=0.001, vocab_size=2048)) as simulator:
        client = sglang.Client(None, READ_S)
        body = msgspec.json.encode({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 100}})
        request = asyncio.create_task(client.generate(simulator.url, body))
        while simulator.state["running"] != 1:  # noqa: ASYNC110 - the server has no event to wait for
            await asyncio.sleep(0.01)
        link("down")
        began = time.monotonic()
        try:
            await request
        except sglang.Broken as broken:
            print(broken.kind, round(time.monotonic() - began, 1), broken.detail)
        await client.close()


if __name__ == "__main__":
    asyncio.run(main())
