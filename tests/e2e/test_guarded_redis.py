"""A whole run on a Redis that is guarded: TLS, certificates on both sides, a user with no more rights than it needs."""

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from budget import redis_rights
from tests.dashboard_support import Dashboard
from tests.e2e_support import HELD_TOKENS, ROOT, Job, found, prompts, wait_for
from tests.job_fixtures import StartSimulator
from tests.redis_support import HOST, Certificates, GuardedRedis

pytestmark = pytest.mark.redis_server

PASSWORD = "s/e#s@me"
TYPED = "s%2Fe%23s%40me"
SLOTS = 4


def documented() -> str:
    """The line of docs/operations.md, for our password."""
    text = (ROOT / "docs" / "operations.md").read_text()
    (line,) = re.findall(r"^user tokenmill on >PASSWORD .*$", text, re.MULTILINE)
    return str(line).replace(">PASSWORD", f">{PASSWORD}")


def listed() -> str:
    """No command with any other keys than `redis_rights` lists it with; a script's keys are of every kind."""
    patterns = dict(redis_rights.NEEDED)
    patterns["rq:*"] += redis_rights.OF_RQ
    # One of these may name keys of several kinds at once.
    several = "(+eval +evalsha +mget +unlink +exists " + " ".join(f"~{pattern}" for pattern in patterns) + ")"
    each = [f"({' '.join(f'+{name}' for name in names)} ~{pattern})" for pattern, names in patterns.items()]
    plain = " ".join(f"+{name}" for name in (*redis_rights.KEYLESS, *redis_rights.WITH_AOF, "discard", "unwatch"))
    channels = "(+publish +subscribe +unsubscribe resetchannels &rq:*)"
    own = f"user tokenmill on >{PASSWORD} resetkeys resetchannels -@all +@connection"
    return " ".join([own, plain, *each, several, channels])


@pytest.fixture(params=[documented])
def guarded(local_job: Job, tmp_path: Path, request: pytest.FixtureRequest) -> Generator[GuardedRedis]:
    """The job's Redis. Nobody but its user may do anything, and only with a certificate."""
    binary = shutil.which("redis-server")
    if binary is None or shutil.which("openssl") is None:
        pytest.skip("no redis-server or no openssl on PATH")
    made = Certificates(tmp_path)
    lines = [*made.settings(made.server), "tls-auth-clients yes", "user default off", "user looker on nopass ~* +@all"]
    server = GuardedRedis(binary, [*lines, request.param()], tls=True)
    files = f"ssl_ca_certs={made.ca}&ssl_certfile={made.client}&ssl_keyfile={made.key(made.client)}"
    local_job.environment["TOKENMILL_REDIS_URL"] = f"rediss://tokenmill:{TYPED}@{HOST}:{server.port}/0?{files}"
    try:
        yield server.start()
    finally:
        local_job.end_all()
        server.remove()


@pytest.mark.parametrize("guarded", [documented, listed], indirect=True)
def test_a_whole_run_by_a_user_with_no_more_rights_than_documented(
    local_job: Job, guarded: GuardedRedis, start_simulator: StartSimulator
) -> None:
    job = local_job
    simulator = start_simulator()
    simulator.hold()
    for name in ("A1", "B2"):
        job.dataset(name, prompts(name, 12), max_tokens="none")
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    run = job.write().start("run")
    looker: Any = guarded.client(username="looker", password="x")

    def in_flight() -> bool:
        return sum(looker.hlen(f"budget:{name}:leases") for name in job.names) == SLOTS

    wait_for("all slots to be in flight", in_flight)
    options = shlex.split(found(r"rq info (.*)", run))
    shown = rq(job, "info", *options)
    assert "1 workers, 2 queues" in shown, shown
    late = job.start("work", "-n", "1")
    wait_for("the second worker", lambda: looker.scard("rq:workers") == 2)
    stock = start_rq(job, "worker", "-S", "json", "-w", "rq.worker.SimpleWorker", *options, "B2",
                     TOKENMILL_SERVERS=simulator.url)  # fmt: skip
    wait_for("the stock worker to hold a job", lambda: looker.zcard("rq:wip:B2") > 0)

    # A worker is listed from its first beat on, which comes after it has registered.
    wait_for("both workers' beats", lambda: len(job.status()["workers"]) >= 2)
    status = job.status()
    assert status["redis"] == re.sub(f":{TYPED}@", ":***@", job.environment["TOKENMILL_REDIS_URL"])
    assert job.call("budget", "set", "A1", "100_000").code == 0
    assert job.call("servers", "drain", simulator.url).code == job.call("servers", "add", simulator.url).code == 0
    dashboard = Dashboard(job)
    assert len(dashboard.state()["datasets"]) == 2
    assert dashboard.act("pause").code == dashboard.act("resume").code == 200

    simulator.let_go()
    assert run.ended() == 0, run.text
    assert late.ended() == 0, late.text
    stock.process.terminate()
    assert stock.ended() == 0, stock.text
    job.check_all_answered()
    assert all(int(looker.get(f"budget:{name}:spent")) == 12 * HELD_TOKENS for name in job.names)
    assert job.call("retry").code == 2, "nothing is rejected, which it finds out by asking"
    assert job.call("reset", "--yes").code == 0
    assert not looker.keys("*")
    denied = [(entry["reason"], entry["object"]) for entry in looker.acl_log()]
    assert not denied, denied


