"""The ledger in tests: short ways to its verbs, everything that a Redis holds, and what must always be true of it."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import redis

from budget import keys, runbook, verbs
from budget.forecast import bucket
from budget.ledger import Ledger
from budget.verbs import Claimed, Lease, Queued

NOW = "2026-01-01T00:00:00.000000Z"
# Long enough that nothing runs out while a test is looking.
LEASE_MS = 600_000


class Rig:
    """A ledger of some datasets, seeded from no files, with the verbs' usual arguments filled in."""

    def __init__(self, connection: "redis.Redis", datasets: Sequence[str] = ("A", "B"), *, ready: bool = True) -> None:
        self.connection: Any = connection
        self.run = Ledger(connection)
        self.datasets = list(datasets)
        self.admission = "forecast"
        if ready:
            self.ready()

    def ready(self) -> None:
        self.connection.set(keys.READY, runbook.run_id(self.connection))

    def cap(self, dataset: str, tokens: int | None) -> None:
        runbook.set_cap(self.connection, dataset, tokens)

    def enqueue(self, dataset: str, *jobs: str, worst: int = 100, **more: Any) -> verbs.Enqueued:
        queued = [Queued(job=job, data=f"data of {job}".encode(), worst=worst, description=job) for job in jobs]
        return self.run(
            verbs.enqueue(dataset=dataset, jobs=queued, all_datasets=self.datasets, lease_ms=LEASE_MS, now=NOW, **more)
        )

    def claim_call(
        self,
        worker: str = "w1",
        k: int = 1,
        *,
        nonce: str = "",
        reserve: int = 10,
        datasets: Sequence[str] = (),
        holds_suspect: bool = False,
        max_waiting: int = 1_000_000,
        lease_ms: int = LEASE_MS,
    ) -> verbs.Call[Claimed]:
        served = list(datasets) or self.datasets
        return verbs.claim(
            worker=worker,
            datasets=served,
            all_datasets=self.datasets,
            k=k,
            nonce=nonce or secrets.token_hex(8),
            admission=self.admission,
            reservations=[reserve] * len(served),
            lease_ms=lease_ms,
            holds_suspect=holds_suspect,
            max_waiting=max_waiting,
            now=NOW,
        )

    def claim(self, worker: str = "w1", k: int = 1, **more: Any) -> Claimed:
        return self.run(self.claim_call(worker, k, **more))

    def lease(self, worker: str = "w1", **more: Any) -> Lease:
        """Claim exactly one job."""
        (lease,) = self.claim(worker, 1, **more).leases
        return lease

    def commit(self, lease: Lease, tokens: int, *, worker: str = "w1", truncated: bool = False) -> tuple[bool, int]:
        return self.run(verbs.commit(lease=lease, worker=worker, tokens=tokens, truncated=truncated, line=b"line"))

    def reject(self, lease: Lease) -> str:
        return self.run(
            verbs.reject(
                dataset=lease.dataset, job=lease.job, token=lease.token, adopted=lease.adopted, line=b"rejected"
            )
        )

    def release(self, lease: Lease, charge: verbs.Charge = "") -> verbs.Released:
        return self.run(verbs.release(lease=lease, charge=charge))

    def renew(self, *leases: Lease, worker: str = "w1", reserved: int = 10, age: int = 0) -> list[verbs.Held]:
        renewals = [
            verbs.Renewal(
                dataset=lease.dataset,
                job=lease.job,
                token=lease.token,
                reserved=reserved,
                bucket=bucket(age),
                suspect=lease.suspect,
                adopted=lease.adopted,
            )
            for lease in leases
        ]
        return self.run(verbs.renew(worker=worker, renewals=renewals, lease_ms=LEASE_MS))

    def adopt(self, dataset: str, job: str, *, token: str = "stock-1", worker: str = "stock") -> verbs.Adopted:
        return self.run(
            verbs.adopt(
                dataset=dataset,
                job=job,
                token=token,
                worker=worker,
                lease_ms=LEASE_MS,
                admission=self.admission,
                reservation=10,
                all_datasets=self.datasets,
            )
        )

    def drop(self, dataset: str, limit: int = 1000) -> tuple[int, int]:
        return self.run(verbs.drop(dataset=dataset, all_datasets=self.datasets, limit=limit))

    def seed(self, dataset: str, *entries: tuple[str, int]) -> tuple[int, int]:
        return self.run(verbs.seed(dataset=dataset, entries=[(job, tokens, False) for job, tokens in entries]))

    def forget(self, dataset: str, *jobs: str) -> tuple[int, int]:
        return self.run(verbs.forget(dataset=dataset, jobs=jobs))

    def retry(self, dataset: str, *jobs: str) -> int:
        return self.run(verbs.retry(dataset=dataset, lines=[(job, b"retried") for job in jobs]))

    def reclaim(self, *dead: str) -> list[verbs.Death]:
        return self.run(verbs.reclaim(datasets=self.datasets, lease_ms=LEASE_MS, dead=dead))

    def count_deaths(self, more: int) -> None:
        """As if so many workers or servers had died elsewhere."""
        self.connection.hincrby(keys.RUN, "deaths", more)

    def listen(self) -> None:
        """As if this Redis had been heard for a long time without a gap."""
        self.connection.set(keys.SEEN, 1)

    def expire(self, *workers: str, by_ms: int = 1) -> None:
        """As if the leases of these workers had run out, `by_ms` ago."""
        seconds, micros = self.connection.time()
        now = seconds * 1000 + micros // 1000
        for dataset in self.datasets:
            for job, lease in self.connection.hgetall(keys.leases(dataset)).items():
                if worker_of(lease) in workers:
                    self.connection.zadd(keys.expiry(dataset), {job: now - by_ms})

    def field(self, dataset: str, name: str) -> str | None:
        value = self.connection.hget(keys.budget(dataset), name)
        return None if value is None else value.decode()

    def spent(self, dataset: str) -> int:
        return int(self.connection.get(keys.spent(dataset)) or 0)

    def queue(self, dataset: str) -> list[str]:
        return [job.decode() for job in self.connection.lrange(keys.rq_queue(dataset), 0, -1)]

    def hash(self, job: str) -> dict[str, str]:
        fields = self.connection.hgetall(keys.rq_job(job))
        return {name.decode(): value.decode() for name, value in fields.items()}

    def check(self) -> None:
        """Assert what must be true after each verb."""
        for dataset in self.datasets:
            check_dataset(self.connection, dataset)


