"""Collector, producer and workers as processes of their own: joined, watched, stopped and killed in the middle.

The simulated server is held where a test needs the middle of a run, so nothing depends on the machine's speed.
"""

import signal
import sys
from collections.abc import Callable

from redis import Redis
from rq.command import send_shutdown_command
from tokenizers import Tokenizer

from budget.errors import Exit
from tests.e2e_support import HELD_TOKENS, ROOT, TOKENIZER, Job, RedisServer, Running, Simulator, prompts, wait_for

StartSimulator = Callable[..., Simulator]

SLOTS = 4


def prepare(job: Job, simulator: Simulator, count: int = 30, names: tuple[str, ...] = ("A1", "B2")) -> None:
    """Two datasets without a cap, so that every prompt must be answered once."""
    for name in names:
        job.dataset(name, prompts(name, count), max_tokens="none")
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": SLOTS}
    job.write()


def rq(job: Job, *arguments: str) -> str:
    command = [sys.executable, "-m", "rq.cli", *arguments, "--url", job.environment["TOKENMILL_REDIS_URL"]]
    running = job.start_command(command)
    assert running.ended() == 0, running.text
    return running.text


def in_flight(redis_server: RedisServer, job: Job, workers: int = 1, slots: int = SLOTS) -> dict[str, int]:
    """Waits until so many workers have all their slots filled."""

    def holders() -> dict[str, int]:
        found = redis_server.holders(*job.names)
        return dict(found) if len(found) == workers and set(found.values()) == {slots} else {}

    return wait_for(f"{workers} workers with {slots} jobs each", holders)


def without_collector(job: Job, redis_server: RedisServer, simulator: Simulator) -> tuple[Running, Running]:
    """A producer and a worker whose collector is killed before the first answer; a sixth result is a pile."""
    simulator.hold()
    job.tables["run"] = {**job.tables["run"], "max_waiting_results": 500}
    prepare(job, simulator)
    collect, push, work = job.start_parts()
    in_flight(redis_server, job)
    depth = redis_server.client.llen
    wait_for("all prompts to be queued", lambda: sum(depth(f"rq:queue:{name}") for name in job.names) == 60 - SLOTS)
    collect.kill()
    return push, work


