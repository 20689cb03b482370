"""Every key in Redis, built in one place.

RQ's own keys are RQ's; they are named here only because our scripts must be handed them. Ours:

| key | type | writers | lifetime |
|---|---|---|---|
| `run` | hash | collector, producer (tokenizer), `budget set`; reclaim and workers (`deaths`) | the run's |
| `run:ready` | string | collector, after it has seeded | until Redis restarts under another run_id |
| `run:rates` | hash | collector: dataset -> tokens per second over the last minute | the run's |
| `run:pieces:<digest>` | string | producer; again collector, workers: what tells the texts of answers | the run's |
| `run:seen` | string | renew, reclaim, collector, producer | half a lease |
| `claim:<worker>` | string | claim | a lease |
| `lock:producer:<dataset>`, `lock:collector` | string | their owners | a lease |
| `run:servers` | hash | `servers add`, `drain`, `remove`: url -> use, drain or remove | the run's |
| `server:<url>` | hash | workers; `down_since` (Redis TIME, ms) only while it is at fault | the run's |
| `probe:<url>` | string | the worker whose turn it is to try a server at fault | until the next try is due |
| `suspect:<url>` | string | the worker that has a suspect in flight there | a lease |
| `budget:<dataset>:spent` | string | commit and seed by INCRBY; recount sets it | the run's |
| `budget:<dataset>` | hash | every verb, `budget set` | the run's |
| `budget:<dataset>:done` | hash | commit, reject, retry, seed | the run's |
| `budget:<dataset>:dropped` | set | drop, adopt; taken out by enqueue, renew, commit, reject, seed | the run's |
| `budget:<dataset>:expiry` | zset | claim, adopt, renew; all that end a lease | while jobs are in flight |
| `budget:<dataset>:leases` | hash | as expiry | while jobs are in flight |
| `budget:<dataset>:ages` | hash | as leases, and commit, seed | the run's |
| `budget:<dataset>:wasted` | hash | workers: worker -> tokens, absolute | the run's |
| `results:<dataset>` | stream | commit, reject, reclaim, retry | until the collector has fsynced |
"""

RUN = "run"
READY = "run:ready"
SEEN = "run:seen"
RATES = "run:rates"
SERVERS = "run:servers"
COLLECTOR_LOCK = "lock:collector"
RQ_QUEUES = "rq:queues"
RQ_SUSPENDED = "rq:suspended"
RQ_WORKERS = "rq:workers"


def pieces(digest: str) -> str:
    return f"run:pieces:{digest}"


def claim(worker: str) -> str:
    return f"claim:{worker}"


def producer_lock(dataset: str) -> str:
    return f"lock:producer:{dataset}"


def server(url: str) -> str:
    return f"server:{url}"


def probe(url: str) -> str:
    return f"probe:{url}"


def suspect(url: str) -> str:
    return f"suspect:{url}"


def budget(dataset: str) -> str:
    return f"budget:{dataset}"


def spent(dataset: str) -> str:
    return f"budget:{dataset}:spent"


def done(dataset: str) -> str:
    return f"budget:{dataset}:done"


def dropped(dataset: str) -> str:
    return f"budget:{dataset}:dropped"


def expiry(dataset: str) -> str:
    return f"budget:{dataset}:expiry"


def leases(dataset: str) -> str:
    return f"budget:{dataset}:leases"


def ages(dataset: str) -> str:
    return f"budget:{dataset}:ages"


def wasted(dataset: str) -> str:
    return f"budget:{dataset}:wasted"


def results(dataset: str) -> str:
    return f"results:{dataset}"


def rq_queue(dataset: str) -> str:
    return f"rq:queue:{dataset}"


def rq_intermediate(dataset: str) -> str:
    return f"rq:queue:{dataset}:intermediate"


def rq_started(dataset: str) -> str:
    return f"rq:wip:{dataset}"


def rq_failed(dataset: str) -> str:
    return f"rq:failed:{dataset}"


def rq_canceled(dataset: str) -> str:
    return f"rq:canceled:{dataset}"


def rq_job(job: str) -> str:
    return f"rq:job:{job}"


def rq_worker(worker: str) -> str:
    return f"rq:worker:{worker}"


def block(dataset: str) -> list[str]:
    """A dataset's keys in the order that `lua/prelude.lua` names them."""
    return [
        rq_queue(dataset),
        rq_intermediate(dataset),
        rq_started(dataset),
        rq_failed(dataset),
        rq_canceled(dataset),
        budget(dataset),
        spent(dataset),
        done(dataset),
        dropped(dataset),
        expiry(dataset),
        leases(dataset),
        ages(dataset),
        results(dataset),
    ]
