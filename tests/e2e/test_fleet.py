"""A fleet of servers in one run: they join, are drained and removed, fail, freeze, and are sent what they can run."""

import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleets import Unavailable, in_flight_at_most, simulator
from tests.e2e_support import Job, RedisServer, Running, Simulator, prompts, wait_for
from workers.contracts import job_id
from workers.simulator.faults import Fault
from workers.simulator.lengths import LengthSpec

Start = Callable[..., Simulator]
MANY = 5000  # more prompts than are ever answered before a test has seen what it waits for


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Starts simulated servers, each with a log of its own."""
    started: list[Simulator] = []

    def one(name: str, **settings: Any) -> Simulator:
        started.append(simulator(tmp_path, name, **settings))
        return started[-1]

    try:
        yield one
    finally:
        for child in started:
            child.stop()


def server_of(job: Job, url: str) -> dict[str, Any]:
    shown: list[dict[str, Any]] = job.status()["servers"]
    return {server["url"]: server for server in shown}.get(url, {})


def servers(job: Job, *words: str) -> str:
    called = job.call("servers", *words)
    assert called.code == 0, called.err
    return called.out


def end(job: Job, *parts: Running) -> None:
    """Enough was seen: the run is over as soon as what is in flight has finished."""
    assert job.call("budget", "set", "A1", "0").code == 0
    job.finish(*parts)
    job.check()
    assert not job.rejected("A1")


def test_servers_join_are_drained_and_leave_in_mid_run(job: Job, start: Start) -> None:
    first, second = start("first", speed=5), start("second", speed=5)
    job.dataset("A1", prompts("A1", MANY), max_tokens="none")
    job.tables["sglang"] |= {"servers": [first.url], "concurrency": 8}
    parts = job.write().start_parts()
    wait_for("answers of the first", lambda: first.served("A1") > 10)
    assert second.url in servers(job, "add", second.url)
    wait_for("answers of the second", lambda: second.served("A1") > 5)
    servers(job, "drain", first.url)
    wait_for("the first to be empty", lambda: "drained" in parts[2].text and not first.state()["running"])
    before = first.served("A1")
    assert server_of(job, first.url)["state"] == "draining"
    so_far = second.served("A1")
    wait_for("more of the second", lambda: second.served("A1") > so_far + 5)
    assert first.served("A1") == before
    servers(job, "add", first.url)
    wait_for("the first to go on", lambda: first.served("A1") > before)
    servers(job, "remove", first.url)
    wait_for("the first to leave the list", lambda: not server_of(job, first.url))
    wait_for("its worker to leave", lambda: "were removed from the run" in parts[2].text)
    end(job, *parts)
    assert {line["server"] for line in job.lines("A1")} == {first.url, second.url}


def test_a_server_that_is_told_to_end_gets_nothing_more(job: Job, start: Start) -> None:
    """SIGTERM, after which SGLang takes new work until it has none; its requests end well, and it ends."""
    # So unlike are the answers that it is never idle by chance.
    lengths = {"*": LengthSpec(mean=150, sigma=0.8)}
    first, second = start("first", speed=1, lengths=lengths), start("second", speed=1, lengths=lengths)
    job.dataset("A1", prompts("A1", MANY), max_tokens="none")
    job.tables["sglang"] |= {"servers": [first.url, second.url], "concurrency": 16}
    parts = job.write().start_parts()
    wait_for("answers of both", lambda: first.served("A1") > 5 and second.served("A1") > 5)
    first.child.process.send_signal(signal.SIGTERM)
    wait_for("the first to end", lambda: first.child.process.poll() is not None)
    assert first.child.process.returncode == 0
    assert "its /ready and /health say 503" in parts[2].text
    assert server_of(job, first.url)["state"] == "down"
    so_far = second.served("A1")
    wait_for("more of the second", lambda: second.served("A1") > so_far + 5)
    end(job, *parts)
    attempts = {line["attempt"] for line in job.lines("A1")}
    assert attempts == {1}, "nothing was cut off"


def test_a_worker_whose_servers_are_all_removed_ends_well(job: Job, start: Start) -> None:
    only = start("only")
    only.hold()
    job.dataset("A1", prompts("A1", 40), max_tokens="none")
    job.tables["sglang"] |= {"servers": [only.url]}
    _, _, work = job.write().start_parts()
    wait_for("requests in flight", lambda: only.state()["running"] == 16)
    servers(job, "remove", only.url)
    wait_for("the worker to hear it", lambda: "is being drained" in work.text)
    assert work.is_running
    only.let_go()
    assert work.ended() == 0
    assert "were removed from the run" in work.text
    assert job.status()["datasets"][0]["leased"] == 0
    again = job.start("work")
    assert again.ended() == 0
    assert "removed" in again.text


def test_what_is_no_server_of_the_run_is_refused_in_a_sentence(job: Job) -> None:
    job.dataset("A1", prompts("A1", 1))
    job.tables["sglang"] |= {"servers": ["http://gpu0:30000"]}
    job.write()
    for words, said in (
        (("add", "gpu1:30000"), "'gpu1:30000'"),
        (("drain", "http://gpu1:30000"), "the run has no server http://gpu1:30000: it has http://gpu0:30000"),
        (("remove", "http://gpu1:30000"), "the run has no server"),
    ):
        refused = job.call("servers", *words)
        assert refused.code == 2
        assert len(refused.said) == 1 and said in refused.said[0], refused.err
    assert "http://gpu0:30000" in servers(job)
    servers(job, "add", "http://gpu1:30000/")
    assert "http://gpu1:30000: down, no worker uses it" in servers(job)


def test_a_server_at_fault_is_tried_by_one_worker_at_a_time_and_seldom(
    job: Job, redis_server: RedisServer, start: Start
) -> None:
    good = start("good")
    job.dataset("A1", prompts("A1", 40), max_tokens="none")
    job.tables["timing"]["retry_ms"] = 400
    with Unavailable(answer_s=0.3) as bad:
        job.tables["sglang"] |= {"servers": [bad.url]}
        collect, push, first = job.write().start_parts("--wait", "100")
        wait_for("its fault on the board", lambda: redis_server.client.hget(f"server:{bad.url}", "down_since"))
        second = job.start("work", "--wait", "100")
        third = job.start("work", "--server", good.url)
        wait_for("both to wait", lambda: all("waiting for a server" in part.text for part in (first, second)))
        at = len(bad.began)
        wait_for("some tries", lambda: len(bad.began) >= at + 4)
        gaps = [later - earlier for earlier, later in zip(bad.began[1:], bad.began[2:], strict=False)]
        assert bad.at_once == 1
        assert min(gaps) >= 0.4, gaps
        assert "HTTP 503" in server_of(job, bad.url)["reason"]
        servers(job, "remove", bad.url)
        job.finish(collect, push, first, second, third)
    job.check_all_answered()


def test_workers_of_a_server_share_its_faults(job: Job, redis_server: RedisServer, start: Start) -> None:
    """The one that finds the fault tells the other, which has nothing in flight, and both go on when it is good."""
    server = start("server", tokens=30)
    job.dataset("A1", prompts("A1", 600), max_tokens="none")
    job.tables["sglang"] |= {"servers": [server.url], "concurrency": 4}
    parts = job.write().start_parts("--name", "one")
    wait_for("some answers", lambda: job.count() > 3)
    redis_server.client.set("rq:suspended", 1)
    other = job.start("work", "--name", "other")
    wait_for(
        "both to be idle",
        lambda: redis_server.client.hexists("rq:worker:other", "servers") and not server.state()["running"],
    )
    server.faults(Fault(mode="unavailable"))
    redis_server.client.hset(f"server:{server.url}", mapping={"down_since": 1, "reason": "said by a third"})
    wait_for("both to hear it", lambda: all("as another worker found" in part.text for part in (parts[2], other)))
    redis_server.client.delete("rq:suspended")
    server.faults()
    wait_for("both to go on", lambda: all("answers again" in part.text for part in (parts[2], other)))
    assert not redis_server.client.hexists(f"server:{server.url}", "down_since")
    job.finish(*parts, other)
    job.check_all_answered()


def test_a_server_that_answers_nothing_is_found_and_charged_to_no_prompt(
    job: Job, redis_server: RedisServer, start: Start
) -> None:
    """Frozen: it takes requests and says that it is healthy. The other one goes on, and does its work."""
    frozen, other = start("frozen", speed=1), start("other", speed=5)
    job.dataset("A1", prompts("A1", MANY), max_tokens="none")
    job.tables["sglang"] |= {"servers": [frozen.url, other.url], "concurrency": 8}
    job.tables["timing"]["stall_ms"] = 3000
    parts = job.write().start_parts()
    wait_for("answers of both", lambda: frozen.served("A1") > 4 and other.served("A1") > 4)
    wait_for("half of the next answers", lambda: frozen.state()["in_flight_tokens"] > 8 * 200)
    frozen.faults(Fault(mode="dead"))
    wait_for("the worker to find it", lambda: "it accepts requests and answers none" in parts[2].text)
    so_far = other.served("A1")
    wait_for("the other to go on", lambda: other.served("A1") > so_far)
    assert "answer" in server_of(job, frozen.url)["reason"]
    charged = [
        key
        for key in redis_server.client.scan_iter("rq:job:*")
        if any(int(value or 0) for value in redis_server.client.hmget(key, "failures", "deaths"))
    ]
    assert not charged
    wait_for("what was made in vain to be told", lambda: job.status()["wasted_tokens"] > 0)
    end(job, *parts)


def test_long_answers_are_no_stall(job: Job, start: Start) -> None:
    server = start("server")
    server.hold()
    job.dataset("A1", prompts("A1", 8), max_tokens="none")
    job.tables["sglang"] |= {"servers": [server.url]}
    job.tables["timing"]["stall_ms"] = 3000
    parts = job.write().start_parts()
    # Its single-token requests are answered, and name no dataset: there are some beyond those of the start.
    wait_for("it to be asked", lambda: server.state()["datasets"].get("", {}).get("finished", 0) >= 4)
    assert "at fault" not in parts[2].text
    server.let_go()
    job.finish(*parts)
    assert {line["attempt"] for line in job.lines("A1")} == {1}


def test_a_server_has_one_suspect_at_a_time_whatever_the_workers(
    job: Job, redis_server: RedisServer, start: Start
) -> None:
    server = start("server", speed=50)
    rows = prompts("S", 6)
    job.dataset("S", rows, max_tokens="none")
    job.dataset("A1", prompts("A1", 150), max_tokens="none")
    job.tables["sglang"] |= {"servers": [server.url]}
    collect, push = job.write().start("collect"), job.start("push")
    wait_for("the queues", lambda: redis_server.client.llen("rq:queue:S") == 6)
    for row in rows:
        redis_server.client.hset(f"rq:job:{job_id('S', row['id'])}", "deaths", 2)
    workers = [job.start("work", "--name", name) for name in ("one", "other")]
    job.finish(collect, push, *workers)
    job.check_all_answered()
    assert in_flight_at_most(server.log, "S") == 1
    assert in_flight_at_most(server.log, "A1") > 1
    holders = {line["worker"] for line in job.lines("A1")}
    assert holders == {"one", "other"}


def test_a_server_is_sent_what_it_can_run(job: Job, start: Start) -> None:
    server = start("server", speed=20, max_running_requests=16)
    job.dataset("A1", prompts("A1", 300), max_tokens="none")
    job.tables["sglang"] |= {"servers": [server.url], "concurrency": 256}
    parts = job.write().start_parts()
    wait_for("it to be full", lambda: server.state()["running"] == 16)
    job.finish(*parts)
    job.check_all_answered()
    assert server.state()["peak_in_flight"] <= 16 + 4


def test_a_server_that_is_full_is_asked_again_later(job: Job, start: Start) -> None:
    """A queue of none: what comes while all slots are taken is answered 503, as by a proxy before the server."""
    server = start("server", speed=50)
    server.faults(Fault(mode="unavailable", count=1, after=20), Fault(mode="unavailable", count=1, after=60))
    job.dataset("A1", prompts("A1", 200), max_tokens="none")
    job.tables["sglang"] |= {"servers": [server.url]}
    parts = job.write().start_parts()
    job.finish(*parts)
    job.check_all_answered()
    assert "at fault" not in parts[2].text


@pytest.mark.parametrize("any_weights", [False, True])
def test_other_weights_take_part_only_where_the_run_says_so(job: Job, start: Start, any_weights: bool) -> None:
    first, second = start("first", speed=5), start("second", weight_version="two")
    job.dataset("A1", prompts("A1", MANY), max_tokens="none")
    job.tables["sglang"] |= {"servers": [first.url], "any_weights": any_weights, "concurrency": 8}
    parts = job.write().start_parts()
    wait_for("some answers", lambda: job.count() > 3)
    late = job.start("work", "--server", second.url)
    if any_weights:
        wait_for("answers of the second", lambda: second.served("A1") > 3)
        end(job, *parts, late)
        assert {line["weight_version"] for line in job.lines("A1")} == {"default", "two"}
    else:
        assert late.ended() == 2
        assert "weight_version: default -> two" in late.text
        end(job, *parts)
        assert {line["server"] for line in job.lines("A1")} == {first.url}


def test_a_worker_mends_what_redis_says_of_it(job: Job, redis_server: RedisServer, start: Start) -> None:
    """A Redis that came back from an older state, and one in which a heartbeat alone has made the worker's entry."""
    job.dataset("A1", prompts("A1", 4), max_tokens="none")
    job.tables["sglang"] |= {"servers": [start("server", speed=50).url]}
    parts = [job.write().start(*part) for part in (("collect", "--stay"), ("push", "--stay"))]
    worker = job.start("work", "--name", "w0", "--stay")
    key, client = "rq:worker:w0", redis_server.client
    wait_for("it to be idle", lambda: job.count() == 4 and client.hget(key, "state") == b"idle")
    client.hset(key, mapping={"state": "busy", "in_flight": 16})
    wait_for("it to say so again", lambda: client.hmget(key, "state", "in_flight") == [b"idle", b"0"])
    with client.pipeline() as pipe:
        pipe.delete(key)
        pipe.srem("rq:workers", key)
        pipe.hset(key, "last_heartbeat", "2026-01-01T00:00:00.000000Z")
        pipe.execute()
    wait_for("it to be registered again", lambda: client.sismember("rq:workers", key) and client.hexists(key, "birth"))
    assert client.ttl(key) > 0, "one that dies now is not listed for ever"
    client.hset(key, "mark", "1")  # an entry that ran out and was made anew has none
    heard = client.hget(key, "last_heartbeat")
    wait_for("its next heartbeat", lambda: client.hget(key, "last_heartbeat") not in (None, heard))
    assert client.hexists(key, "mark")
    for part in (worker, *parts):
        part.send(signal.SIGTERM)
        assert part.ended() in (0, 3), part.text
    job.check()
