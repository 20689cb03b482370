"""Passes over the prompts: what is queued, what is passed over, what comes back."""

import contextlib
import os
import subprocess
import sys
from typing import Any

import zstandard

from budget import keys, runbook, verbs
from budget.connections import RedisAway
from budget.ledger import Ledger
from budget.snapshot import read
from producer.defects import Defect
from producer.feed import Feed, Step
from tests.integration.producer.conftest import Memory, Run, Server, configured, numbered, wait_until
from workers.encodings import decode_job_data


def a_run(server: Server, count: int, cap: int | None = 1_000_000) -> Run:
    run = Run(server, configured(("A", cap)), numbered("A", count))
    run.publish()
    return run


def test_every_prompt_is_queued_once_in_its_order_as_a_whole_job(server: Server) -> None:
    run = a_run(server, 700)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 700)
        assert run.queue("A") == run.shelf.prompts["A"].jobs
    job = run.client.hgetall(keys.rq_job(run.queue("A")[0]))
    payload = decode_job_data(job[b"data"])
    assert (payload.id, payload.input_ids, payload.dataset) == ("q0", [1, 2, 3], "A")
    assert (job[b"status"], job[b"worst"], job[b"description"]) == (b"queued", b"50", b"q0")
    assert run.state("A").unsent == 0


def test_rq_reads_the_queue(server: Server) -> None:
    from rq import Queue
    from rq.serializers import JSONSerializer

    run = a_run(server, 3)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 3)
    job = Queue("A", connection=run.client, serializer=JSONSerializer).jobs[0]
    assert job.func_name == "workers.jobs.generate"
    assert job.enqueued_at is not None


def test_the_queue_stays_between_its_marks(server: Server) -> None:
    run = a_run(server, 3000)
    runbook.set_cap(run.client, "A", 1_000_000)
    prompts = run.shelf.prompts["A"]
    feed = Feed(run.ledger, run.config, "A", run.shelf)

    def fill() -> int:
        while feed.step(read(run.client, run.all)) is Step.WORKED:
            assert run.state("A").queued <= 1000
        return run.state("A").queued

    assert fill() == 1000
    assert run.work("A", 400) == 400
    assert fill() == 600
    assert run.work("A", 101) == 101
    assert fill() == 1000
    assert len(prompts.built) == 1501


def test_the_first_job_is_queued_before_many_are_rendered(server: Server) -> None:
    run = a_run(server, 3000)
    feed = Feed(run.ledger, run.config, "A", run.shelf)
    assert feed.step(read(run.client, run.all)) is Step.WORKED
    assert run.state("A").queued == len(run.shelf.prompts["A"].built) == 8


def test_an_interrupted_batch_is_sent_again(server: Server) -> None:
    """A batch that was read must not get lost between the prompts and a Redis that went away."""
    run = a_run(server, 1200)
    broken: list[str] = []

    class Flaky(Ledger):
        def __call__(self, call: verbs.Call[Any]) -> Any:
            answer = super().__call__(call) if len(broken) % 2 else None
            broken.append(call.script)
            if answer is None or len(broken) % 3 == 0:
                raise RedisAway("gone")
            return answer

    feed = Feed(Flaky(run.client), run.config, "A", run.shelf)
    while run.state("A").queued < 1000:
        with contextlib.suppress(RedisAway):
            feed.step(read(run.client, run.all))
    assert run.queue("A") == run.shelf.prompts["A"].jobs[:1000]


def test_a_resume_renders_nothing_that_is_done(server: Server) -> None:
    run = a_run(server, 5000)
    jobs = run.shelf.prompts["A"].jobs
    for at in range(0, 4900, 500):
        run.ledger(verbs.seed(dataset="A", entries=[(job, 7, False) for job in jobs[at : min(at + 500, 4900)]]))
    run.ledger(verbs.seed(dataset="A", entries=[("A-of-an-earlier-pipeline", 7, False)]))
    with run.producing():
        wait_until(lambda: run.state("A").queued == 100)
        wait_until(lambda: run.state("A").inputs == 5000)
        wait_until(lambda: run.state("A").foreign == 1)
    assert len(run.shelf.prompts["A"].built) == 100
    assert run.state("A").unsent == 0


