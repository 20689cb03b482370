"""The report's page: its sections in order, and writing it as a whole.

It loads nothing: style and charts are in it, and a policy in its head forbids scripts and any address,
should a prompt ever find a way through the escaping.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from budget.errors import UserProblem
from results import disk
from results.reporting import markup
from results.reporting.gather import DatasetFacts, Example, Facts, gather
from results.reporting.markup import text
from workers.contracts import RunConfig

NAME = "report.html"
_MARK = "<!doctype html>\n<!-- a report of Tokenmill -->\n"
_COLUMNS = 72


class ReportProblem(UserProblem):
    """A report that cannot be written where it was asked for."""


def write(
    config: RunConfig,
    *,
    caps: Mapping[str, int | None] | None = None,
    simulated: bool = False,
    path: Path | None = None,
) -> Path:
    """Write the run's report, by default as report.html in the output folder; returns where it is.

    Raises:
        ReportProblem: another file has that name.
        BadFolder, DiskFault, NotWritable: the files cannot be read or written.
    """
    target = path or Path(config.output) / NAME
    with disk.translated(target):
        if target.is_dir() or (target.exists() and not _is_report(target)):
            raise ReportProblem(f"{target} is there and is no report: give another --output, or move it away")
        target.parent.mkdir(parents=True, exist_ok=True)
    disk.replace(target, [page(gather(config, caps=caps, simulated=simulated)).encode("utf-8")])
    return target


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MARK)) in (_MARK.encode(), b"")


def page(facts: Facts) -> str:
    """The whole page."""
    style = resources.files("results.reporting").joinpath("report.css").read_text(encoding="utf-8")
    title = f"{facts.run}: report"
    sections = [_caps(facts), _lengths(facts), _timeline(facts), _servers(facts), _rejects(facts), _made(facts)]
    return (
        f'{_MARK}<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{text(title)}</h1>{_head(facts)}</header><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(facts: Facts) -> str:
    now = datetime.now(UTC)
    tokens = sum(dataset.tokens for dataset in facts.datasets)
    answers = sum(dataset.answers for dataset in facts.datasets)
    truncated = sum(dataset.truncated for dataset in facts.datasets)
    full = sum(_has_its_tokens(dataset) for dataset in facts.datasets)
    tiles = [
        ("Tokens", markup.short(tokens)),
        ("Answers", markup.number(answers)),
        ("Datasets at their cap", f"{full} of {len(facts.datasets)}"),
        ("Truncated", markup.share(truncated, answers)),
        ("Rejected prompts", markup.number(sum(dataset.rejected for dataset in facts.datasets))),
        ("Dropped prompts", markup.number(sum(dataset.dropped for dataset in facts.datasets))),
    ]
    drawn = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in tiles)
    simulated = (
        '<p class="warn">No SGLang server is named in the run file: these answers are the simulated server\'s and mean '
        "nothing.</p>"
        if facts.simulated
        else ""
    )
    return (
        f'<p class="soft">Written <time datetime="{now.isoformat(timespec="seconds")}">'
        f'{now:%Y-%m-%d %H:%M} UTC</time> from the output files.</p>{simulated}<dl class="tiles">{drawn}</dl>'
    )


def _has_its_tokens(dataset: DatasetFacts) -> bool:
    return dataset.cap is not None and dataset.tokens >= dataset.cap


def _section(name: str, title: str, content: str) -> str:
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{text(title)}</h2>{content}</section>'


def _caps(facts: Facts) -> str:
    most = max((max(dataset.tokens, dataset.cap or 0) for dataset in facts.datasets), default=0)
    items: list[str] = []
    for dataset in facts.datasets:
        of = (
            f"of {markup.short(dataset.cap)}, {markup.share(dataset.tokens, dataset.cap)}"
            if dataset.cap
            else ("no cap" if dataset.cap is None else "cap 0")
        )
        amount = f"{markup.short(dataset.tokens)} {of}"
        drawn = markup.bar(dataset.tokens, dataset.cap, most, f"{dataset.name}: {amount}")
        items.append(
            f'<li><span class="name">{text(dataset.name)}</span>{drawn}<span class="amount">{text(amount)}</span></li>'
        )
    heads = ("Dataset", "Cap", "Tokens", "Share", "Prompts", "Answers", "Truncated", "Rejected", "Dropped", "Not ours")
    rows = [
        (
            dataset.name, markup.number(dataset.cap), dataset.tokens,
            markup.share(dataset.tokens, dataset.cap) if dataset.cap else "-", dataset.prompts, dataset.answers,
            dataset.truncated, dataset.rejected, dataset.dropped, dataset.beside,
        )
        for dataset in facts.datasets
    ]  # fmt: skip
    note = "Completion tokens in the files; the mark is the cap."
    if any(dataset.beside for dataset in facts.datasets):
        note += " Tokens that are not ours stand in lines of an earlier pipeline, or in lines that miss something."
    return _section(
        "caps",
        "Tokens and caps",
        f'<p class="soft">{text(note)}</p><ul class="caps">{"".join(items)}</ul>'
        + markup.details("As a table", markup.table("Tokens and caps by dataset", heads, rows)),
    )


def _lengths(facts: Facts) -> str:
    small: list[str] = []
    rows: list[tuple[str | int | float, ...]] = []
    for dataset in facts.datasets:
        lengths = dataset.lengths
        buckets = lengths.rows()
        if not buckets:
            continue
        titles = [
            f"{low:,} to {high:,} tokens: {whole + cut:,} answers" + (f", {cut:,} of them truncated" if cut else "")
            for low, high, whole, cut in buckets
        ]
        median, mean = lengths.quantile(0.5), _mean(dataset)
        label = f"Answer lengths of {dataset.name}: median {median:,}, mean {mean:,.0f}, longest {max(lengths.all):,}"
        middle = buckets[len(buckets) // 2][0] if len(buckets) > 2 else None
        marks = [buckets[0][0], *([] if middle is None else [middle]), buckets[-1][1]]
        small.append(
            f"<div><h3>{text(dataset.name)}</h3>"
            f'<div class="soft">median {median:,} · mean {mean:,.0f} · '
            f"truncated {text(markup.share(dataset.truncated, dataset.answers))}</div>"
            f"{markup.columns([(whole, cut) for _, _, whole, cut in buckets], titles, label)}"
            f"{markup.scale([f'{mark:,}' for mark in marks])}</div>"
        )
        rows += [(dataset.name, f"{low:,} to {high:,}", whole + cut, cut) for low, high, whole, cut in buckets]
    if not small:
        return _section("lengths", "Lengths of answers", "<p>There are no answers yet.</p>")
    quantiles = [
        (
            dataset.name, min(dataset.lengths.all), dataset.lengths.quantile(0.5), _mean(dataset),
            dataset.lengths.quantile(0.9), dataset.lengths.quantile(0.99), max(dataset.lengths.all),
            markup.share(dataset.truncated, dataset.answers),
        )
        for dataset in facts.datasets if dataset.answers
    ]  # fmt: skip
    heads = ("Dataset", "Shortest", "Median", "Mean", "90 %", "99 %", "Longest", "Truncated")
    legend = (
        '<p class="soft"><span class="key main"></span>ended by themselves<span class="key cut"></span>truncated</p>'
    )
    return _section(
        "lengths",
        "Lengths of answers",
        f'{legend}<div class="small">{"".join(small)}</div>'
        + markup.table("Completion tokens of an answer", heads, quantiles)
        + markup.details(
            "The histograms as a table",
            markup.table("Answers by length", ("Dataset", "Tokens", "Answers", "Truncated"), rows, left=2),
        ),
    )


def _mean(dataset: DatasetFacts) -> float:
    return sum(dataset.lengths.all) / max(1, dataset.answers)


def _timeline(facts: Facts) -> str:
    bins = facts.timeline.rows(_COLUMNS)
    if not bins:
        return _section("time", "Tokens over time", "<p>No line says when it was made.</p>")
    width = bins[0][1] - bins[0][0]
    titles = [f"{markup.moment(low)} UTC: {count:,} tokens, {count / width:,.0f} tokens/s" for low, _, count in bins]
    most = max(count for _, _, count in bins)
    label = f"Tokens by the time of their answers, {len(bins)} columns of {width:,} seconds, at most {most:,} tokens"
    drawn = markup.columns([(count, 0) for _, _, count in bins], titles, label)
    rows = [(markup.moment(low), count, count / width) for low, _, count in bins]
    return _section(
        "time",
        "Tokens over time",
        f'<p class="soft">A column is {width:,} s; the highest is {markup.short(most / width)} tokens/s.</p>'
        + drawn.replace('class="columns"', 'class="columns wide"', 1)
        + markup.scale([f"{markup.moment(bins[0][0])} UTC", markup.moment(bins[-1][1], with_day=False)])
        + markup.details("As a table", markup.table("Tokens over time (UTC)", ("From", "Tokens", "Tokens/s"), rows)),
    )


def _servers(facts: Facts) -> str:
    if not facts.servers:
        return _section("servers", "Servers", "<p>There are no answers yet.</p>")
    heads = ("Server", "Answers", "Tokens", "Truncated", "Seconds an answer", "Tokens/s a request")
    most = max(server.tokens for server in facts.servers.values())
    ordered = sorted(facts.servers.items(), key=lambda item: -item[1].tokens)
    items = "".join(
        f'<li><span class="name">{text(url or "unknown")}</span>'
        f"{markup.bar(server.tokens, None, most, f'{url}: {server.tokens:,} tokens')}"
        f'<span class="amount">{markup.short(server.tokens)}</span></li>'
        for url, server in ordered
    )
    rows = [
        (
            url or "unknown", server.answers, server.tokens, server.truncated, server.seconds / server.answers,
            server.tokens / server.seconds if server.seconds else 0.0,
        )
        for url, server in ordered
    ]  # fmt: skip
    return _section(
        "servers",
        "Servers",
        f'<ul class="caps">{items}</ul>' + markup.table("What each server answered", heads, rows),
    )


def _rejects(facts: Facts) -> str:
    rows = [
        (dataset.name, reason, rejects.count)
        for dataset in facts.datasets
        for reason, rejects in dataset.rejects.items()
    ]
    others = [(dataset.name, reason, count) for dataset in facts.datasets for reason, count in dataset.left_out.items()]
    content = "<p>No prompt was rejected.</p>"
    if rows:
        content = markup.table("Rejected prompts by reason", ("Dataset", "Reason", "Prompts"), rows, left=2)
        for dataset in facts.datasets:
            for reason, rejects in dataset.rejects.items():
                examples = "".join(map(_example, rejects.examples))
                content += markup.details(
                    f"{dataset.name}, {reason}: {len(rejects.examples)} of {rejects.count:,}", examples
                )
    if others:
        content += markup.table(
            "Lines of the answers that are no answers of this run", ("Dataset", "Why", "Lines"), others, left=2
        )
    return _section("rejects", "Rejected, and why", content)


def _example(example: Example) -> str:
    return (
        f'<dl class="example"><dt>Prompt</dt><dd>{text(example.id)}</dd><dt>Detail</dt><dd>{text(example.detail)}</dd>'
        f'<dt>Row</dt><dd class="row">{text(example.row)}</dd></dl>'
    )


def _made(facts: Facts) -> str:
    rows = [(model or "unknown", version, count) for (model, version), count in sorted(facts.models.items())]
    content = markup.table("Answers by model", ("Model", "Weights", "Answers"), rows, left=2) if rows else ""
    known = {"Tokenizer": facts.tokenizer, "Tokenizer's hash": facts.made_with.get("tokenizer_hash", ""),
             "Template's hash": facts.made_with.get("template_hash", "")}  # fmt: skip
    made = [(name, value) for name, value in known.items() if value]
    return _section("made", "Made with", content + markup.table("The tokenizer", ("What", "Value"), made, left=2))
