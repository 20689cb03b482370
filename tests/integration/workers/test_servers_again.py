"""A server that went away and came back: the same model is used again, another one is not."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.chat import ChatTokenizer
from workers.contracts import TokenizerFacts
from workers.servers import Server, Servers
from workers.sglang import Client
from workers.simulator.config import SimulatorConfig
from workers.simulator.process import SimulatorProcess

EXAMPLE = Path(__file__).parents[3] / "examples" / "tokenizer"
Start = Callable[..., SimulatorProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[SimulatorProcess] = []

    def one(**settings: object) -> SimulatorProcess:
        started.append(SimulatorProcess.start(SimulatorConfig(**settings)))  # pyright: ignore[reportArgumentType]
        return started[-1]

    yield one
    for child in started:
        child.stop(grace_s=0)


def facts() -> TokenizerFacts:
    chat = ChatTokenizer.load(str(EXAMPLE))
    return TokenizerFacts(vocab_size=chat.vocab_size, probe_text=chat.probe_text, probe_ids=chat.probe_ids)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The same tokenizer, but for the ids of two special tokens."""
    folder = tmp_path / "other"
    shutil.copytree(EXAMPLE, folder)
    file = folder / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    text = text.replace("<|im_start|>", "<|swap|>").replace("<|im_end|>", "<|im_start|>")
    file.write_text(text.replace("<|swap|>", "<|im_end|>"), encoding="utf-8")
    return folder


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it is the server's state that is waited for
            await asyncio.sleep(0.02)


def test_a_server_that_comes_back_is_checked_like_a_new_one(start: Start, other: Path) -> None:
    first = start(tokenizer=str(EXAMPLE))
    port = int(first.url.rpartition(":")[2])
    told = facts()

    async def main() -> None:
        client = Client(None, 10.0)
        came_up = asyncio.Event()
        servers = Servers(client, [first.url], 0.05, came_up.set)
        server = servers.all[0]

        async def check(server: Server) -> str | None:
            return await servers.check(server, told, [{"max_new_tokens": 8}])

        servers.check_again = check
        try:
            assert await check(server) is None
            server.up = True
            first.stop(grace_s=0)
            servers.fault(server, "the connection broke")
            assert (servers.up, servers.choose()) == ([], None)
            await until(lambda: server.reason == "connection refused")
            wrong = start(tokenizer=str(other), port=port)
            await until(lambda: "tokenizes otherwise" in server.reason)
            assert not server.up
            wrong.stop(grace_s=0)
            start(tokenizer=str(EXAMPLE), port=port)
            await came_up.wait()
            assert (server.up, server.reason) == (True, "")
        finally:
            await servers.close()
            await client.close()

    asyncio.run(main())


def test_a_server_that_was_not_there_at_the_start_is_known_when_it_comes(start: Start) -> None:
    """Its context bounds the prompts and its name goes into the records: both must not stay unknown."""
    first = start(context_length=512)
    port = int(first.url.rpartition(":")[2])
    first.stop(grace_s=0)

    async def main() -> None:
        client = Client(None, 10.0)
        came_up = asyncio.Event()
        servers = Servers(client, [first.url], 0.05, came_up.set)
        server = servers.all[0]
        servers.check_again = lambda server: servers.check(server, TokenizerFacts(vocab_size=32_000), [])
        try:
            server.up = True
            servers.fault(server, "connection refused")
            start(context_length=512, port=port)
            await came_up.wait()
            assert server.model is not None
            assert server.model.context_length == 512
        finally:
            await servers.close()
            await client.close()

    asyncio.run(main())
