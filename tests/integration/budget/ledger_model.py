"""The ledger in plain Python: what each verb must answer and leave behind, without Redis and without Lua."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from budget import rules
from budget.verbs import Charge, Lease

WORST = 100
Answer = tuple[str, str]


@dataclass
class Held:
    token: str
    worker: str
    reserved: int
    bucket: int = 0
    suspect: bool = False
    adopted: bool = False
    expired: bool = False


@dataclass
class Hash:
    """A whole RQ job."""

    status: str = "queued"
    attempt: int = 0
    failures: int = 0
    deaths: int = 0
    others: int = 0
    beside: int = 0

    def die_beside(self, all_deaths: int) -> bool:
        """Beside a suspect."""
        if self.deaths or self.beside:
            return self.die(all_deaths)
        self.beside = 1
        return False

    def die(self, all_deaths: int) -> bool:
        """One death more, of all that there were. Whether it is poison."""
        self.deaths += 1
        if self.deaths <= 2:
            self.others = all_deaths - self.deaths
        return rules.is_poison(self.deaths, all_deaths - self.deaths - self.others)


@dataclass
class Book:
    """One dataset."""

    cap: int | None = None
    done: dict[str, int] = field(default_factory=dict[str, int])
    leases: dict[str, Held] = field(default_factory=dict[str, Held])
    queue: list[str] = field(default_factory=list[str])
    dropped: set[str] = field(default_factory=set[str])
    hashes: dict[str, Hash] = field(default_factory=dict[str, Hash])
    exhausted: bool = False
    full: bool = False
    results: int = 0

    @property
    def spent(self) -> int:
        return sum(self.done.values())

    @property
    def reserved(self) -> int:
        return sum(lease.reserved for lease in self.leases.values())


class Model:
    def __init__(self, datasets: Sequence[str], admission: str, total_cap: int | None) -> None:
        self.books = {name: Book() for name in datasets}
        self.admission = admission
        self.total_cap = total_cap
        self.deaths = 0

    @property
    def total_spent(self) -> int:
        return sum(book.spent for book in self.books.values())

    @property
    def total_reserved(self) -> int:
        return sum(book.reserved for book in self.books.values())

    def complete(self, book: Book, *, exhausted: bool | None = None) -> bool:
        facts = rules.Facts(
            spent=book.spent,
            cap=book.cap,
            full=book.full,
            exhausted=book.exhausted if exhausted is None else exhausted,
        )
        return rules.complete(facts, self.total_spent, self.total_cap) is not None

    def admits(self, book: Book) -> bool:
        if self.admission == "strict":
            return (book.cap is None or book.spent + book.reserved + WORST <= book.cap) and (
                self.total_cap is None or self.total_spent + self.total_reserved + WORST <= self.total_cap
            )
        own = book.cap is None or (book.spent < book.cap and (not book.leases or book.spent + book.reserved < book.cap))
        total = self.total_cap is None or (
            self.total_spent < self.total_cap
            and (self.total_reserved == 0 or self.total_spent + self.total_reserved < self.total_cap)
        )
        return own and total

    def is_full(self, book: Book) -> bool:
        if self.admission != "strict" or book.leases:
            return False
        own = book.cap is not None and book.spent + WORST > book.cap
        total = self.total_cap is not None and self.total_reserved == 0 and self.total_spent + WORST > self.total_cap
        return own or total

    # -- the verbs

    def enqueue(self, book: Book, jobs: Sequence[str], everything: bool, ends: int | None) -> tuple[str, int]:
        idle = not book.queue and not book.leases
        if self.complete(book, exhausted=False):
            return "complete", 0
        added = 0
        for job in dict.fromkeys(jobs):
            if job in book.done or job in book.leases:
                continue
            before = book.hashes.get(job)
            if before is not None and before.status == "queued" and not (everything and idle):
                continue
            kept = before or Hash()
            book.hashes[job] = Hash("queued", kept.attempt, kept.failures, kept.deaths, kept.others, kept.beside)
            book.dropped.discard(job)
            book.queue.append(job)
            added += 1
        if added:
            book.exhausted = False
        elif ends == 0 and idle:
            book.exhausted = True
            return "exhausted", 0
        return "ok", added

    def _head(self, book: Book, passed: set[str]) -> str | None:
        while book.queue:
            job = book.queue[0]
            if job in book.done:
                book.hashes.pop(job, None)
            elif job not in passed and job not in book.leases and job in book.hashes:
                return job
            book.queue.pop(0)
        return None

    def claim(
        self, worker: str, served: Sequence[str], k: int, nonce: str, reserve: int, holds_suspect: bool
    ) -> tuple[list[Answer], dict[str, str]]:
        state = {name: "complete" if self.complete(self.books[name]) else "open" for name in served}
        later: dict[str, list[str]] = {name: [] for name in served}
        passed: dict[str, set[str]] = {name: set() for name in served}
        taken: dict[str, list[Answer]] = {name: [] for name in served}
        full: list[str] = []
        count, progressed = 0, True
        while count < k and progressed:
            progressed = False
            for name in served:
                book = self.books[name]
                if count >= k or state[name] != "open":
                    continue
                while (job := self._head(book, passed[name])) and book.hashes[job].deaths >= 2 and holds_suspect:
                    later[name].append(book.queue.pop(0))
                    passed[name].add(job)
                if job is None:
                    state[name] = "empty"
                elif not self.admits(book):
                    state[name] = "gated"
                    if self.is_full(book):
                        full.append(name)
                else:
                    count += 1
                    progressed = True
                    book.queue.pop(0)
                    passed[name].add(job)
                    suspect = book.hashes[job].deaths >= 2
                    holds_suspect = holds_suspect or suspect
                    reserved = WORST if self.admission == "strict" else reserve
                    book.leases[job] = Held(f"{nonce}-{count}", worker, reserved, suspect=suspect)
                    book.hashes[job].status = "started"
                    book.hashes[job].attempt += 1
                    taken[name].append((job, f"{nonce}-{count}"))
        for name in served:
            self.books[name].queue += later[name]
            if name in full:
                self.books[name].full = True
                state[name] = "complete"
        return [answer for name in served for answer in taken[name]], state

    def renew(self, worker: str, flights: Sequence[Lease], reserved: int, bucket: int) -> list[str]:
        answers: list[str] = []
        for lease in flights:
            held = self.books[lease.dataset].leases.get(lease.job)
            if lease.job in self.books[lease.dataset].done:
                answers.append("done")
            elif held is not None and held.token != lease.token:
                answers.append("taken")
            else:
                answers.append("held")
        for lease, answer in zip(flights, answers, strict=True):
            book = self.books[lease.dataset]
            held = book.leases.get(lease.job)
            if answer != "held" or (held is not None and held.token != lease.token):
                continue
            if held is None:
                book.dropped.discard(lease.job)
                book.leases[lease.job] = Held(lease.token, worker, reserved, bucket, lease.suspect, lease.adopted)
                if lease.job in book.hashes:
                    book.hashes[lease.job].status = "started"
            else:
                held.reserved, held.bucket, held.expired = reserved, bucket, False
        return answers

    def _end(self, lease: Lease, tokens: int) -> None:
        book = self.books[lease.dataset]
        book.done[lease.job] = tokens
        book.leases.pop(lease.job, None)
        book.dropped.discard(lease.job)
        if not lease.adopted:
            book.hashes.pop(lease.job, None)
        book.results += 1

    def commit(self, lease: Lease, tokens: int) -> bool:
        if lease.job in self.books[lease.dataset].done:
            return False
        self._end(lease, tokens)
        return True

    def reject(self, lease: Lease) -> str:
        book = self.books[lease.dataset]
        if lease.job in book.done:
            return "done"
        held = book.leases.get(lease.job)
        if held is not None and held.token != lease.token:
            return "taken"
        self._end(lease, 0)
        return "rejected"

    def release(self, lease: Lease, charge: Charge) -> str:
        book = self.books[lease.dataset]
        held = book.leases.get(lease.job)
        if held is None or held.token != lease.token:
            return "lost"
        del book.leases[lease.job]
        job = book.hashes.get(lease.job)
        if job is not None and not lease.adopted:
            if (charge == "deaths" and job.die(self.deaths)) or (charge == "beside" and job.die_beside(self.deaths)):
                self._poison(book, lease.job)
                return "poison"
            job.status = "queued"
            job.failures += charge == "failures"
            book.queue.append(lease.job)
        return "released"

    def _poison(self, book: Book, job: str) -> None:
        book.done[job] = 0
        del book.hashes[job]
        book.results += 1

    def reclaim(self, named: Sequence[str]) -> dict[str, tuple[int, int]]:
        held: dict[str, list[tuple[Book, str, Held]]] = {}
        for book in self.books.values():
            for job, lease in book.leases.items():
                held.setdefault(lease.worker, []).append((book, job, lease))
        answer: dict[str, tuple[int, int]] = {}
        dead = {
            worker: jobs
            for worker, jobs in held.items()
            if worker in named or all(lease.expired for _, _, lease in jobs)
        }
        self.deaths += len(dead)
        for worker, jobs in dead.items():
            guilty = any(lease.suspect for _, _, lease in jobs)
            back = rejected = 0
            for book, job, lease in jobs:
                del book.leases[job]
                its = book.hashes.get(job)
                if its is None:
                    continue
                if its.die(self.deaths) if lease.suspect or not guilty else its.die_beside(self.deaths):
                    self._poison(book, job)
                    rejected += 1
                else:
                    its.status = "queued"
                    book.queue.insert(len(book.queue) if its.deaths >= 3 else 0, job)
                    back += 1
            answer[worker] = (back, rejected)
        return answer

    def adopt(self, book: Book, job: str, token: str, worker: str, reserve: int) -> str:
        if job in book.done:
            return "done"
        if job in book.leases:
            return "taken"
        if self.complete(book):
            book.dropped.add(job)
            return "complete"
        if not self.admits(book):
            if self.is_full(book):
                book.full = True
                book.dropped.add(job)
                return "complete"
            return "wait"
        its = book.hashes.get(job)
        suspect = its is not None and its.deaths >= 2
        reserved = WORST if self.admission == "strict" else reserve
        book.leases[job] = Held(token, worker, reserved, suspect=suspect, adopted=True)
        if its is not None:
            its.attempt += 1
        return "ok"

    def drop(self, book: Book, limit: int) -> tuple[int, int]:
        if not self.complete(book):
            return -1, len(book.queue)
        ids, book.queue = book.queue[:limit], book.queue[limit:]
        dropping = [job for job in ids if job not in book.done and job not in book.leases]
        for job in ids:
            if job not in book.leases:
                book.hashes.pop(job, None)
        book.dropped |= set(dropping)
        return len(dropping), len(book.queue)

    def retry(self, book: Book, jobs: Sequence[str]) -> int:
        back = [job for job in jobs if book.done.get(job) == 0]
        for job in back:
            del book.done[job]
        book.results += len(back)
        if back:
            book.exhausted = False
        return len(back)

    def seed(self, book: Book, entries: dict[str, int]) -> tuple[int, int]:
        before = book.spent
        changed = sum(1 for job, tokens in entries.items() if book.done.get(job) != tokens)
        for job, tokens in entries.items():
            book.done[job] = tokens
            book.dropped.discard(job)
            held = book.leases.pop(job, None)
            if held is not None and not held.adopted:
                book.hashes.pop(job, None)
        if book.spent < before:
            book.full = False
        return changed, book.spent

    def forget(self, book: Book, jobs: Sequence[str]) -> tuple[int, int]:
        before = book.spent
        gone = [job for job in jobs if book.done.pop(job, None) is not None]
        if book.spent < before:
            book.full = False
        if gone:
            book.exhausted = False
        return len(gone), book.spent

    def set_cap(self, book: Book, cap: int | None) -> None:
        if book.cap is not None and (cap is None or cap > book.cap):
            book.full = book.exhausted = False
        book.cap = cap
