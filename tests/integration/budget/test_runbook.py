"""One database, one run; and caps that move while it runs."""

from typing import Any

import pytest
import redis

from budget import keys, runbook, snapshot
from budget.errors import Exit
from budget.protocol import OtherProtocol
from budget.runbook import FromFile
from tests.conftest import StartServer
from tests.ledgers import Rig


def publish(connection: "redis.Redis", **changed: Any) -> None:
    settings: dict[str, Any] = {
        "config": b"{}",
        "name": "kimi",
        "output_id": "folder-1",
        "protocol": 1,
        "fingerprints": {"A": {"tokenizer": "k2", "sampling": "{}"}},
        "max_tokens_total": None,
        "max_samples": {"A": None},
    }
    runbook.publish(connection, **{**settings, **changed})


class TestPublish:
    def test_again_is_no_change(self, connection: "redis.Redis") -> None:
        publish(connection)
        before = runbook.published(connection)
        publish(connection)
        assert runbook.published(connection) == before
        assert before["name"] == "kimi"

    def test_another_folder_is_refused(self, connection: "redis.Redis") -> None:
        publish(connection)
        with pytest.raises(runbook.AnotherRun, match=r"belongs to run 'kimi'.*tokenmill reset") as refusal:
            publish(connection, name="glm", output_id="folder-2")
        assert refusal.value.exit_code == Exit.REFUSED

    def test_another_name_is_refused_where_no_folder_tells_more(self, connection: "redis.Redis") -> None:
        runbook.refuse_another_name({}, "glm")
        publish(connection)
        entry = runbook.published(connection)
        runbook.refuse_another_name(entry, "kimi")
        with pytest.raises(runbook.AnotherRun, match="belongs to run 'kimi', not to 'glm'"):
            runbook.refuse_another_name(entry, "glm")

    def test_another_version_is_refused(self, connection: "redis.Redis") -> None:
        publish(connection)
        before = runbook.published(connection)
        with pytest.raises(OtherProtocol, match=r"Tokenmill \S+ \(protocol 1\), .* \(protocol 2\).*`tokenmill reset`"):
            publish(connection, protocol=2)
        assert runbook.published(connection) == before

    def test_a_changed_fingerprint_is_named(self, connection: "redis.Redis") -> None:
        publish(connection)
        with pytest.raises(runbook.Changed, match=r"dataset A .*tokenizer: k2 -> k3") as refusal:
            publish(connection, fingerprints={"A": {"tokenizer": "k3", "sampling": "{}"}})
        assert refusal.value.exit_code == Exit.USER
        assert runbook.published(connection)["fingerprint:A"] == '{"tokenizer": "k2", "sampling": "{}"}'

    def test_a_dataset_more_or_less_is_none(self, connection: "redis.Redis") -> None:
        publish(connection)
        publish(connection, fingerprints={"B": {"tokenizer": "k2"}}, max_samples={"B": 3})
        publish(connection)
        client: Any = connection
        assert client.hget(keys.budget("B"), "max_samples") == b"3"

    def test_total_and_sample_caps_come_and_go(self, connection: "redis.Redis") -> None:
        client: Any = connection
        publish(connection, max_tokens_total=7, max_samples={"A": 5})
        assert (client.hget(keys.RUN, "max_tokens_total"), client.hget(keys.budget("A"), "max_samples")) == (b"7", b"5")
        publish(connection)
        assert (client.hget(keys.RUN, "max_tokens_total"), client.hget(keys.budget("A"), "max_samples")) == (None, None)

    def test_the_ledger_is_ready_for_this_start_of_redis_only(self, start_server: StartServer) -> None:
        server = start_server(aof=True)
        with server.client() as client:
            Rig(client)
            assert runbook.is_ready(client)
            server.stop()
            server.start()
            assert not runbook.is_ready(client)
            assert Rig(client, ready=False).claim().status == "notready"


class TestCapsFromTheFile:
    def cap(self, rig: Rig) -> str | None:
        return rig.field("A", "cap")

    def test_only_what_the_file_says_anew_is_written(self, rig: Rig) -> None:
        rig.connection.delete(keys.budget("A"))
        assert runbook.apply_file_caps(rig.connection, {"A": 100}) == {"A": FromFile(100)}
        runbook.set_cap(rig.connection, "A", 250)
        assert runbook.apply_file_caps(rig.connection, {"A": 100}) == {}
        assert self.cap(rig) == "250"
        assert runbook.apply_file_caps(rig.connection, {"A": 90}) == {"A": FromFile(90, over="250")}
        assert runbook.apply_file_caps(rig.connection, {"A": None}) == {"A": FromFile(None)}
        assert runbook.apply_file_caps(rig.connection, {"A": None}) == {}
        assert self.cap(rig) == "none"
        runbook.set_cap(rig.connection, "A", 5)
        assert runbook.apply_file_caps(rig.connection, {"A": 5}) == {"A": FromFile(5)}

    def test_a_cap_set_by_hand_that_gives_way_is_named(self) -> None:
        over = "the budget is 90 tokens, as the run file says, in the place of 250, which was set by hand"
        assert FromFile(90, over="250").said == over
        assert FromFile(None).said == "the budget is without a cap, as the run file says"

    def test_the_collector_writes_only_missing_ones(self, rig: Rig) -> None:
        runbook.set_cap(rig.connection, "A", 250)
        assert runbook.apply_file_caps(rig.connection, {"A": 100}, only_missing=True) == {}
        rig.connection.delete(keys.budget("A"))
        assert runbook.apply_file_caps(rig.connection, {"A": 100}, only_missing=True) == {"A": FromFile(100)}

    def test_set_answers_what_was_before(self, rig: Rig) -> None:
        assert runbook.set_cap(rig.connection, "A", 5) is None
        assert runbook.set_cap(rig.connection, "A", 0) == 5
        assert runbook.set_cap(rig.connection, "A", None) == 0


