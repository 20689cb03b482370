"""A run on one screen: a row for each dataset, below it workers and servers, and what is wrong with what to do.

It is fitted to the terminal's width and height, so that redrawing never scrolls; what does not fit is counted.
Nothing is said by colour alone.
"""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tokenmill import view
from tokenmill.state import DatasetStatus, ServerStatus, Status, Trouble, WorkerStatus
from tokenmill.troubles import percent, rejected_share, truncated_share

# From this width on, shares of truncated and rejected have columns of their own.
WIDE = 110
BARS = (8, 48)
LONGEST_NAME = 40
MOST_SERVERS = 6
MOST_HOSTS = 4
MOST_TROUBLES = 6
FEWEST_ROWS = 3
# What `run` starts by itself needs nobody's doing.
OWN_PARTS = frozenset({"collector", "producer", "workers"})


def live(
    status: Status, console: Console, *, own_parts: bool = False, fitted: bool = True, news: str | None = None
) -> Group:
    """The whole screen.

    Args:
        own_parts: the caller looks after collector, producer and workers itself; they are no troubles.
        fitted: no higher than the terminal.
        news: what keeps the state from being read; it is then the last known one.
    """
    found = [trouble for trouble in status.troubles if not (own_parts and trouble.about in OWN_PARTS)]
    if news is not None:
        found.insert(0, Trouble(level="error", about="redis", what=news, mend="waiting; what is shown is from before"))
    below = [*_shares(status, console.width), *_workers(status.workers), *_servers(status), *_troubles(found)]
    rows = len(status.datasets)
    if fitted:
        # Head, the table's head, the line of those left out, and the cursor's.
        rows = max(FEWEST_ROWS, console.height - 4 - sum(_height(line, console.width) for line in below))
    return Group(_head(status), *_datasets(status.datasets, rows, console), *below)