def test_a_restarted_producer_leaves_the_queue_alone(server: Server) -> None:
    run = a_run(server, 300)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 300)
    held = run.claim("A", 5)
    with run.producing():
        wait_until(lambda: run.shelf.prompts["A"].passes >= 2)
    assert sorted(run.queue("A") + [lease.job for lease in held]) == sorted(run.shelf.prompts["A"].jobs)
    assert len(run.shelf.prompts["A"].built) == 300


def test_it_runs_out_of_prompts_and_leaves(server: Server) -> None:
    run = a_run(server, 20)
    with run.producing(stay=False) as producer:
        wait_until(lambda: run.state("A").queued == 20)
        run.work("A", 20)
        wait_until(lambda: run.state("A").exhausted)
        assert producer.alive, "it left before the collector had everything"
        run.written()
        producer.join()
        assert producer.error is None
    assert run.state("A").inputs == 20


def test_a_dataset_is_not_exhausted_while_a_job_is_in_flight(server: Server) -> None:
    run = a_run(server, 10)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 10)
        leases = run.claim("A", 10)
        for lease in leases[1:]:
            run.commit(lease)
        # A hash without data: release frees the lease and leaves the prompt to the producer.
        run.client.delete(keys.rq_job(leases[0].job))
        run.ledger(verbs.release(lease=leases[0], charge=""))
        wait_until(lambda: run.queue("A") == [leases[0].job])
        assert not run.state("A").exhausted


def test_prompts_brought_back_after_it_ran_out_are_queued(server: Server) -> None:
    rows: dict[str, object] = {"good": [1], "bad": Defect("no_prompt", "nothing in it")}
    run = Run(server, configured(("A", 1000)), Memory("A", rows))
    run.publish()
    with run.producing():
        wait_until(lambda: run.work("A", 1))
        wait_until(lambda: run.state("A").exhausted)
        bad = run.shelf.prompts["A"].jobs[1]
        run.shelf.prompts["A"].held["bad"] = [4]
        assert run.ledger(verbs.retry(dataset="A", lines=[(bad, b"line")])) == 1
        wait_until(lambda: run.queue("A") == [bad])
        # The same where `retry` came too early, between the pass' look at it and its end.
        run.work("A", 1)
        wait_until(lambda: run.state("A").exhausted)
        run.client.hdel(keys.done("A"), bad)
        wait_until(lambda: run.queue("A") == [bad])


def test_an_id_of_done_that_no_prompt_has_does_not_keep_it_from_ending(server: Server) -> None:
    run = a_run(server, 3)
    with run.producing(stay=False) as producer:
        wait_until(lambda: run.state("A").queued == 3)
        # More inputs than prompts: as if the files had shrunk under it.
        run.work("A", 3)
        run.client.sadd(keys.dropped("A"), "A-gone")
        run.written()
        producer.join()
        assert producer.error is None
    assert run.state("A").exhausted


def test_complete_drops_the_queue_and_a_raised_cap_brings_it_back(server: Server) -> None:
    run = a_run(server, 3000, cap=100)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 1000)
        run.work("A", 10)
        wait_until(lambda: run.state("A").queued == 0)
        state = run.state("A")
        # The producer may have topped the queue up between the claim of the ten and their commit.
        assert (state.dropped in (990, 1000), state.committed) == (True, 10)
        assert state.unsent == 2990 - state.dropped
        runbook.set_cap(run.client, "A", 1_000_000)
        wait_until(lambda: run.state("A").queued == 1000)
        while run.state("A").committed < 3000:
            run.work("A", 500)
        wait_until(lambda: run.state("A").exhausted)
    state = run.state("A")
    assert (state.dropped, state.committed, state.done, state.unsent) == (0, 3000, 3000, 0)


def test_it_leaves_when_the_budget_is_spent(server: Server) -> None:
    run = a_run(server, 3000, cap=100)
    with run.producing(stay=False) as producer:
        wait_until(lambda: run.state("A").queued == 1000)
        run.work("A", 10)
        run.written()
        producer.join()
        assert producer.error is None
    assert read(run.client, ["A"]).finished("A")


