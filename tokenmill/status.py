"""The state of a run as people and programs see it: one structure, built here, shown by all.

With Redis it is the ledger's; without it, what the files hold.
"""

import time
from typing import Any

import redis
from rq.utils import utcparse

from budget import connections, fleet, keys, snapshot
from budget.damage import shown_number
from budget.snapshot import DatasetState, RunState
from results.folder import OutputFolder, Prompts
from results.summary import FileTotals, file_totals
from tokenmill.state import DatasetStatus, ServerStatus, Status, WorkerStatus
from tokenmill.troubles import troubles
from workers.contracts import RunConfig

# A server or worker that has not been heard for so long is not shown as up.
STALE_S = 90.0
# Fewer answers than this say nothing of how far the prompts will reach.
FEW = 5


def overshoot(spent: int, cap: int | None) -> float | None:
    """By how much the cap was passed, as a share of it; None without a cap, or with one of 0."""
    return None if not cap else max(0.0, spent / cap - 1)


def online(config: RunConfig, connection: "redis.Redis", url: str, *, simulated: bool) -> Status:
    """The run's state from the ledger, in two pipelines: the second asks for the servers that the first named.

    Raises:
        RedisAway, RedisRefuses: as the ledger's verbs.
    """
    names = [dataset.name for dataset in config.datasets]
    client: Any = connection
    with connections.translated(), client.pipeline(transaction=False) as pipe:
        size = snapshot.ask(pipe, names)
        pipe.hmget(keys.RATES, names)
        pipe.mget(keys.COLLECTOR_LOCK, keys.RQ_SUSPENDED, *map(keys.producer_lock, names))
        # One command for all workers: their list, and of each hash in it these fields.
        pipe.sort(keys.RQ_WORKERS, by="nosort", get=["#", *(f"*->{field}" for field in _WORKER)], groups=True)
        pipe.hgetall(keys.SERVERS)
        answers: list[Any] = pipe.execute()
    state = snapshot.parse(names, answers[:size])
    rates, (collector, suspended, *producers), rows, said = answers[size:]
    workers = _workers(rows)
    # Without its collector a rate is the one of a minute long ago.
    speeds = [shown_number(rate) if collector else 0.0 for rate in rates]
    datasets = [_dataset(state, dataset, speed) for dataset, speed in zip(state.datasets, speeds, strict=True)]
    for dataset, shown, configured, producer in zip(state.datasets, datasets, config.datasets, producers, strict=True):
        shown.producer = producer is not None
        if not dataset.open:  # nobody has published the run yet: what the run file says
            shown.cap = configured.max_tokens
    wasted = sum(dataset.wasted for dataset in state.datasets)
    running = bool(workers) or any(dataset.queued or dataset.leased for dataset in state.datasets)
    now = Status(
        run=config.name,
        state="complete" if state.all_finished() else "running" if running else "stopped",
        redis=connections.without_secret(url),
        sglang="simulated" if simulated else "real",
        datasets=datasets,
        workers=workers,
        servers=_servers(connection, config, workers, fleet.said(said)),
        generated_tokens=state.total_spent + wasted,
        wasted_tokens=wasted,
        suspended=suspended is not None,
        collector=collector is not None,
        waiting_results=sum(dataset.waiting for dataset in state.datasets),
    )
    now.troubles = troubles(now, config)
    return now


def offline(config: RunConfig, *, simulated: bool) -> Status:
    """The run's state from the files alone: nothing is running."""
    folder = OutputFolder(config.output)
    totals = file_totals(config.output, [dataset.name for dataset in config.datasets])
    spent_in_all = sum(total.tokens for total in totals.values())
    datasets: list[DatasetStatus] = []
    for dataset in config.datasets:
        total = totals[dataset.name]
        cap = folder.cap(dataset.name, dataset.max_tokens)
        state = _file_state(dataset.name, cap, dataset.max_samples, total, folder.prompts(dataset.name))
        run_state = RunState(datasets=[state], total_cap=None)
        status = _dataset(run_state, state, 0.0)
        if config.max_tokens_total is not None and spent_in_all >= config.max_tokens_total:
            status.complete, status.reason = True, "budget"
        datasets.append(status)
    return Status(
        run=config.name,
        state="complete" if all(dataset.complete for dataset in datasets) else "stopped",
        redis="not running",
        sglang="simulated" if simulated else "real",
        datasets=datasets,
        workers=[],
        servers=[],
        generated_tokens=spent_in_all,
        wasted_tokens=0,
    )


