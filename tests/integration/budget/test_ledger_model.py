"""Random histories of a ledger on a real Redis, step by step against the model in plain Python."""

import secrets
from collections import Counter
from functools import partial
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from budget import keys, verbs
from budget.forecast import bucket
from budget.verbs import Charge, Lease
from tests.integration.budget.ledger_model import WORST, Book, Model
from tests.ledgers import Rig, check_dataset

DATASETS = ("A", "B")
WORKERS = ("w1", "w2", "w3")
datasets = st.sampled_from(DATASETS)
workers = st.sampled_from(WORKERS)
numbers = st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True)
caps = st.one_of(st.none(), st.integers(0, 800))
lengths = st.integers(1, WORST)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self, connection: "redis.Redis") -> None:
        super().__init__()
        self.client: Any = connection
        self.client.flushall()
        self.rig = Rig(connection, DATASETS)
        # What workers have in hand, whatever the ledger thinks of it by now.
        self.flights: list[tuple[str, Lease]] = []
        self.last_claim: verbs.Call[verbs.Claimed] | None = None
        # Strict promises nothing any more once a cap was lowered or an answer came that had no lease.
        self.loose = False

    @initialize(
        admission=st.sampled_from(["forecast", "strict", "drain"]),
        total=st.one_of(st.none(), st.integers(100, 1200)),
        first=caps,
        second=caps,
    )
    def begin(self, admission: str, total: int | None, first: int | None, second: int | None) -> None:
        self.model = Model(DATASETS, admission, total)
        self.rig.admission = admission
        if total is not None:
            self.client.hset(keys.RUN, "max_tokens_total", total)
        for name, cap in zip(DATASETS, (first, second), strict=True):
            self.rig.cap(name, cap)
            self.model.set_cap(self.book(name), cap)

    def book(self, name: str) -> Book:
        return self.model.books[name]

    def flight(self, data: st.DataObject) -> tuple[str, Lease]:
        return data.draw(st.sampled_from(self.flights), label="flight")

    def end_by_rq(self, lease: Lease) -> None:
        """A stock worker ends the hash of the job that it ran."""
        if lease.adopted:
            self.client.delete(keys.rq_job(lease.job))
            self.book(lease.dataset).hashes.pop(lease.job, None)

    @rule(name=datasets, jobs=numbers, everything=st.booleans(), ends=st.sampled_from([None, None, 0, 1]))
    def enqueue(self, name: str, jobs: list[int], everything: bool, ends: int | None) -> None:
        ids = [f"{name}-{number}" for number in jobs]
        answer = self.rig.enqueue(name, *ids, worst=WORST, everything=everything, pass_ends_with=ends)
        assert (answer.status, answer.added) == self.model.enqueue(self.book(name), ids, everything, ends)

    @rule(
        worker=workers,
        served=st.sampled_from([("A", "B"), ("B", "A"), ("A",), ("B",)]),
        k=st.integers(1, 4),
        reserve=st.sampled_from([0, 30, 100, 700]),
        holds_suspect=st.booleans(),
    )
    def claim(self, worker: str, served: tuple[str, ...], k: int, reserve: int, holds_suspect: bool) -> None:
        nonce = secrets.token_hex(4)
        self.last_claim = self.rig.claim_call(
            worker, k, nonce=nonce, reserve=reserve, datasets=served, holds_suspect=holds_suspect
        )
        claimed = self.rig.run(self.last_claim)
        taken, state = self.model.claim(worker, served, k, nonce, reserve, holds_suspect)
        assert [(lease.job, lease.token) for lease in claimed.leases] == taken
        assert {name: gate.state for name, gate in claimed.gates.items()} == state
        self.flights = [*self.flights, *((worker, lease) for lease in claimed.leases)][-16:]

    @precondition(lambda self: self.last_claim is not None)
    @rule()
    def claim_again(self) -> None:
        assert self.last_claim is not None
        worker = self.last_claim.args[1]
        held = {
            (job, lease.token)
            for book in self.model.books.values()
            for job, lease in book.leases.items()
            if lease.worker == worker and lease.token.startswith(f"{self.last_claim.args[0]}-")
        }
        if self.client.exists(keys.claim(str(worker))):
            known = {(lease.job, lease.token) for lease in self.rig.run(self.last_claim).leases}
            assert known == held

    @precondition(lambda self: self.flights)
    @rule(worker=workers, reserve=st.sampled_from([0, 50, 90]), age=st.integers(0, 300))
    def renew(self, worker: str, reserve: int, age: int) -> None:
        mine = [lease for owner, lease in self.flights if owner == worker]
        reserved = WORST if self.model.admission == "strict" else reserve
        if any(lease.job not in self.book(lease.dataset).leases for lease in mine):
            self.loose = True
        answers = self.rig.renew(*mine, worker=worker, reserved=reserved, age=age)
        assert answers == self.model.renew(worker, mine, reserved, bucket(age))

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), tokens=lengths, worker=workers)
    def commit(self, data: st.DataObject, tokens: int, worker: str) -> None:
        _, lease = self.flight(data)
        held = self.book(lease.dataset).leases.get(lease.job)
        if held is None or held.token != lease.token:
            self.loose = True
        stored, spent = self.rig.commit(lease, tokens, worker=worker)
        assert stored == self.model.commit(lease, tokens)
        assert spent == self.book(lease.dataset).spent
        assert self.rig.commit(lease, tokens, worker=worker) == (False, spent)
        self.end_by_rq(lease)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        _, lease = self.flight(data)
        answer = self.model.reject(lease)
        assert self.rig.reject(lease) == answer
        if answer != "taken":
            self.end_by_rq(lease)

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), charge=st.sampled_from(["", "failures", "deaths", "beside"]))
    def release(self, data: st.DataObject, charge: Charge) -> None:
        _, lease = self.flight(data)
        released = self.model.release(lease, charge)
        assert self.rig.release(lease, charge) == released
        assert self.rig.release(lease, charge) == "lost"
        if released != "lost":
            self.end_by_rq(lease)

    @rule()
    def a_server_dies(self) -> None:
        """A worker has told the others of it."""
        self.rig.count_deaths(1)
        self.model.deaths += 1

    @rule(worker=workers)
    def leases_run_out(self, worker: str) -> None:
        self.rig.expire(worker)
        for book in self.model.books.values():
            for lease in book.leases.values():
                lease.expired = lease.expired or lease.worker == worker

    @rule(named=st.lists(workers, max_size=2, unique=True))
    def reclaim(self, named: list[str]) -> None:
        self.rig.listen()
        deaths = self.rig.reclaim(*named)
        expected = self.model.reclaim(named)
        assert {death.worker: (death.requeued, death.rejected) for death in deaths} == expected
        for name, book in self.model.books.items():
            # In which order the jobs of one worker come back is nobody's business.
            assert Counter(self.rig.queue(name)) == Counter(book.queue)
            book.queue = self.rig.queue(name)

    @rule(name=datasets, reserve=st.sampled_from([0, 40]))
    def stock_worker(self, name: str, reserve: int) -> None:
        popped = self.client.lpop(keys.rq_queue(name))
        if popped is None:
            return
        book, job = self.book(name), popped.decode()
        assert book.queue.pop(0) == job
        if job not in book.hashes:
            return  # RQ passes over an id without a hash.
        token, before = secrets.token_hex(4), book.hashes.get(job)
        attempt = (before.attempt if before else 0) + 1
        call = verbs.adopt(
            dataset=name,
            job=job,
            token=token,
            worker="stock",
            lease_ms=600_000,
            admission=self.model.admission,
            reservation=reserve,
            all_datasets=DATASETS,
        )
        adopted = self.rig.run(call)
        assert adopted.status == self.model.adopt(book, job, token, "stock", reserve)
        lease = Lease(dataset=name, job=job, token=token, data=b"", attempt=attempt, failures=0, deaths=0, adopted=True)
        if adopted.status == "ok":
            assert adopted.attempt == attempt
            self.flights = [*self.flights, ("stock", lease)][-16:]
        else:
            self.end_by_rq(lease)

    @rule(name=datasets, limit=st.sampled_from([1, 3, 1000]))
    def drop(self, name: str, limit: int) -> None:
        assert self.rig.drop(name, limit) == self.model.drop(self.book(name), limit)

    @rule(name=datasets, jobs=numbers)
    def retry(self, name: str, jobs: list[int]) -> None:
        ids = [f"{name}-{number}" for number in jobs]
        assert self.rig.retry(name, *ids) == self.model.retry(self.book(name), ids)

    @rule(name=datasets, entries=st.dictionaries(st.integers(0, 7), st.one_of(st.just(0), lengths), max_size=4))
    def seed(self, name: str, entries: dict[int, int]) -> None:
        self.loose = True
        named = {f"{name}-{number}": tokens for number, tokens in entries.items()}
        answer = self.model.seed(self.book(name), named)
        assert self.rig.seed(name, *named.items()) == answer
        assert self.rig.seed(name, *named.items()) == (0, answer[1])

    @rule(name=datasets, jobs=numbers)
    def forget(self, name: str, jobs: list[int]) -> None:
        ids = [f"{name}-{number}" for number in jobs]
        assert self.rig.forget(name, *ids) == self.model.forget(self.book(name), ids)

    @rule(name=datasets, cap=caps)
    def set_cap(self, name: str, cap: int | None) -> None:
        before = self.book(name).cap
        self.loose = self.loose or (cap is not None and (before is None or cap < before))
        self.rig.cap(name, cap)
        self.model.set_cap(self.book(name), cap)

    @rule(name=datasets, number=st.integers(0, 7))
    def lose_a_hash(self, name: str, number: int) -> None:
        self.client.delete(keys.rq_job(f"{name}-{number}"))
        self.book(name).hashes.pop(f"{name}-{number}", None)

    @rule(name=datasets)
    def rq_empty(self, name: str) -> None:
        for job in self.rig.queue(name):
            self.client.delete(keys.rq_job(job))
            self.book(name).hashes.pop(job, None)
        self.client.delete(keys.rq_queue(name))
        self.book(name).queue = []

    @rule(name=datasets, number=st.integers(0, 7))
    def an_id_is_queued_twice(self, name: str, number: int) -> None:
        self.client.rpush(keys.rq_queue(name), f"{name}-{number}")
        self.book(name).queue.append(f"{name}-{number}")

    @rule(unwritten=st.sets(st.integers(0, 7), max_size=3))
    def redis_is_emptied_and_seeded(self, unwritten: set[int]) -> None:
        self.client.flushall()
        self.rig.ready()
        self.loose = True
        if self.model.total_cap is not None:
            self.client.hset(keys.RUN, "max_tokens_total", self.model.total_cap)
        for name, book in self.model.books.items():
            lost = {f"{name}-{number}" for number in unwritten}
            kept = {job: tokens for job, tokens in book.done.items() if job not in lost}
            self.model.books[name] = Book(cap=book.cap, done=kept)
            self.rig.cap(name, book.cap)
            self.rig.seed(name, *kept.items())

    @invariant()
    def redis_holds_what_the_model_does(self) -> None:
        if not hasattr(self, "model"):
            return
        for name, book in self.model.books.items():
            check_dataset(self.client, name)
            assert {job.decode(): int(n) for job, n in self.client.hgetall(keys.done(name)).items()} == book.done
            leases = {
                job.decode(): lease.decode().split(" ") for job, lease in self.client.hgetall(keys.leases(name)).items()
            }
            assert {job: [v[0], int(v[1]), int(v[3]), v[4], v[5], v[6]] for job, v in leases.items()} == {
                job: [h.token, h.reserved, h.bucket, str(int(h.suspect)), str(int(h.adopted)), h.worker]
                for job, h in book.leases.items()
            }
            assert self.rig.queue(name) == book.queue
            assert {job.decode() for job in self.client.smembers(keys.dropped(name))} == book.dropped
            assert (self.rig.field(name, "full") == "1") == book.full
            assert (self.rig.field(name, "exhausted") == "1") == book.exhausted
            assert self.client.xlen(keys.results(name)) == book.results
            for job, its in book.hashes.items():
                found = self.rig.hash(job)
                assert found["status"] == its.status
                counters = [int(found.get(name, 0)) for name in ("attempt", "failures", "deaths", "others", "beside")]
                assert counters == [its.attempt, its.failures, its.deaths, its.others, its.beside]
            assert len(self.client.keys(f"rq:job:{name}-*")) == len(book.hashes)

    @invariant()
    def strict_never_passes_the_cap(self) -> None:
        if not hasattr(self, "model") or self.model.admission != "strict" or self.loose:
            return
        for book in self.model.books.values():
            assert book.cap is None or book.spent + book.reserved <= book.cap
        total = self.model.total_cap
        assert total is None or self.model.total_spent + self.model.total_reserved <= total


def test_the_ledger_is_its_model(connection: "redis.Redis") -> None:
    machine: Any = partial(LedgerMachine, connection)
    run_state_machine_as_test(machine)