class TestCapsThatMove:
    """Scenario S12."""

    def test_lowered_below_what_is_spent(self, rig: Rig) -> None:
        rig.cap("A", 100)
        rig.enqueue("A", "A-1", "A-2", "A-3")
        first, second = rig.claim("w1", 2, reserve=10).leases
        rig.commit(first, 60)
        rig.cap("A", 50)
        assert rig.claim("w1").gates["A"].state == "complete"
        assert rig.commit(second, 30) == (True, 90)
        assert rig.drop("A") == (1, 0)
        rig.check()

    def test_raised_after_a_drop_brings_back_exactly_what_was_dropped(self, rig: Rig) -> None:
        ids = [f"A-{number}" for number in range(6)]
        rig.cap("A", 20)
        rig.enqueue("A", *ids)
        for lease in rig.claim("w1", 2, reserve=10).leases:
            rig.commit(lease, 10)
        assert rig.drop("A") == (4, 0)
        assert rig.enqueue("A", *ids).status == "complete"
        rig.cap("A", 100)
        assert rig.enqueue("A", *ids).added == 4
        assert rig.queue("A") == ids[2:]
        assert not rig.connection.exists(keys.dropped("A"))
        rig.check()

    def test_zero_and_none(self, rig: Rig) -> None:
        rig.enqueue("A", "A-1")
        rig.cap("A", 0)
        assert rig.claim().gates["A"].state == "complete"
        assert snapshot.read(rig.connection, rig.datasets).finished("A") is False
        rig.cap("A", None)
        assert rig.lease().job == "A-1"

    def test_raising_ends_exhausted_and_lowering_does_not(self, rig: Rig) -> None:
        rig.cap("A", 100)
        rig.enqueue("A", pass_ends_with=0)
        rig.cap("A", 90)
        assert rig.field("A", "exhausted") == "1"
        rig.cap("A", 101)
        assert rig.field("A", "exhausted") is None

    def test_a_hundred_changes_under_load(self, rig: Rig) -> None:
        ids = [f"A-{number}" for number in range(300)]
        rig.cap("A", 100)
        for change in range(100):
            rig.enqueue("A", *ids)
            claimed = rig.claim("w1", 3, reserve=10, datasets=["A"])
            for lease in claimed.leases:
                rig.commit(lease, 10)
            if claimed.gates["A"].state == "complete":
                rig.drop("A")
            rig.cap("A", (change * 37) % 500 or None)
        rig.check()
        rig.cap("A", None)
        rig.enqueue("A", *ids)
        known = set(rig.queue("A")) | {job.decode() for job in rig.connection.hkeys(keys.done("A"))}
        assert known == set(ids)
        assert len(rig.queue("A")) + rig.connection.hlen(keys.done("A")) == 300


class TestSnapshot:
    def test_the_numbers_add_up(self, rig: Rig) -> None:
        ids = [f"A-{number}" for number in range(10)]
        rig.enqueue("A", *ids[:8], inputs=10)
        committed, rejected, _ = rig.claim("w1", 3, datasets=["A"], reserve=40).leases
        rig.commit(committed, 25, truncated=True)
        rig.reject(rejected)
        rig.connection.hset(keys.wasted("A"), mapping={"w1": 5, "w2": 6})
        rig.seed("A", ("A-foreign", 7))
        rig.connection.hset(keys.budget("A"), "foreign", 1)
        state = snapshot.read(rig.connection, rig.datasets).dataset("A")
        assert (state.spent, state.reserved, state.cap, state.open) == (32, 40, None, True)
        assert (state.committed, state.rejected, state.truncated, state.done) == (2, 1, 1, 3)
        assert (state.queued, state.leased, state.dropped, state.waiting, state.wasted) == (5, 1, 0, 2, 11)
        assert (state.inputs, state.foreign, state.unsent) == (10, 1, 2)
        mine = state.committed + state.rejected - state.foreign
        assert state.inputs == mine + state.dropped + state.queued + state.leased + (state.unsent or 0)

    def test_complete_and_finished_over_all_datasets(self, rig: Rig) -> None:
        rig.connection.hset(keys.RUN, "max_tokens_total", 30)
        rig.enqueue("A", "A-1")
        rig.seed("B", ("B-1", 30))
        run = snapshot.read(rig.connection, rig.datasets)
        assert (run.total_spent, run.total_cap) == (30, 30)
        assert (run.complete("A"), run.finished("A"), run.finished("B")) == ("budget", False, True)
        assert not run.all_finished()
        rig.drop("A")
        assert snapshot.read(rig.connection, rig.datasets).all_finished(["A", "B"])
        with pytest.raises(KeyError):
            run.dataset("C")

    def test_an_empty_redis_is_all_zeros_and_closed(self, connection: "redis.Redis") -> None:
        state = snapshot.read(connection, ["A"]).dataset("A")
        assert (state.open, state.cap, state.spent, state.inputs, state.unsent) == (False, None, 0, None, None)
