"""The figures of bench/budgets.py as a Markdown table and as a small SVG."""

import math
from collections.abc import Sequence
from typing import Any

FIGURES = (
    ("over the cap, total", "total", 2),
    ("worst dataset", "worst", 2),
    ("lowest dataset", "lowest", 2),
)


def _percent(figure: dict[str, float], digits: int) -> str:
    def one(value: float) -> str:
        return f"{100 * value:+.{digits if abs(value) < 0.1 else 0}f}"

    return f"{one(figure['median'])} ({one(figure['min'])} … {one(figure['max'])})"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """One table: median (lowest … highest of the seeds)."""
    lines = [
        "| slots, lengths | contender | " + " | ".join(f"{title}, %" for title, _, _ in FIGURES)
        + " | makespan / ideal | slots busy, % |",
        "|---|---|" + "---|" * (len(FIGURES) + 2),
    ]  # fmt: skip
    for row in rows:
        makespan, busy = row["makespan"], row["occupancy"]
        cells = [f"{row['slots']:,}, {row['lengths']}", row["contender"]]
        cells += [_percent(row[name], digits) for _, name, digits in FIGURES]
        cells.append(f"{makespan['median']:.3f} ({makespan['min']:.3f} … {makespan['max']:.3f})")
        cells.append(f"{100 * busy['median']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


WIDTH, ROW, HEAD, LEFT, SCALE = 760, 18, 26, 100, 390
LEAST, MOST = 1e-4, 10.0


def _x(value: float) -> float:
    """Where a share of overshoot stands: a logarithmic axis from 0.01 % to 1,000 %."""
    value = min(MOST, max(LEAST, value))
    return LEFT + SCALE * math.log(value / LEAST) / math.log(MOST / LEAST)


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """A panel a cell: the bar is the total over the cap, the dot its worst dataset; the makespan in words."""
    panels = list(dict.fromkeys((row["slots"], row["lengths"]) for row in rows))
    parts: list[str] = []
    y = 30.0
    for slots, lengths in panels:
        parts.append(f'<text x="8" y="{y}" font-weight="bold">{slots:,} slots, {lengths} lengths</text>')
        for row in rows:
            if (row["slots"], row["lengths"]) != (slots, lengths):
                continue
            y += ROW
            total, worst = row["total"]["median"], row["worst"]["median"]
            colour = "#1b7837" if row["contender"] == "forecast" else "#9a9a9a"
            words = f"{100 * total:+.2f} % · worst {100 * worst:+.2f} % · {row['makespan']['median']:.2f} x ideal"
            parts.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{row["contender"]}</text>')
            parts.append(
                f'<rect x="{LEFT}" y="{y - 10}" width="{_x(total) - LEFT:.0f}" height="11" fill="{colour}"/>'
                f'<circle cx="{_x(worst):.0f}" cy="{y - 4.5}" r="4" fill="{colour}" stroke="white"/>'
            )
            parts.append(f'<text x="{LEFT + SCALE + 12}" y="{y}">{words}</text>')
        y += HEAD
    for value, label in ((1e-3, "0.1 %"), (1e-2, "1 %"), (1e-1, "10 %"), (1.0, "100 %")):
        parts.append(
            f'<line x1="{_x(value):.0f}" x2="{_x(value):.0f}" y1="34" y2="{y - HEAD + 6}" stroke="#ccc"'
            f' stroke-dasharray="2 3"/><text x="{_x(value):.0f}" y="{y - 4}" text-anchor="middle">{label}</text>'
        )
    about = "Tokens over the cap: bar, all ten datasets; dot, the worst one (medians, log scale)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 24:.0f}"'
        f' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="14">{about}</text>' + "".join(parts) + "</svg>\n"
    )