def test_workers_join_while_others_are_in_the_middle_and_rq_shows_all(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    simulator.hold()
    prepare(job, simulator)
    parts = job.start_parts("-n", "2")
    first = in_flight(redis_server, job, workers=2)
    late = [job.start("work", "--name", f"late-{number}") for number in (1, 2)]
    holders = in_flight(redis_server, job, workers=4)
    assert set(first) < set(holders) and {"late-1", "late-2"} < set(holders)
    assert simulator.served(*job.names) == 0, "the first ones have not finished anything"
    client = redis_server.client
    wait_for("all prompts to be queued", lambda: sum(client.llen(f"rq:queue:{name}") for name in job.names) == 60 - 16)

    def with_all_busy() -> str:
        shown = rq(job, "info")
        busy = {
            worker for worker in holders for line in shown.splitlines() if line.startswith(worker) and "busy" in line
        }
        return shown if busy == set(holders) else ""

    shown = wait_for("each worker's beat to say that it is busy", with_all_busy)
    for name in job.names:
        depth = client.llen(f"rq:queue:{name}")
        assert any(line.split()[0] == name and f" {depth}" in line for line in shown.splitlines() if line), shown
    assert "4 workers, 2 queues" in shown

    simulator.let_go()
    wait_for("tokens in the counter", lambda: all(redis_server.spent(name) > 0 for name in job.names))
    job.finish(*parts, *late)
    job.check_all_answered()
    for name in job.names:
        assert redis_server.spent(name) == job.tokens(name) == 30 * HELD_TOKENS
    assert simulator.finished_tokens(*job.names) == 60 * HELD_TOKENS, "nothing was generated twice"
    assert {line["worker"] for name in job.names for line in job.lines(name)} == set(holders)


def test_kill_9_of_a_worker_gives_its_jobs_to_the_next(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    simulator.hold()
    prepare(job, simulator)
    collect, push, work = job.start_parts("--name", "doomed")
    in_flight(redis_server, job)
    held = [id.decode() for name in job.names for id in redis_server.client.hkeys(f"budget:{name}:leases")]
    work.kill()
    again = job.start("work", "--name", "heir")
    wait_for("the dead worker's jobs to be taken back", lambda: set(redis_server.holders(*job.names)) == {"heir"})
    simulator.let_go()
    job.finish(collect, push, again)
    job.check_all_answered()
    attempts = sorted(line["attempt"] for name in job.names for line in job.lines(name))
    assert attempts == [1] * (60 - len(held)) + [2] * len(held)
    assert "doomed" in collect.text + push.text + again.text, "whoever finds it dead says so"


def test_a_name_is_one_workers_and_free_once_that_is_dead(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    simulator.hold()
    prepare(job, simulator)
    collect, push, work = job.start_parts("--name", "one")
    in_flight(redis_server, job)
    second = job.start("work", "--name", "one")
    assert second.ended() == Exit.REFUSED
    assert "a worker named one is at work on" in second.text and "--name" in second.text
    work.kill()
    again = job.start("work", "--name", "one")
    simulator.let_go()
    job.finish(collect, push, again)
    job.check_all_answered()


def test_kill_9_of_the_producer_loses_no_prompt(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    simulator.hold()
    prepare(job, simulator, count=1200, names=("A1",))
    collect, push, work = job.start_parts("--concurrency", "32")
    in_flight(redis_server, job, slots=32)
    push.kill()
    queued = redis_server.client.llen("rq:queue:A1")
    assert queued < 1200 - 32, "a queue is never filled further than it must be"
    simulator.let_go()
    wait_for("all that was queued", lambda: redis_server.spent("A1") == (queued + 32) * HELD_TOKENS)
    again = job.start("push")
    job.finish(collect, again, work)
    job.check_all_answered()
    assert simulator.served("A1") == 1200


def test_kill_9_of_the_collector_loses_no_answer(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator, client = start_simulator(), redis_server.client
    push, work = without_collector(job, redis_server, simulator)
    simulator.let_go()
    wait_for("all answers in Redis", lambda: sum(redis_server.spent(name) for name in job.names) == 60 * HELD_TOKENS)
    assert push.is_running, "it waits for the results to be written"
    waiting = [fields[b"line"] for name in job.names for _, fields in client.xrange(f"results:{name}")]
    told = [line.startswith(b"told by ") for line in waiting]
    assert any(told), "where results pile up, texts that ids tell stay behind"
    assert not all(told), "before, they travel"
    again = job.start("collect")
    job.finish(again, push, work)
    job.check_all_answered()
    assert simulator.served(*job.names) == 60
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    for line in (line for name in job.names for line in job.lines(name)):
        assert line["text"] == tokenizer.decode(line["output_ids"])


def test_a_redis_that_lost_what_tells_texts_is_sent_them_until_it_has_it_again(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator, client = start_simulator(), redis_server.client
    push, work = without_collector(job, redis_server, simulator)
    (key,) = client.keys("run:pieces:*")
    client.delete(key)
    simulator.let_go()
    wait_for("all answers in Redis", lambda: sum(redis_server.spent(name) for name in job.names) == 60 * HELD_TOKENS)
    wait_for("the worker to lay it down again", lambda: client.exists(key))
    again = job.start("collect")
    job.finish(again, push, work)
    job.check_all_answered()
    assert not list(job.output.rglob("quarantine.jsonl"))


def test_caps_changed_in_mid_run(job: Job, redis_server: RedisServer, start_simulator: StartSimulator) -> None:
    simulator = start_simulator()
    simulator.hold()
    caps = {"toZero": 50_000, "lowered": 50_000, "raised": 900, "toNone": 900}
    for name, cap in caps.items():
        job.dataset(name, prompts(name, 40), max_tokens=cap)
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": 8}
    parts = job.write().start_parts()
    in_flight(redis_server, job, slots=8)
    flying = {name: redis_server.client.hlen(f"budget:{name}:leases") for name in caps}
    for name, before, after in (
        ("toZero", 50_000, "0"), ("lowered", 50_000, "3000"), ("raised", 900, "9000"), ("toNone", 900, "none"),
    ):  # fmt: skip
        changed = job.call("budget", "set", name, after)
        assert (changed.code, changed.out) == (0, f"{name}: cap {before} -> {after} tokens\n"), changed.err
    shown = job.call("budget")
    assert "toZero: 0 of 0 tokens" in shown.out and "toNone: 0 of none tokens, no cap" in shown.out
    simulator.let_go()
    job.finish(*parts)
    job.check()
    assert len(job.lines("toZero")) == flying["toZero"] and len(job.dropped("toZero")) == 40 - flying["toZero"]
    assert 3000 <= job.tokens("lowered") < 40 * HELD_TOKENS and job.dropped("lowered")
    assert job.tokens("raised") >= 9000
    assert len(job.lines("toNone")) == 40

    # What the file says anew counts, also for a collector that finds everything finished; the rest stays as it was set.
    job.datasets["raised"]["max_tokens"] = 12_000
    job.write()
    job.finish(*job.start_parts())
    job.check()
    assert job.tokens("raised") >= 12_000
    assert redis_server.client.hget("budget:lowered", "cap") == b"3000"


def test_rq_suspend_resume_and_shutdown(job: Job, redis_server: RedisServer, start_simulator: StartSimulator) -> None:
    simulator = start_simulator()
    simulator.hold()
    prepare(job, simulator, count=10)
    collect, push, work = job.start_parts("--name", "first")
    in_flight(redis_server, job)
    rq(job, "suspend")
    simulator.let_go()
    wait_for("the worker to be idle", lambda: not redis_server.holders(*job.names))
    wait_for("its state to say so", lambda: redis_server.client.hget("rq:worker:first", "state") == b"suspended")
    assert sum(redis_server.spent(name) for name in job.names) == SLOTS * HELD_TOKENS
    simulator.hold()
    rq(job, "resume")
    in_flight(redis_server, job)
    connection: Redis = redis_server.client
    send_shutdown_command(connection, "first")
    wait_for("the worker to drain", lambda: "draining" in work.text)
    simulator.let_go()
    assert work.ended() == 3, work.text
    assert simulator.served(*job.names) == 2 * SLOTS
    assert sum(redis_server.spent(name) for name in job.names) == 2 * SLOTS * HELD_TOKENS
    again = job.start("work")
    job.finish(collect, push, again)
    job.check_all_answered()
    assert simulator.finished_tokens(*job.names) == 20 * HELD_TOKENS, "a drained worker wastes nothing"


def test_sigterm_drains_and_a_second_one_gives_everything_back(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    simulator.hold()
    prepare(job, simulator)
    collect, push, warm = job.start_parts()
    in_flight(redis_server, job)
    warm.send(signal.SIGTERM)
    wait_for("the worker to drain", lambda: "draining" in warm.text)
    simulator.let_go()
    assert warm.ended() == 3, warm.text
    assert not redis_server.holders(*job.names)
    assert sum(redis_server.spent(name) for name in job.names) == SLOTS * HELD_TOKENS, (
        "all in flight finished, nothing more"
    )

    simulator.hold()
    cold = job.start("work")
    in_flight(redis_server, job)
    cold.send(signal.SIGHUP)  # the terminal that it was started from is closed
    wait_for("the worker to drain", lambda: "draining" in cold.text)
    cold.send(signal.SIGTERM)
    assert cold.ended() == 3, cold.text
    assert not redis_server.holders(*job.names), "everything is given back"
    assert sum(redis_server.client.llen(f"rq:queue:{name}") for name in job.names) == 60 - SLOTS
    assert job.call("verify").code == 0
    wait_for("the server to be told", lambda: simulator.state()["running"] == 0)

    simulator.let_go()
    last = job.start("work")
    job.finish(collect, push, last)
    job.check_all_answered()
    assert simulator.served(*job.names) == 60


def test_eight_workers_under_strict_never_pass_the_cap(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    for name in ("A1", "B2"):
        job.dataset(name, prompts(name, 120), max_tokens=30_000)
    job.tables["run"]["admission"] = "strict"
    job.tables["sglang"] = {"servers": [simulator.url], "concurrency": 3}
    simulator.hold()
    parts = job.write().start_parts("-n", "8")
    wait_for("eight workers", lambda: len(redis_server.holders(*job.names)) == 8)
    assert all(int(redis_server.client.hget(f"budget:{name}", "reserved")) <= 30_000 for name in job.names)
    simulator.let_go()
    job.finish(*parts)
    job.check()
    for name in job.names:
        assert 30_000 - 600 < job.tokens(name) <= 30_000
        assert redis_server.spent(name) == job.tokens(name)


def rq_worker(job: Job, simulator: Simulator, *arguments: str) -> Running:
    command = [sys.executable, "-m", "rq.cli", "worker", "-S", "json", *arguments]
    command += ["--url", job.environment["TOKENMILL_REDIS_URL"]]
    return job.start_command(command, TOKENMILL_SERVERS=simulator.url, PYTHONPATH=str(ROOT))


def test_a_stock_rq_worker_and_an_rq_started_async_worker_take_part(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    job.dataset("A1", prompts("A1", 8), max_tokens="none")
    job.dataset("B2", prompts("B2", 12), max_tokens="none")
    job.write()
    collect, push = job.start("collect"), job.start("push")
    stock = rq_worker(job, simulator, "A1")
    wait_for("two answers of the stock worker", lambda: len(job.lines("A1")) >= 2)
    own = rq_worker(job, simulator, "-w", "workers.AsyncWorker", "A1", "B2")
    job.finish(collect, push, own)
    stock.send(signal.SIGTERM)
    assert stock.ended() == 0, stock.text
    job.check_all_answered()
    by = [line["worker"] for line in job.lines("A1")]
    assert sum("-rq-" in worker for worker in by) >= 2
    assert all("-rq-" not in line["worker"] for line in job.lines("B2"))
    assert simulator.served("A1", "B2") == 20