def _height(line: RenderableType, width: int) -> int:
    if isinstance(line, Table):
        return line.row_count + 1
    return -(-len(str(line)) // width) if isinstance(line, Text) else 1


def _head(status: Status) -> Text:
    spent = sum(dataset.spent for dataset in status.datasets)
    rate = sum(dataset.tokens_per_s for dataset in status.datasets)
    goal, left = "", ""
    if all(dataset.cap is not None for dataset in status.datasets):
        caps = sum(dataset.cap or 0 for dataset in status.datasets)
        goal = f" of {view.tokens(caps)}"
        missing = sum(max(0, (d.cap or 0) - d.spent) for d in status.datasets if not d.complete)
        left = f", {view.duration(missing / rate)} left" if missing and rate else ""
    head = Text(f"{status.run}: ", style="bold")
    head.append("paused" if status.suspended and status.state == "running" else status.state)
    head.append(f", {view.tokens(spent)}{goal} tokens, {view.tokens(round(rate))} tok/s{left}")
    if status.sglang == "simulated":
        head.append("  [simulated SGLang: no real answers]", style="not bold yellow")
    return head


def _datasets(datasets: list[DatasetStatus], rows: int, console: Console) -> list[RenderableType]:
    wide = console.width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=False)
    longest = max(len(dataset.name) for dataset in datasets)
    # What the numbers take at their widest; the name comes next, and the bar gets the rest.
    room = console.width - (73 if wide else 53)
    name_width = max(7, min(longest, LONGEST_NAME, room - BARS[0]))
    table.add_column("dataset", no_wrap=True, width=name_width, overflow="ellipsis")
    bar = max(BARS[0], min(BARS[1], room - name_width))
    table.add_column("", no_wrap=True, width=bar)
    for name in ("spent", "cap", "ends at", "tok/s", "fly", "queue"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("truncated", justify="right", no_wrap=True)
        table.add_column("rejected", justify="right", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    plain = not (console.encoding or "").lower().startswith("utf")
    shown = _chosen(datasets, rows)
    for dataset in shown:
        shares = [_share(truncated_share(dataset)), _share(rejected_share(dataset))] if wide else []
        table.add_row(
            dataset.name,
            _bar(dataset, bar, plain=plain),
            view.tokens(dataset.spent),
            view.tokens(dataset.cap),
            _ends_at(dataset),
            view.tokens(round(dataset.tokens_per_s)),
            str(dataset.leased),
            str(dataset.queued),
            *shares,
            _left(dataset),
        )
    hidden = [dataset for dataset in datasets if dataset not in shown]
    if not hidden:
        return [table]
    complete = sum(dataset.complete for dataset in hidden)
    return [table, Text(f"and {len(hidden)} datasets more, {complete} of them complete", style="dim")]


def _chosen(datasets: list[DatasetStatus], rows: int) -> list[DatasetStatus]:
    """Those that are not complete come first where there is no room for all; the order stays the run file's."""
    if len(datasets) <= rows:
        return datasets
    wanted = sorted(range(len(datasets)), key=lambda at: (datasets[at].complete, at))[:rows]
    return [datasets[at] for at in sorted(wanted)]


def _bar(dataset: DatasetStatus, width: int, *, plain: bool) -> Text:
    if dataset.cap is None:
        return Text("no cap")
    share = min(1.0, dataset.spent / dataset.cap) if dataset.cap else 1.0
    # A bar is full only when its dataset has its tokens.
    full = width if share == 1.0 else int(share * width)
    done, rest = ("#", ".") if plain else ("━", "─")
    colour = "green" if dataset.complete else "cyan"
    return Text(done * full, style=colour) + Text(rest * (width - full), style="dim")


def _ends_at(dataset: DatasetStatus) -> Text:
    short = dataset.cap is not None and dataset.forecast < dataset.cap
    return Text(view.tokens(dataset.forecast), style="yellow" if short else "")


def _left(dataset: DatasetStatus) -> str:
    if dataset.reason == "budget":
        return "complete"
    if dataset.reason == "prompts":
        return "no prompts"
    return view.duration(dataset.eta_s)


def _share(share: float | None) -> Text:
    return Text("-", style="dim") if share is None else Text(percent(share), style="yellow")


def _shares(status: Status, width: int) -> list[Text]:
    """Where there is no room for columns: only what is not zero."""
    lines: list[Text] = []
    if width < WIDE:
        for word, share in (("truncated", truncated_share), ("rejected", rejected_share)):
            found = [(dataset.name, value) for dataset in status.datasets if (value := share(dataset)) is not None]
            if found:
                lines.append(Text(f"{word}: " + ", ".join(f"{name} {percent(value)}" for name, value in found)))
    rejected = sum(dataset.rejected for dataset in status.datasets)
    if rejected and not any(trouble.about == "rejects" for trouble in status.troubles):
        lines.append(Text(f"{rejected} prompts rejected: see rejected.jsonl", style="yellow"))
    return lines


def _workers(workers: list[WorkerStatus]) -> list[Text]:
    if not workers:
        return []
    hosts: dict[str, list[WorkerStatus]] = {}
    for worker in workers:
        hosts.setdefault(worker.host or "unknown host", []).append(worker)
    line = f"workers: {len(workers)}, {_busy(workers)}"
    if len(hosts) > 1:
        named = [f"{len(there)} on {host}" for host, there in list(hosts.items())[:MOST_HOSTS]]
        more = len(hosts) - len(named)
        line += f" ({', '.join(named)}{f' and {more} more hosts' if more > 0 else ''})"
    return [Text(line, style="dim")]


def _busy(workers: list[WorkerStatus]) -> str:
    busy = sum(worker.in_flight for worker in workers)
    known = [worker.slots for worker in workers if worker.slots is not None]
    return f"{busy} of {sum(known)} slots in flight" if len(known) == len(workers) else f"{busy} requests in flight"


def _servers(status: Status) -> list[RenderableType]:
    """Those that are down are among the troubles while the run goes on."""
    shown = [server for server in status.servers if server.state != "down"]
    if len(shown) > MOST_SERVERS:
        running, waiting = sum(server.running for server in shown), sum(server.waiting for server in shown)
        rate = view.tokens(round(sum(server.tokens_per_s for server in shown)))
        line = f"servers: {len(shown)} up, {running} running, {waiting} waiting, {rate} tok/s"
        return [Text(line, style="dim")]
    return [_server(server) for server in shown]


def _server(server: ServerStatus) -> Text:
    draining = " (draining: nothing new is sent to it)" if server.state == "draining" else ""
    return Text(
        f"server {server.url}: {server.running} running, {server.waiting} waiting, "
        f"{view.tokens(round(server.tokens_per_s))} tok/s{draining}",
        style="dim",
    )


def _troubles(found: list[Trouble]) -> list[Text]:
    lines: list[Text] = []
    for trouble in found[:MOST_TROUBLES]:
        line = Text("! ", style="bold red" if trouble.level == "error" else "yellow")
        line.append(f"{trouble.what} -> {trouble.mend}")
        lines.append(line)
    if len(found) > MOST_TROUBLES:
        lines.append(Text(f"! and {len(found) - MOST_TROUBLES} more: see --json", style="red"))
    return lines