def worker_of(lease: bytes) -> str:
    return lease.decode().split(" ", 6)[6]


def dump(connection: "redis.Redis") -> dict[str, Any]:
    """Everything that a Redis holds, but for the times at which keys expire."""
    client: Any = connection
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange,
    }
    return {key.decode(): readers[client.type(key)](key) for key in sorted(client.keys("*"))}


def check_dataset(connection: "redis.Redis", dataset: str) -> None:
    """Assert that a dataset's counters are what its entries say.

    It is for results that nobody took out of the stream yet, or for any: only `done` is counted.
    """
    client: Any = connection
    done = {job: int(tokens) for job, tokens in client.hgetall(keys.done(dataset)).items()}
    leases: dict[bytes, list[str]] = {
        job: lease.decode().split(" ", 6) for job, lease in client.hgetall(keys.leases(dataset)).items()
    }
    fields = {name.decode(): value for name, value in client.hgetall(keys.budget(dataset)).items()}
    dropped = client.smembers(keys.dropped(dataset))

    assert int(client.get(keys.spent(dataset)) or 0) == sum(done.values())
    assert int(fields.get("reserved", 0)) == sum(int(lease[1]) for lease in leases.values())
    assert int(fields.get("committed", 0)) == sum(1 for tokens in done.values() if tokens > 0)
    assert int(fields.get("rejected", 0)) == sum(1 for tokens in done.values() if tokens == 0)
    assert not set(done) & set(leases), "an id is both done and leased"
    assert not set(done) & dropped, "an id is both done and dropped"
    assert not set(leases) & dropped, "an id is both leased and dropped"
    assert set(leases) == set(client.zrange(keys.expiry(dataset), 0, -1))
    started = {f"{job.decode()}:{lease[0]}".encode() for job, lease in leases.items()}
    assert started == {
        entry
        for entry, score in client.zrange(keys.rq_started(dataset), 0, -1, withscores=True)
        if score == float("inf")
    }

    expected: dict[str, int] = {}
    for tokens in done.values():
        if tokens > 0:
            expected[f"c{bucket(tokens)}"] = expected.get(f"c{bucket(tokens)}", 0) + 1
    for lease in leases.values():
        expected[f"f{lease[3]}"] = expected.get(f"f{lease[3]}", 0) + 1
    ages = {name.decode(): int(value) for name, value in client.hgetall(keys.ages(dataset)).items()}
    assert {name: count for name, count in ages.items() if count} == expected

    for job in client.lrange(keys.rq_queue(dataset), 0, -1):
        assert job.decode().startswith(f"{dataset}-"), f"{job!r} is in the queue of {dataset}"
    for key in client.keys(f"rq:job:{dataset}-*"):
        assert client.hexists(key, "data"), f"{key!r} is hollow"
