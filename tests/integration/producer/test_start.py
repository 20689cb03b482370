"""What the producer waits for, refuses and writes before it queues anything."""

import logging
import threading
import time
from typing import Any

import pytest

from budget import keys, locks, runbook
from budget.errors import Exit, Interrupted, OutsideFault, Problem, UserProblem
from producer import loop, patience
from tests.integration.producer.conftest import Run, Server, Shelf, configured, entry, numbered, wait_until
from workers.contracts import RunConfig


def a_run(server: Server, cap: int | None = 1000) -> Run:
    return Run(server, configured(("A", cap)), numbered("A", 5))


def produce(run: Run, config: RunConfig | None = None, url: str | None = None, wait_s: float = 30) -> None:
    """In this thread: for starts that are refused."""
    stop = threading.Event()
    loop.produce(
        config or run.config, url or run.server.url, ["A"], stay=True, stop=stop, wait_s=wait_s, library=run.shelf
    )


def error_of(run: Run, **changes: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        produce(run, **changes)
    return caught.value


def test_it_waits_for_the_collector_and_says_so(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SAY_AFTER_S", 0.0)
    run = a_run(server)
    with caplog.at_level(logging.INFO, "tokenmill.producer"), run.producing() as producer:
        wait_until(lambda: "start `tokenmill collect`" in caplog.text)
        run.publish()
        run.client.delete(keys.READY)
        wait_until(lambda: "to read the result files into Redis" in caplog.text)
        assert run.state("A").queued == 0
        run.ready()
        wait_until(lambda: run.state("A").queued == 5)
        assert producer.alive


def test_it_waits_for_a_collector_that_does_not_know_the_dataset_yet(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SAY_AFTER_S", 0.0)
    run = a_run(server)
    older = Run(server, configured(("Z", 5)), numbered("Z", 1))
    older.publish()
    with run.producing():
        wait_until(lambda: "to know A: start it again" in caplog.text)
        run.publish()
        wait_until(lambda: run.state("A").queued == 5)


def test_another_run_in_the_database_is_named(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SAY_AFTER_S", 0.0)
    run = a_run(server)
    run.publish()
    run.client.hset(keys.RUN, "name", "other")
    with run.producing():
        wait_until(lambda: "holds run 'other'" in caplog.text)
        assert run.state("A").queued == 0


def test_a_changed_dataset_is_refused_with_the_difference(server: Server) -> None:
    run = a_run(server)
    run.publish()
    changed = configured(("A", 1000), truncated="reject")
    error = error_of(run, config=changed)
    assert error.exit_code == Exit.USER
    assert "truncated: keep -> reject" in str(error)
    assert run.state("A").queued == 0


def test_another_protocol_is_refused(server: Server) -> None:
    run = a_run(server)
    run.publish()
    run.client.hset(keys.RUN, "protocol", "99")
    assert error_of(run).exit_code == Exit.REFUSED


def test_an_unreachable_redis_ends_it_after_the_wait(server: Server) -> None:
    run = a_run(server)
    error = error_of(run, url=f"unix://{server.folder}/none.sock", wait_s=0.0)
    assert isinstance(error, OutsideFault)
    assert error.exit_code == Exit.OUTSIDE


def test_it_waits_for_redis(server: Server) -> None:
    run = a_run(server)
    server.stop()
    with run.producing():
        server.start()
        run.publish()
        wait_until(lambda: run.state("A").queued == 5)


def test_an_unsafe_redis_is_refused(server: Server) -> None:
    run = a_run(server)
    run.client.config_set("maxmemory-policy", "allkeys-lru")
    assert error_of(run).exit_code == Exit.REFUSED


def test_an_unknown_dataset_is_refused(server: Server) -> None:
    with pytest.raises(UserProblem, match="no dataset 'B'; it has A"):
        run = a_run(server)
        loop.produce(run.config, server.url, ["B"], stay=False, stop=threading.Event(), library=run.shelf)


def test_a_second_producer_is_refused_and_changes_nothing(server: Server) -> None:
    run = a_run(server)
    run.publish()
    with run.producing():
        wait_until(lambda: run.state("A").queued == 5)
        error = error_of(run, config=configured(("A", 77)))
        assert isinstance(error, locks.Held)
        assert error.exit_code == Exit.REFUSED
        assert "the producer of A is already running" in str(error)
        assert run.state("A").cap == 1000
    # The lock was given back.
    with run.producing():
        wait_until(lambda: run.client.exists(keys.producer_lock("A")))


def test_a_lock_that_another_one_took_ends_it(server: Server) -> None:
    run = a_run(server)
    run.publish()
    with run.producing() as producer:
        wait_until(lambda: run.state("A").queued == 5)
        run.client.set(keys.producer_lock("A"), b'{"token":"x","host":"h","pid":1,"process":"h/1"}')
        producer.join()
        assert isinstance(producer.error, locks.LockLost)
        assert producer.error.exit_code == Exit.REFUSED
    assert b'"token":"x"' in run.client.get(keys.producer_lock("A"))


def test_the_lock_is_kept_while_a_prompt_is_rendered(server: Server) -> None:
    run = a_run(server)
    run.publish()
    prompts = run.shelf.prompts["A"]
    rendering, go_on = threading.Event(), threading.Event()
    build = prompts.build

    def slow(prompt_id: str, row: Any) -> Any:
        rendering.set()
        assert go_on.wait(30)
        return build(prompt_id, row)

    prompts.build = slow  # pyright: ignore[reportAttributeAccessIssue]
    with run.producing():
        assert rendering.wait(30)
        until = time.monotonic() + 1.5 * run.config.timing.lease_ms / 1000
        wait_until(lambda: time.monotonic() > until)
        assert run.client.exists(keys.producer_lock("A"))
        go_on.set()
        wait_until(lambda: run.state("A").queued == 5)


def test_stopped_it_gives_its_locks_back(server: Server) -> None:
    run = a_run(server)
    run.publish()
    with run.producing() as producer:
        wait_until(lambda: run.state("A").queued == 5)
        producer.end()
        assert isinstance(producer.error, Interrupted)
    assert not run.client.exists(keys.producer_lock("A"))


def test_the_files_cap_is_written_only_when_it_changes(server: Server) -> None:
    run = a_run(server)
    run.publish()

    def start(cap: int | None) -> int | None:
        run.config = configured(("A", cap))
        queued = run.shelf.prompts["A"].passes
        with run.producing():
            wait_until(lambda: run.shelf.prompts["A"].passes > queued)
        return run.state("A").cap

    assert start(1000) == 1000
    runbook.set_cap(run.client, "A", 500)
    assert start(1000) == 500
    assert start(2000) == 2000
    assert start(None) is None


def test_workers_learn_of_the_tokenizer(server: Server) -> None:
    run = a_run(server)
    run.publish()
    with run.producing():
        wait_until(lambda: run.state("A").queued == 5)
    assert entry(run.client, "tokenizer") == run.shelf.facts
    run.shelf.facts = {**run.shelf.facts, "template_hash": "c2"}
    error = error_of(run)
    assert error.exit_code == Exit.USER
    assert "template_hash: c1 -> c2" in str(error)


def test_another_tokenizer_is_found_before_a_complete_run_goes_on(server: Server) -> None:
    """A run that is complete ends without its tokenizer; one that has a new prompt then is refused as ever."""
    run = a_run(server)
    run.publish()
    with run.producing():
        wait_until(lambda: (run.work("A", 5), run.state("A").exhausted)[1])
    run.written()
    run.shelf.facts = {**run.shelf.facts, "template_hash": "c2"}
    with run.producing(stay=False) as complete:
        complete.join()
    assert complete.error is None
    run.shelf.prompts["A"] = numbered("A", 6)
    assert "template_hash: c1 -> c2" in str(error_of(run))
    assert run.state("A").queued == 0


def test_a_missing_prompt_file_is_said_at_once(server: Server) -> None:
    class Missing(Shelf):
        def check(self, datasets: Any) -> None:
            raise UserProblem("there is no prompt file")

    run = a_run(server)
    run.shelf = Missing(numbered("A", 1))
    assert error_of(run).exit_code == Exit.USER
