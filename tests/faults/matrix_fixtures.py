"""What a module's cases share, and the cases themselves, ended after their test."""

import itertools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from tests.e2e_support import ROOT, Simulator, simulator_config
from tests.faults.matrix import TOKENS, Case, Rig, Shared
from tests.support import OwnServer, server_binary

StartCase = Callable[..., Rig]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shared]:
    """A Redis where one is installed and a Valkey, and a simulated server that takes 60 ms for an answer."""
    binaries = [binary for kind in ("redis-server", "valkey") if (binary := server_binary(kind)) is not None]
    servers = [OwnServer(binary) for binary in binaries]
    folder = tmp_path_factory.mktemp("simulator")
    simulator = Simulator(folder, simulator_config(folder, tokens=TOKENS, speed=10))
    yield Shared(servers, simulator)
    simulator.stop()
    for server in servers:
        server.close()


_turns = itertools.count()


@pytest.fixture
def start_case(tmp_path: Path, shared: Shared) -> Generator[StartCase]:
    """Start a case on the next server in turn, with the packages in `root`."""
    rigs: list[Rig] = []

    def start(case: Case, root: Path = ROOT, collect: Sequence[str] = ("collect",)) -> Rig:
        folder = tmp_path / f"{case.point}-{case.action}-{len(rigs)}"
        folder.mkdir()
        rig = Rig(folder, shared.servers[next(_turns) % len(shared.servers)], shared, case, root, collect)
        rigs.append(rig)
        return rig

    yield start
    for rig in rigs:
        rig.close()
