"""Lines over a common axis as a picture: enough for a figure that says "nothing grows"."""

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 56, 150, 26, 34
COLOURS = ("#1b7837", "#2166ac", "#b2182b", "#e08214", "#762a83", "#4d4d4d")

Line = Sequence[tuple[float, float]]


def picture(title: str, across: str, lines: Mapping[str, Line]) -> str:
    """An SVG of lines from 0 on both axes; each is labelled at its end with its last value."""
    most_x = max((x for line in lines.values() for x, _ in line), default=1) or 1
    most_y = _round_up(max((y for line in lines.values() for _, y in line), default=1) or 1)

    def at(x: float, y: float) -> str:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return f"{LEFT + wide * x / most_x:.1f},{HEIGHT - BOTTOM - high * y / most_y:.1f}"

    parts = [f'<text x="8" y="16" font-weight="bold">{title}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = float(at(0, most_y * share).split(",")[1])
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{most_y * share:,.0f}</text>')
    ends = sorted(((line[-1][1], name) for name, line in lines.items() if line), reverse=True)
    below = TOP - 14.0
    for last, name in ends:
        colour = COLOURS[list(lines).index(name) % len(COLOURS)]
        points = " ".join(at(x, y) for x, y in lines[name])
        below = max(below + 14, float(at(0, last).split(",")[1]) + 4)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{below:.0f}" fill="{colour}">{name}, {last:,.0f}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 10}">{across}: 0 to {most_x:,.0f}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif"'
        f' font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _round_up(value: float) -> float:
    """The next 1, 2, 4 or 8 times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value)