def start_rq(job: Job, *arguments: str, **environment: str) -> Any:
    paths = os.pathsep.join([str(ROOT), job.environment.get("PYTHONPATH", "")])
    return job.start_command([sys.executable, "-m", "rq.cli", *arguments], PYTHONPATH=paths, **environment)


def rq(job: Job, *arguments: str) -> str:
    running = start_rq(job, *arguments)
    assert running.ended() == 0, running.text
    return running.text


def test_a_right_that_is_missing_is_named_with_the_mend(local_job: Job, guarded: GuardedRedis) -> None:
    looker: Any = guarded.client(username="looker", password="x")
    local_job.dataset("A1", prompts("A1", 3))
    looker.execute_command("ACL", "SETUSER", "tokenmill", "-info")
    ended = local_job.write().call("collect")
    assert ended.code == 5, ended.err
    (said,) = ended.said
    assert "info" in said and "docs/operations.md" in said, said
    looker.execute_command("ACL", "SETUSER", "tokenmill", "+info", "-incrby", "-xadd")
    for command in ("run", "doctor"):
        ended = local_job.call(command)
        assert ended.code == (5 if command == "run" else 1), ended.err
        assert "+xadd, " in ended.err + ended.out or "+incrby, +xadd" in ended.err + ended.out, ended.err
    assert not looker.keys("*")
    looker.execute_command("ACL", "SETUSER", "tokenmill", "+incrby", "+xadd", "resetkeys", "~rq:*")
    ended = local_job.call("status")
    assert ended.code == 5, ended.err
    (said,) = ended.said
    assert "keys" in said and "docs/operations.md" in said, said


@pytest.mark.parametrize("taken", ["-xadd", "-incrby"])
def test_a_right_that_is_taken_away_in_flight_ends_the_worker(
    local_job: Job, guarded: GuardedRedis, start_simulator: StartSimulator, taken: str
) -> None:
    looker: Any = guarded.client(username="looker", password="x")
    simulator = start_simulator()
    simulator.hold()
    local_job.dataset("A1", prompts("A1", SLOTS), max_tokens="none")
    local_job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    local_job.write()
    parts = [local_job.start("collect"), local_job.start("push")]
    worker = local_job.start("work")
    wait_for("all slots to be in flight", lambda: looker.hlen("budget:A1:leases") == SLOTS)
    looker.execute_command("ACL", "SETUSER", "tokenmill", taken)
    simulator.let_go()
    assert worker.ended() == 5, worker.text
    assert "does not let this user" in worker.text
    for part in parts:
        part.send(signal.SIGTERM)
        part.ended()


def test_a_right_that_is_taken_away_ends_a_whole_run(
    local_job: Job, guarded: GuardedRedis, start_simulator: StartSimulator
) -> None:
    looker: Any = guarded.client(username="looker", password="x")
    simulator = start_simulator()
    simulator.hold()
    local_job.dataset("A1", prompts("A1", SLOTS), max_tokens="none")
    local_job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    run = local_job.write().start("run")
    wait_for("all slots to be in flight", lambda: looker.hlen("budget:A1:leases") == SLOTS)
    looker.execute_command("ACL", "SETUSER", "tokenmill", "-incrby")
    simulator.let_go()
    assert run.ended() == 5, run.text
    assert "does not let this user" in run.text