def test_a_complete_dataset_is_counted_all_the_same(server: Server) -> None:
    run = a_run(server, 1200, cap=5)
    run.shelf.prompts["A"].known_count = False
    known = run.shelf.prompts["A"].jobs[7]
    run.ledger(verbs.seed(dataset="A", entries=[(known, 5, False), ("A-foreign", 5, False)]))
    with run.producing(stay=False) as producer:
        producer.join()
        assert producer.error is None
    state = run.state("A")
    assert (state.inputs, state.foreign, state.unsent, state.queued) == (1200, 1, 1199, 0)
    assert run.shelf.prompts["A"].built == []


def test_an_emptied_queue_is_filled_again(server: Server) -> None:
    run = a_run(server, 40)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 40)
        held = run.claim("A", 2)
        done = subprocess.run(
            [sys.executable, "-m", "rq.cli", "empty", "--url", server.url, "A"],
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        wait_until(lambda: run.state("A").queued == 38)
    assert sorted(run.queue("A") + [lease.job for lease in held]) == sorted(run.shelf.prompts["A"].jobs)


def test_a_job_that_is_in_no_list_comes_back_when_nothing_else_is_left(server: Server) -> None:
    run = a_run(server, 5)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 5)
        lost = run.client.lpop(keys.rq_queue("A")).decode()
        run.work("A", 4)
        wait_until(lambda: run.queue("A") == [lost])
        assert not run.state("A").exhausted
        run.work("A", 1)
        wait_until(lambda: run.state("A").exhausted)
    assert run.state("A").committed == 5


def test_a_hollow_job_comes_back(server: Server) -> None:
    run = a_run(server, 5)
    with run.producing():
        wait_until(lambda: run.state("A").queued == 5)
        hollow = run.client.lpop(keys.rq_queue("A")).decode()
        run.client.hdel(keys.rq_job(hollow), "data")
        wait_until(lambda: run.state("A").queued == 5)
        assert run.queue("A")[-1] == hollow
    assert run.client.hexists(keys.rq_job(hollow), "data")


def test_what_can_never_work_is_rejected_with_its_row(server: Server) -> None:
    rows: dict[str, object] = {f"q{number}": [1] for number in range(10)}
    rows["bad"] = Defect("too_long", "the prompt has 9 tokens")
    run = Run(server, configured(("A", 1000)), Memory("A", rows))
    run.publish()
    with run.producing():
        wait_until(lambda: run.state("A").queued == 10 and run.state("A").rejected == 1)
        wait_until(lambda: run.state("A").inputs == 11)
    [(_, fields)] = run.client.xrange(keys.results("A"))
    assert fields[b"kind"] == b"reject"
    line = zstandard.ZstdDecompressor().decompress(fields[b"line"])
    assert line == (
        b'{"id":"bad","dataset":"A","reason":"too_long","detail":"the prompt has 9 tokens","attempts":0,'
        b'"row":"the row"}\n'
    )
    assert run.state("A").unsent == 0


def test_several_datasets_take_turns(server: Server) -> None:
    run = Run(
        server, configured(("A", 1000), ("B", None), ("C", 1000)), numbered("A", 900), numbered("B", 700),
        numbered("C", 1)
    )  # fmt: skip
    run.publish()
    with run.producing("A", "B"):
        wait_until(lambda: run.state("A").queued == 900 and run.state("B").queued == 700)
        assert run.state("C").queued == 0
        assert run.state("B").cap is None
        assert run.state("B").open


def test_the_total_cap_ends_all_of_them(server: Server) -> None:
    config = configured(("A", 1000), ("B", 1000), max_tokens_total=30)
    run = Run(server, config, numbered("A", 50), numbered("B", 50))
    run.publish()
    with run.producing(stay=False) as producer:
        wait_until(lambda: run.state("A").queued == 50 and run.state("B").queued == 50)
        run.work("A", 3)
        run.written()
        producer.join()
        assert producer.error is None
    assert run.state("B").dropped == 50


def test_rejects_wait_for_a_collector_that_is_behind(server: Server) -> None:
    rows: dict[str, object] = {f"q{number}": Defect("no_prompt", "") for number in range(2000)}
    run = Run(server, configured(("A", 1000), max_waiting_results=10), Memory("A", rows))
    run.publish()
    with run.producing():
        wait_until(lambda: run.state("A").rejected >= 10)
        assert run.state("A").rejected < 2000
        wait_until(lambda: run.written() or run.state("A").rejected == 2000)
        wait_until(lambda: run.state("A").exhausted or run.written())
