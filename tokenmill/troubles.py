"""What is wrong with a run, and what to do: the same sentences in the terminal, the dashboard and `status --json`."""

from collections.abc import Iterable

from tokenmill.state import DatasetStatus, Status, Trouble
from workers.contracts import RunConfig

# A share of the prompts (or answers) from which on it is worth a person's look.
MANY = 0.05


def troubles(status: Status, config: RunConfig) -> list[Trouble]:
    """The troubles of a run that Redis knows of, errors first."""
    found = [*_parts(status), *_servers(status), *_prompts(status)]
    if status.waiting_results >= config.max_waiting_results:
        found.append(
            Trouble(
                level="error",
                about="collector",
                what=f"{status.waiting_results:,} results wait for the collector, so the workers pause",
                mend="see whether its disk is slow or full; the workers go on by themselves",
            )
        )
    return sorted(found, key=lambda trouble: trouble.level)


def _parts(status: Status) -> Iterable[Trouble]:
    """Parts of the run that nobody has started, while there is something for them to do."""
    if status.suspended:
        yield Trouble(
            level="warning", about="paused", what="the run is paused: no worker takes new prompts",
            mend="go on with `rq resume -c tokenmill.rq_settings` (or --url URL without password) or on the dashboard",
        )  # fmt: skip
    open_sets = [dataset for dataset in status.datasets if not dataset.complete]
    if not status.collector and (status.waiting_results or (open_sets and status.workers)):
        waiting = f"; {status.waiting_results:,} results wait in Redis" if status.waiting_results else ""
        yield Trouble(
            level="error", about="collector", what=f"no collector is running, so nothing is written{waiting}",
            mend="start it where the output folder is: tokenmill collect RUN.toml",
        )  # fmt: skip
    if not status.workers and any(dataset.queued for dataset in open_sets):
        yield Trouble(
            level="error", about="workers", what="no worker is running, so nothing is sent",
            mend="start one: tokenmill work RUN.toml",
        )  # fmt: skip
    if status.workers and (alone := [dataset.name for dataset in open_sets if not _is_fed(dataset)]):
        yield Trouble(
            level="error", about="producer",
            what=f"no producer is running for {_some(alone)}, whose queue is empty",
            mend="start it where the prompts are: tokenmill push RUN.toml",
        )  # fmt: skip


def _is_fed(dataset: DatasetStatus) -> bool:
    return dataset.producer or dataset.queued > 0 or dataset.leased > 0


def _servers(status: Status) -> Iterable[Trouble]:
    for server in status.servers:
        if server.state == "down" and status.state == "running":
            yield Trouble(
                level="error", about="servers", what=f"server {server.url} is down: {server.reason}",
                mend="start it again; the workers find it by themselves",
            )  # fmt: skip


def _prompts(status: Status) -> Iterable[Trouble]:
    shares = {dataset.name: rejected_share(dataset) or 0.0 for dataset in status.datasets}
    rejected = [(name, share) for name, share in shares.items() if share >= MANY]
    if rejected:
        yield Trouble(
            level="warning", about="rejects",
            what="many prompts are rejected: " + _some([f"{name} {percent(share)}" for name, share in rejected]),
            mend="rejected.jsonl has the reasons; mend them, then tokenmill retry RUN.toml",
        )  # fmt: skip
    short = [(d.name, d.forecast / d.cap) for d in status.datasets if d.cap and not d.complete and d.forecast < d.cap]
    if short:
        yield Trouble(
            level="warning", about="prompts",
            what=f"prompts will run out below the cap: {_some([f'{name} at {percent(part)}' for name, part in short])}",
            mend="add prompts, or lower the cap",
        )  # fmt: skip


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def rejected_share(dataset: DatasetStatus) -> float | None:
    """Rejected prompts as a share of all, where they are counted, else of those that ended; None where there are none.

    Rows that are no prompts are rejected at once, before there are answers.
    """
    ended = dataset.committed + dataset.rejected
    return dataset.rejected / max(dataset.inputs or 0, ended) if dataset.rejected else None


def truncated_share(dataset: DatasetStatus) -> float | None:
    """Truncated answers as a share of all; None where there are none."""
    return dataset.truncated / max(dataset.committed, dataset.truncated) if dataset.truncated else None


def percent(share: float) -> str:
    """A share for people, never 0 % where it is not nothing: 0.02 %, 3.1 %, 42 %."""
    value = 100 * share
    if 0 < value < 0.1:
        return f"{value:.2f} %" if value >= 0.01 else "<0.01 %"
    return f"{value:.1f} %" if value < 10 else f"{value:.0f} %"
