"""Small pieces of HTML, each escaped, with its chart drawn as SVG and its numbers in a table.

Everything that comes from prompts and answers is a stranger's text: it gets into the page through
`text` only. Charts hold no letters, so that they can be stretched to any width; what is to be read
stands beside them in HTML.
"""

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from budget import plain

Cell = str | int | float


def text(value: object) -> str:
    """Escaped for content and for attributes; characters that cannot be seen, and act, become U+FFFD."""
    return html.escape(plain.shown(str(value)), quote=True)


def number(value: float | None, *, digits: int = 0) -> str:
    return "none" if value is None else f"{value:,.{digits}f}"


def short(value: float) -> str:
    """A number of tokens for a label: 950, 12.3K, 10.0M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "K")):
        if value >= limit:
            return f"{value / (1e3 if unit == 'K' else limit):.1f}{unit}"
    return f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    if not whole:
        return "-"
    percent = 100 * part / whole
    if not percent:
        return "0 %"
    return f"{percent:.1f} %" if percent < 10 or percent > 99 else f"{percent:.0f} %"


def moment(seconds: float, *, with_day: bool = True) -> str:
    when = datetime.fromtimestamp(seconds, UTC)
    return when.strftime("%Y-%m-%d %H:%M:%S" if with_day else "%H:%M:%S")


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, left: int = 1) -> str:
    """A table whose first `left` columns are texts and the others numbers; it scrolls where it is too wide."""
    head = "".join(f'<th scope="col"{"" if at < left else _RIGHT}>{text(name)}</th>' for at, name in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cell(at, cell, left) for at, cell in enumerate(row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


_RIGHT = ' class="n"'


def _cell(at: int, cell: Cell, left: int) -> str:
    shown = text(cell if isinstance(cell, str) else number(cell, digits=1 if isinstance(cell, float) else 0))
    if at == 0:
        return f'<th scope="row">{shown}</th>'
    return f"<td{'' if at < left else _RIGHT}>{shown}</td>"


def details(summary: str, content: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def bar(value: float, limit: float | None, most: float, label: str) -> str:
    """One horizontal bar, with a mark at its limit."""
    scale = 1000 / most if most else 0
    mark = (
        "" if limit is None else f'<rect class="mark" x="{min(997.0, limit * scale):.1f}" y="0" width="3" height="16"/>'
    )
    return (
        f'<svg class="bar" viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" aria-label="{text(label)}">'
        f'<rect class="rest" x="0" y="3" width="1000" height="10"/>'
        f'<rect class="main" x="0" y="3" width="{value * scale:.1f}" height="10"/>{mark}</svg>'
    )


def columns(values: Sequence[tuple[float, float]], titles: Sequence[str], label: str) -> str:
    """Columns of two stacked parts each; the title of each is shown where a pointer rests."""
    most = max((low + high for low, high in values), default=0) or 1
    drawn: list[str] = []
    for at, ((low, high), title) in enumerate(zip(values, titles, strict=True)):
        drawn.append(f"<g><title>{text(title)}</title>{_part('main', at, 0, low / most)}")
        drawn.append(f"{_part('cut', at, low / most, high / most)}</g>")
    return (
        f'<svg class="columns" viewBox="0 0 {max(1, len(values))} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}">{"".join(drawn)}</svg>'
    )


def _part(kind: str, at: int, below: float, height: float) -> str:
    if height <= 0:
        return ""
    # What is there at all must be seen.
    tall = max(100 * height, 1.0)
    top = 100 - 100 * below - tall
    return f'<rect class="{kind}" x="{at + 0.06:.2f}" y="{top:.2f}" width="0.88" height="{tall:.2f}"/>'


def scale(labels: Sequence[str]) -> str:
    """The labels below a chart, from its left end to its right."""
    return f'<div class="scale" aria-hidden="true">{"".join(f"<span>{text(label)}</span>" for label in labels)}</div>'
