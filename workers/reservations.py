"""What jobs in flight hold of their budgets, how often that is revised, and which dataset is served first.

Numbers in, numbers out: the event loop brings what Redis says, and the benchmark drives the same code in
virtual time. A reservation is only as good as it is fresh: one that is a tenth of an answer old costs the
worst dataset 0.6 % over its cap, one that is two answers old 6 %. So near a cap the reservations are
revised every thirtieth of a mean answer; far from it, with the leases.
"""

from collections.abc import Iterable, Mapping, Sequence

from budget.ages import Ages
from budget.forecast import Curve, mean_length
from workers.contracts import Admission

LOOKS_PER_ANSWER = 30
SHORTEST_S = 0.1
# Between two renewals of all leases only what changes a reservation by a hundredth is told: a tenth of them.
SMALLEST_CHANGE = 100


class Reservations:
    """What a job of each dataset reserves.

    Args:
        most: for each dataset, the most tokens of one answer: what a job reserves until Redis has been heard.
        renew_s: how often leases are renewed, in seconds; the longest time between two revisions.
        total_cap: the run's cap over all its datasets; what datasets that are not served here use of it is not seen.
    """

    def __init__(
        self, admission: Admission, most: Mapping[str, int], renew_s: float, total_cap: int | None = None
    ) -> None:
        self.admission: Admission = admission
        self._total_cap = total_cap
        self._renew_s = renew_s
        self._ages: dict[str, Ages] = {name: Ages() for name in most}
        self._most = dict(most)
        self._curves = {name: Curve({}, {}, tokens) for name, tokens in most.items()}
        self._firsts = dict(most)

    @property
    def forecasts(self) -> bool:
        return self.admission == "forecast"

    def learn(self, ages: Mapping[str, Ages]) -> None:
        """Take in what Redis says of the datasets."""
        for name, now in ages.items():
            curve = Curve(now.finished, now.in_flight, max(now.worst, self._most[name]))
            self._ages[name], self._curves[name] = now, curve
            self._firsts[name] = curve.reserved(0)

    def first(self, dataset: str) -> int:
        """What a job reserves when it is taken (under strict the ledger reserves its worst case itself)."""
        return self._firsts[dataset] if self.forecasts else 0

    def revised(self, dataset: str, age: int, worst: int) -> int:
        """What a job that is `age` tokens old reserves from now on; `worst` is the most that this one can cost."""
        if self.admission == "forecast":
            return min(worst, self._curves[dataset].reserved(age))
        return worst if self.admission == "strict" else 0

    def worth_telling(self, told: int, reserved: int) -> bool:
        """Whether a revision cannot wait for the next renewal of all leases."""
        return abs(reserved - told) * SMALLEST_CHANGE > told

    def near_cap(self) -> list[str]:
        """The datasets whose gate could close if all that is in flight went to them: those to revise often."""
        if not self.forecasts:
            return []
        reserved = sum(ages.reserved for ages in self._ages.values())
        held = [name for name, ages in self._ages.items() if ages.in_flight]
        if self._total_cap is not None:
            spent = sum(ages.spent for ages in self._ages.values())
            if self._total_cap - spent - reserved < reserved:
                return held
        return [name for name in held if (left := self._ages[name].remaining) is not None and left < reserved]

    def pause_s(self, datasets: Iterable[str], speed: float) -> float:
        """How long the reservations of `datasets` stay fresh, at `speed` tokens per second and request."""
        pauses = [self._renew_s]
        for name in datasets:
            mean = mean_length(self._ages[name].finished)
            if mean is not None:
                pauses.append(mean / speed / LOOKS_PER_ANSWER)
        return max(min(SHORTEST_S, self._renew_s), min(pauses))

    def order(self, datasets: Sequence[str], turn: int) -> list[str]:
        """The datasets in the order in which `claim` is to serve them."""
        start = turn % len(datasets)
        return [*datasets[start:], *datasets[:start]]


class Pace:
    """When to renew: all leases every `renew_s`, those of datasets near their caps in between."""

    def __init__(self, renew_s: float) -> None:
        self._renew_s = renew_s
        self._whole_at = 0.0

    def whole(self, now: float) -> bool:
        """Whether all leases are due; asked once each time, since it counts from here."""
        if now < self._whole_at - 0.001:
            return False
        self._whole_at = now + self._renew_s
        return True

    def pause(self, now: float, fresh_s: float) -> float:
        """Seconds to wait, if the reservations near a cap stay fresh for `fresh_s`."""
        return max(0.0, min(fresh_s, self._whole_at - now))
