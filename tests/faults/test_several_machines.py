"""One run on several hosts, each with its own address: one is cut off and healed, one joins in the middle."""

import sys
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from tests.e2e_support import Job, RedisServer, Running, found, redis_binary, simulator_config, wait_for
from tests.faults.scenes import LIVELY, NAMES, SLOTS, TOKENS, account, prompts
from tests.machines import Host, Network

COUNT = 110
# An answer lasts some two and a half seconds, so that the run outlasts what is done to it.
SPEED = 0.4
PORT = 6379


class SpreadJob(Job):
    """A job whose commands run on the host that has the output folder."""

    def __init__(self, folder: Path, home: Host) -> None:
        super().__init__(folder)
        self._home = home

    def command(self, name: str, *arguments: str) -> list[str]:
        return self._home.command(super().command(name, *arguments))

    def start_on(self, host: Host, name: str, *arguments: str) -> Running:
        return self.start_command(host.command(super().command(name, *arguments)))


@pytest.fixture
def network() -> Generator[Network]:
    network = Network()
    try:
        yield network
    finally:
        network.close()


@pytest.fixture
def store(network: Network, tmp_path: Path) -> Generator[RedisServer]:
    """The Redis host; the test itself looks into it by its socket."""
    host = network.host("redis")
    server = RedisServer(host.binary(tmp_path, redis_binary()))
    server.url = f"redis://{host.address}:{PORT}/0"
    try:
        yield server.start("--bind", host.address, "--port", str(PORT), "--protected-mode", "no")
    finally:
        server.remove()


@pytest.fixture
def job(network: Network, store: RedisServer, tmp_path: Path) -> Generator[SpreadJob]:
    job = SpreadJob(tmp_path, network.host("files"))
    job.environment["TOKENMILL_REDIS_URL"] = store.url
    try:
        yield job
    finally:
        job.end_all()


def servers_on(job: SpreadJob, host: Host, name: str) -> list[str]:
    """Two simulated servers on that host, as options of `work`, which starts a worker for each."""
    options: list[str] = []
    for number in (1, 2):
        log_path = str(job.folder / f"{name}{number}.log")
        config = simulator_config(job.folder, speed=SPEED, lengths=LIVELY["lengths"], host=host.address)
        config = msgspec.structs.replace(config, log_path=log_path)
        document = msgspec.json.encode(config).decode()
        log = job.start_command(host.command([sys.executable, "-m", "workers.simulator", "--config", document]))
        options += ["--server", found(r"listening on (\S+)", log)]
    return options


def test_a_host_is_cut_off_and_another_joins(network: Network, store: RedisServer, job: SpreadJob) -> None:
    for name in NAMES:
        job.dataset(name, prompts(name, COUNT), max_tokens="none")
    job.tables["sglang"] = {"concurrency": SLOTS // 2}
    job.write()
    hosts = {name: network.host(name) for name in ("w1", "w2", "w3")}
    options = {name: servers_on(job, host, name) for name, host in hosts.items()}

    def work(name: str) -> Running:
        return job.start_on(hosts[name], "work", *options[name])

    def holding() -> set[str]:
        """The hosts whose workers have jobs."""
        servers = {worker: store.client.hget(f"rq:worker:{worker}", "servers") for worker in store.holders(*NAMES)}
        return {name for name in hosts for told in servers.values() if told and told.decode() in options[name]}

    def answered() -> set[str]:
        by = {line["server"] for name in NAMES for line in job.lines(name)}
        return {name for name in hosts if by & set(options[name])}

    # The producer last: whoever is there by then begins together with it.
    parts = [job.start("collect"), work("w1"), work("w2"), job.start("push")]
    wait_for("answers of both", lambda: answered() == {"w1", "w2"})
    hosts["w2"].unplug()
    wait_for("its jobs to be taken back", lambda: holding() == {"w1"})
    parts.append(work("w3"))
    wait_for("the one that joined to be at work", lambda: "w3" in holding())
    hosts["w2"].plug_in()

    job.finish(*parts)
    job.check_all_answered()
    assert all(store.spent(name) == job.tokens(name) for name in NAMES)
    assert not store.holders(*NAMES)
    assert answered() == set(hosts)
    logs = b"".join(path.read_bytes() for path in job.folder.glob("w*.log"))
    (job.folder / "simulator.jsonl").write_bytes(logs)
    cost = account(job)
    # What the one that was cut off had in flight; all of it may be long.
    assert 0 <= cost.again <= SLOTS * TOKENS * 4, f"{cost.again} tokens were generated in vain"
