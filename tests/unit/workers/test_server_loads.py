"""What a server or a proxy answers when it is asked for its loads: only looked at, so nothing in it can be wrong."""

import asyncio
from typing import Any, cast

import pytest

from workers.limits import Loads
from workers.servers import Servers
from workers.sglang import Client


class _Answers:
    """Stands for the HTTP client."""

    def __init__(self, loads: dict[str, Any]) -> None:
        self._loads = loads

    async def get(self, server: str, path: str) -> tuple[int, dict[str, Any]]:
        return 200, self._loads


def measured(loads: dict[str, Any]) -> Loads | None:
    servers = Servers(cast(Client, _Answers(loads)), ["http://s"], 1.0, lambda: None)
    return asyncio.run(servers.measure(servers.all[0]))


def test_ranks_are_summed_up() -> None:
    rank = {"num_running_reqs": 3, "num_waiting_reqs": 2, "gen_throughput": 10.5, "dp_rank": 0}
    told = measured({"loads": [rank, {**rank, "gen_throughput": None}]})
    assert told == Loads(running=6, waiting=4, most=None, throughput=10.5)
    bounded = {**rank, "max_running_requests": 8}
    assert measured({"loads": [bounded, bounded]}) == Loads(running=6, waiting=4, most=16, throughput=21.0)


@pytest.mark.parametrize(
    "loads", [{}, {"loads": None}, {"loads": ["busy"]}, {"loads": 3}, {"loads": [{"num_running_reqs": "?"}]}]
)
def test_what_is_understood_otherwise_is_none(loads: dict[str, Any]) -> None:
    assert measured(loads) is None
