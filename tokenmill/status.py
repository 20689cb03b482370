"""The state of a run as people and programs see it: one structure, built here, shown by all.

With Redis it is the ledger's; without it, what the files hold.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.exceptions import ResponseError
from rq.utils import utcparse

from budget import connections, fleet, keys, plain, runbook, snapshot
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


def online(config: RunConfig, connection: "redis.Redis", url: str) -> Status:
    """The run's state from the ledger, in two pipelines: the second asks for the workers and servers of the first.

    A third asks for servers that are known to their workers alone.

    Raises:
        RedisAway, RedisRefuses: as the ledger's verbs.
    """
    names = [dataset.name for dataset in config.datasets]
    client: Any = connection
    with connections.translated(), client.pipeline(transaction=False) as pipe:
        size = snapshot.ask(pipe, names)
        pipe.hmget(keys.RATES, names)
        pipe.mget(keys.COLLECTOR_LOCK, keys.RQ_SUSPENDED, *map(keys.producer_lock, names))
        pipe.smembers(keys.RQ_WORKERS)
        pipe.hgetall(keys.SERVERS)
        pipe.hget(keys.RUN, runbook.SIMULATED)
        answers: list[Any] = pipe.execute()
    state = snapshot.parse(names, answers[:size])
    rates, (collector, suspended, *producers), names_of_workers, said, simulated = answers[size:]
    wishes = fleet.said(said)
    workers, told = _workers_and_servers(client, sorted(names_of_workers), fleet.members(config.servers, wishes))
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
        servers=[_server(url, of, drained=wishes.get(url, "use") != "use") for url, of in told.items()],
        generated_tokens=state.total_spent + wasted,
        wasted_tokens=wasted,
        suspended=suspended is not None,
        collector=collector is not None,
        waiting_results=sum(dataset.waiting for dataset in state.datasets),
    )
    now.troubles = troubles(now, config)
    return now


def offline(config: RunConfig) -> Status:
    """The run's state from the files alone: nothing is running."""
    folder = OutputFolder(config.output)
    state_of_folder = folder.state()
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
        sglang="simulated" if state_of_folder and runbook.SIMULATED in state_of_folder.facts else "real",
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
    return plain.one_line(value.decode("utf-8", "replace")) if value else ""


_WORKER = ("hostname", "in_flight", "servers", "state", "death", "slots")


_SERVER = ("state", "running", "waiting", "tokens_per_s", "reason", "seen", "down_since")


def _workers_and_servers(
    client: Any, registered: list[bytes], members: Sequence[str]
) -> tuple[list[WorkerStatus], dict[str, dict[str, bytes | None]]]:
    """The workers that live, and what is told of the run's servers and of those that a worker was given."""
    # Not one SORT with GET, which an ACL allows only to those who may read every key.
    hashes = dict.fromkeys(registered, _WORKER) | {keys.server(url).encode(): _SERVER for url in members}
    rows = _fields(client, hashes)
    workers = _workers({key: rows[key] for key in registered})
    used = dict.fromkeys(url for worker in workers for url in worker.server.split(",") if url and url not in members)
    if used:
        rows |= _fields(client, {keys.server(url).encode(): _SERVER for url in used})
    return workers, {url: rows[keys.server(url).encode()] for url in (*members, *used)}


def _fields(client: Any, hashes: Mapping[bytes, tuple[str, ...]]) -> dict[bytes, dict[str, bytes | None]]:
    with connections.translated(), client.pipeline(transaction=False) as pipe:
        for key, fields in hashes.items():
            pipe.hmget(key, *fields)
        found: list[Any] = pipe.execute(raise_on_error=False)
        for row in found:
            if isinstance(row, Exception) and not (isinstance(row, ResponseError) and "WRONGTYPE" in str(row)):
                raise row
    # What is no hash tells nothing: a stranger's key in RQ's list of workers must not blind us.
    return {
        key: {name: None if isinstance(row, Exception) else row[at] for at, name in enumerate(fields)}
        for (key, fields), row in zip(hashes.items(), found, strict=True)
    }


def _workers(rows: Mapping[bytes, Mapping[str, bytes | None]]) -> list[WorkerStatus]:
    prefix = keys.rq_worker("")
    return [
        WorkerStatus(
            name=_text(key).removeprefix(prefix),
            host=_text(row["hostname"]),
            in_flight=int(shown_number(row["in_flight"])),
            server=_text(row["servers"]),
            state=_text(row["state"]),
            slots=None if row["slots"] is None else int(shown_number(row["slots"])),
        )
        for key, row in rows.items()
        if row["state"] is not None and row["death"] is None
    ]


def _is_fresh(seen: bytes | None) -> bool:
    try:
        return seen is not None and time.time() - utcparse(seen.decode()).timestamp() < STALE_S
    except ValueError:
        return False


def _server(url: str, told: dict[str, bytes | None], *, drained: bool) -> ServerStatus:
    """One server by what its workers told last; one that they found at fault is down, whatever each has seen since."""
    fresh = _is_fresh(told["seen"])
    up = fresh and told["down_since"] is None and told["state"] == b"up"
    reason = "" if up else _text(told["reason"])
    if not fresh and told["down_since"] is None:
        reason = "no worker uses it"
    return ServerStatus(
        url=plain.one_line(url),
        state="draining" if drained else "up" if up else "down",
        running=int(shown_number(told["running"])) if up else 0,
        waiting=int(shown_number(told["waiting"])) if up else 0,
        tokens_per_s=shown_number(told["tokens_per_s"]) if up else 0.0,
        reason=reason,
    )
