"""What was over time, in bounded memory: when it is full, every two points become one, and later ones are as wide."""

import msgspec


class Point(msgspec.Struct, frozen=True):
    """One moment: Unix time in seconds, tokens per second of all datasets, requests in flight, and slots in all."""

    time: float
    tokens_per_s: float
    in_flight: float
    slots: float


class History:
    """The points so far, at most `most` of them."""

    def __init__(self, most: int = 1200) -> None:
        self.points: list[Point] = []
        self._most = most
        self._wide = 1
        self._pending: list[Point] = []

    def add(self, point: Point) -> None:
        self._pending.append(point)
        if len(self._pending) < self._wide:
            return
        self.points.append(_mean(self._pending))
        self._pending = []
        if len(self.points) > self._most:
            self.points = [_mean(self.points[at : at + 2]) for at in range(0, len(self.points), 2)]
            self._wide *= 2


def _mean(points: list[Point]) -> Point:
    """The latest moment, with the mean of the rest."""
    count = len(points)
    return Point(
        time=points[-1].time,
        tokens_per_s=sum(point.tokens_per_s for point in points) / count,
        in_flight=sum(point.in_flight for point in points) / count,
        slots=sum(point.slots for point in points) / count,
    )
