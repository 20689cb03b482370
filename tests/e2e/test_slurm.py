"""deploy/slurm/tokenmill.sbatch run for real: simulated servers in SGLang's place, signals as Slurm sends them."""

import json
import sys
from collections import Counter
from dataclasses import dataclass
from signal import SIGTERM

from tests.deploy_support import DEPLOY, own_address
from tests.e2e_support import (
    HELD_TOKENS,
    TOKENIZER,
    Job,
    RedisServer,
    Running,
    SimulatedServer,
    processes_of,
    prompts,
    wait_for,
)  # fmt: skip

SPEED = 200
SLOTS = 3
PORTS = (30000, 30001)


@dataclass
class Node:
    """One node's job: the batch script, and the servers that it starts."""

    script: Running
    servers: list[SimulatedServer]
    urls: list[str]


def start_node(job: Job, gpus: int, **settings: str) -> Node:
    """A node with so many GPUs, one server on each and one worker for each server."""
    config = job.folder / "simulator.json"
    lengths = {"*": {"shape": "constant", "mean": HELD_TOKENS}}
    config.write_text(json.dumps({"tokenizer": str(TOKENIZER), "time_scale": SPEED, "lengths": lengths}))
    address = own_address(*PORTS)
    tokenmill = f"{sys.executable} -m tokenmill"
    script = job.start_command(
        [str(DEPLOY / "slurm" / "tokenmill.sbatch"), str(job.file), "simulated"],
        TOKENMILL_COMMAND=tokenmill,
        TOKENMILL_SGLANG_COMMAND=f"{tokenmill} sim --config {config}",
        TOKENMILL_WORKERS_PER_SERVER="1",
        **{"SLURMD_NODENAME": address, "SLURM_GPUS_ON_NODE": str(gpus), **settings},
    )
    urls = [f"http://{address}:{port}" for port in PORTS[:gpus]]
    wait_for("its servers to serve", lambda: all(f"listening on {url}" in script.text for url in urls))
    servers = [SimulatedServer(url, SPEED) for url in urls]
    for server in servers:
        server.hold()
    return Node(script, servers, urls)


def held_on(redis_server: RedisServer, job: Job, workers: int) -> Counter[str]:
    """Waits until so many workers have their slots filled."""

    def holders() -> Counter[str] | None:
        found = redis_server.holders(*job.names)
        return found if len(found) == workers and set(found.values()) == {SLOTS} else None

    found = wait_for(f"{workers} workers with {SLOTS} jobs each", holders)
    assert found is not None
    return found


def test_nodes_join_drain_before_their_time_is_over_and_lose_nothing(job: Job, redis_server: RedisServer) -> None:
    job.dataset("A1", prompts("A1", 40), max_tokens="none")
    job.tables["sglang"]["concurrency"] = SLOTS
    job.write()
    collect, push = job.start("collect"), job.start("push")
    patient = start_node(job, 2)
    held_on(redis_server, job, 2)
    hasty = start_node(job, 1, TOKENMILL_DRAIN_S="0")
    held_on(redis_server, job, 3)

    # To the batch script alone, as --signal=B:TERM@… does.
    hasty.script.send(SIGTERM)
    assert hasty.script.ended() == 0, hasty.script.text
    assert "the rest is given back" in hasty.script.text
    held_on(redis_server, job, 2)
    assert redis_server.spent("A1") == 0

    patient.script.send(SIGTERM)
    wait_for("both workers to drain", lambda: patient.script.text.count("draining: 3 requests in flight") == 2)
    for server in patient.servers:
        server.let_go()
    assert patient.script.ended() == 0, patient.script.text
    assert not redis_server.holders("A1")
    assert redis_server.spent("A1") == 2 * SLOTS * HELD_TOKENS, "all in flight finished, nothing more"
    left = [pid for pid in processes_of(job.folder) if pid not in (collect.process.pid, push.process.pid)]
    assert left == [], "servers and workers have ended with the script"

    last = start_node(job, 1)
    for server in last.servers:
        server.let_go()
    job.finish(last.script, collect, push)
    job.check_all_answered()
    assert {line["server"] for line in job.lines("A1")} <= {*patient.urls, *last.urls}


def test_the_script_says_what_it_needs(job: Job) -> None:
    script = str(DEPLOY / "slurm" / "tokenmill.sbatch")
    for arguments, missing in (((), "the run file is missing"), ((str(job.file),), "the model is missing")):
        running = job.start_command([script, *arguments])
        assert running.ended() != 0 and missing in running.text
    too_few = {"TOKENMILL_GPUS": "2", "TOKENMILL_GPUS_PER_SERVER": "4", "TOKENMILL_REDIS_URL": "redis://nowhere"}
    running = job.start_command([script, str(job.file), "model"], **too_few)
    assert running.ended() == 2 and "there are 2: no server can be started" in running.text
