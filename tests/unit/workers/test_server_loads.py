"""What a server or a proxy answers when it is asked for its loads: only looked at, so nothing in it can be wrong."""

import asyncio
from typing import Any, cast

import pytest

from workers.servers import Server, Servers
from workers.sglang import Client


class _Answers:
    """Stands for the HTTP client."""

    def __init__(self, loads: dict[str, Any]) -> None:
        self._loads = loads

    async def get(self, server: str, path: str) -> tuple[int, dict[str, Any]]:
        return 200, self._loads


def measured(loads: dict[str, Any]) -> tuple[int, int, float]:
    servers = Servers(cast(Client, _Answers(loads)), ["http://s"], 1.0, lambda: None)
    server: Server = servers.all[0]
    asyncio.run(servers.measure(server))
    return server.running, server.waiting, server.throughput


def test_ranks_are_summed_up() -> None:
    rank = {"num_running_reqs": 3, "num_waiting_reqs": 2, "gen_throughput": 10.5, "dp_rank": 0}
    assert measured({"loads": [rank, {**rank, "gen_throughput": None}]}) == (6, 4, 10.5)


@pytest.mark.parametrize(
    "loads", [{}, {"loads": None}, {"loads": ["busy"]}, {"loads": 3}, {"loads": [{"num_running_reqs": "?"}]}]
)
def test_what_is_understood_otherwise_counts_as_none(loads: dict[str, Any]) -> None:
    assert measured(loads) == (0, 0, 0.0)