def _file_state(
    name: str, cap: int | None, max_samples: int | None, total: FileTotals, prompts: Prompts | None
) -> DatasetState:
    done = total.answers + total.rejected
    return DatasetState(
        name=name,
        cap=cap,
        open=True,
        spent=total.tokens,
        reserved=0,
        committed=total.answers,
        rejected=total.rejected,
        truncated=total.truncated,
        dropped=0,
        queued=0,
        intermediate=0,
        leased=0,
        waiting=0,
        done=done,
        wasted=0,
        inputs=None if prompts is None else prompts.inputs,
        foreign=total.foreign,
        # Not where some were brought back since (`retry`).
        exhausted=prompts is not None and prompts.exhausted and done - total.foreign >= prompts.inputs,
        full=False,
        max_samples=max_samples,
    )


def _dataset(state: RunState, dataset: DatasetState, rate: float) -> DatasetStatus:
    reason = state.complete(dataset.name)
    cap = dataset.cap
    remaining = None if cap is None else cap - dataset.spent - dataset.reserved
    left = None if cap is None else max(0, cap - dataset.spent)
    eta = left / rate if left and rate > 0 and reason is None else (0.0 if reason else None)
    return DatasetStatus(
        name=dataset.name,
        cap=cap,
        spent=dataset.spent,
        reserved=dataset.reserved,
        remaining=remaining,
        forecast=_forecast(dataset, reason),
        overshoot=overshoot(dataset.spent, cap),
        complete=reason is not None,
        reason=reason,
        inputs=dataset.inputs,
        unsent=dataset.unsent,
        queued=dataset.queued,
        leased=dataset.leased,
        committed=max(0, dataset.committed - dataset.foreign),
        dropped=dataset.dropped,
        rejected=dataset.rejected,
        truncated=dataset.truncated,
        tokens_per_s=round(rate, 1),
        eta_s=None if eta is None else round(eta, 1),
        wasted=dataset.wasted,
    )


def _forecast(dataset: DatasetState, reason: str | None) -> int:
    """Where the dataset will probably end, in tokens: at its cap, or where its prompts run out before."""
    held = dataset.spent + dataset.reserved
    left = None if dataset.unsent is None else dataset.unsent + dataset.queued + dataset.leased + dataset.dropped
    by_prompts: int | None = None
    if left is not None and dataset.committed >= FEW:
        by_prompts = dataset.spent + round(left * dataset.spent / dataset.committed)
    if reason is not None:
        return held
    if dataset.cap is None:
        return held if by_prompts is None else by_prompts
    if by_prompts is not None and by_prompts < dataset.cap:
        return by_prompts
    return max(dataset.cap, held)


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


_WORKER = ("hostname", "in_flight", "servers", "state", "death", "slots")


def _workers(rows: list[tuple[bytes | None, ...]]) -> list[WorkerStatus]:
    prefix = keys.rq_worker("")
    return [
        WorkerStatus(
            name=_text(key).removeprefix(prefix),
            host=_text(host),
            in_flight=int(shown_number(in_flight)),
            server=_text(servers),
            state=_text(state),
            slots=None if slots is None else int(shown_number(slots)),
        )
        for key, host, in_flight, servers, state, death, slots in sorted(rows, key=lambda row: row[0] or b"")
        if state is not None and death is None
    ]


def _is_fresh(seen: bytes | None) -> bool:
    try:
        return seen is not None and time.time() - utcparse(seen.decode()).timestamp() < STALE_S
    except ValueError:
        return False


def _servers(
    connection: "redis.Redis", config: RunConfig, workers: list[WorkerStatus], wishes: dict[str, fleet.Wish]
) -> list[ServerStatus]:
    used = [url for worker in workers for url in worker.server.split(",") if url]
    urls = dict.fromkeys([*fleet.members(config.servers, wishes), *used])
    fields = ("state", "running", "waiting", "tokens_per_s", "reason", "seen", "down_since")
    client: Any = connection
    with connections.translated(), client.pipeline(transaction=False) as pipe:
        for url in urls:
            pipe.hmget(keys.server(url), *fields)
        rows: list[list[bytes | None]] = pipe.execute()
    return [
        _server(url, dict(zip(fields, row, strict=True)), drained=wishes.get(url, "use") != "use")
        for url, row in zip(urls, rows, strict=True)
    ]


def _server(url: str, told: dict[str, bytes | None], *, drained: bool) -> ServerStatus:
    """One server by what its workers told last; one that they found at fault is down, whatever each has seen since."""
    fresh = _is_fresh(told["seen"])
    up = fresh and told["down_since"] is None and told["state"] == b"up"
    reason = "" if up else _text(told["reason"])
    if not fresh and told["down_since"] is None:
        reason = "no worker uses it"
    return ServerStatus(
        url=url,
        state="draining" if drained else "up" if up else "down",
        running=int(shown_number(told["running"])) if up else 0,
        waiting=int(shown_number(told["waiting"])) if up else 0,
        tokens_per_s=shown_number(told["tokens_per_s"]) if up else 0.0,
        reason=reason,
    )
