"""Buckets of lengths and ages, and (from them) what a job in flight will still cost.

Pure functions on numbers; no Redis. The edges are part of the wire format: `ages` in Redis counts
finished jobs by length and jobs in flight by age in these buckets, and Lua gets the same edges.

A running mean of finished answers fails twice: short answers finish first, and what is in flight at any
moment is mostly long ones. So the lengths are estimated as lifetimes are, from those that have ended and
from those still running, of which all that is known is that they reach their age:
E. L. Kaplan and P. Meier, Nonparametric estimation from incomplete observations, J. Am. Stat. Assoc. 53
(1958), on grouped data as S. J. Cutler and F. Ederer, Maximum utilization of the life table method, J.
Chronic Dis. 8 (1958), where whoever is lost in an interval counts as half a case at risk in it.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping

# 32 x 2^(b/6), rounded: every bucket is 12 % wider than the one before, from 32 tokens to beyond two million.
EDGES: tuple[int, ...] = tuple(round(32 * 2 ** (b / 6)) for b in range(97))
STARTS: tuple[int, ...] = (0, *EDGES)

# Answers to the full length that are believed in beside the known ones: the pessimism of little data. They stand
# in the risk set; blended in afterwards, S would still fall to 0 where the longest known answer is a finished one.
PSEUDO_ANSWERS = 100


def bucket(tokens: int) -> int:
    """The bucket that a length or age of `tokens` falls into: how many edges it has reached, 0 to 97."""
    return bisect_right(EDGES, tokens)


class Curve:
    """The share S of a dataset's answers that reach each length, and what follows from it.

    S falls linearly inside a bucket, and from wherever it is to 0 at `most`. In the bucket of `most` it
    stays level: answers that are cut there are as long as `most`, not as long as the middle of a bucket.

    Args:
        finished: finished answers by the bucket of their length.
        in_flight: jobs in flight, of all workers, by the bucket of their age.
        most: the most tokens that any job can cost (max_new_tokens times its turns).
    """

    __slots__ = ("_area", "_last", "_share", "most")

    def __init__(
        self,
        finished: Mapping[int, int],
        in_flight: Mapping[int, int],
        most: int,
        pseudo_answers: float = PSEUDO_ANSWERS,
    ) -> None:
        self.most = most
        self._last = last = bucket(most)
        reach = pseudo_answers + sum(finished.values()) + sum(in_flight.values())
        now = 1.0
        share = [now]
        ended, running = finished.get, in_flight.get
        for b in range(last):
            ends, runs = ended(b, 0), running(b, 0)
            if ends > 0:
                now *= 1.0 - ends / (reach - runs / 2)
            share.append(now)
            reach -= ends + runs
        area = [0.0] * (last + 1)
        area[last] = rest = now * (most - STARTS[last])
        for b in range(last - 1, -1, -1):
            rest += (share[b] + share[b + 1]) / 2 * (STARTS[b + 1] - STARTS[b])
            area[b] = rest
        self._share, self._area = share, area

    def reserved(self, age: int) -> int:
        """The expected whole length of a job that is `age` tokens old, in tokens; `most` when nothing is known.

        Rounded up: many short jobs must not add up to less than they are expected to cost. It never falls
        as a job grows older.
        """
        most = self.most
        if age >= most:
            return most
        age = max(age, 0)
        b = bisect_right(EDGES, age)
        if b >= self._last:
            return most
        start, end = STARTS[b], STARTS[b + 1]
        here, there = self._share[b], self._share[b + 1]
        share = here + (there - here) * (age - start) / (end - start)
        expected = age + ((share + there) / 2 * (end - age) + self._area[b + 1]) / share
        return min(most, math.ceil(expected))

    def share(self, length: int) -> float:
        """The estimated share of answers that reach `length` tokens."""
        if length >= self.most:
            return 0.0
        b = bucket(length)
        if b >= self._last:
            return self._share[self._last]
        here, there = self._share[b], self._share[b + 1]
        return here + (there - here) * (length - STARTS[b]) / (STARTS[b + 1] - STARTS[b])


def mean_length(finished: Mapping[int, int]) -> float | None:
    """The mean of the finished answers, each taken as the middle of its bucket; None where there is none.

    Too low while long answers are still running: it says how often to look, not what to reserve.
    """
    count = sum(finished.values())
    if count <= 0:
        return None
    return sum(ended * (STARTS[b] + STARTS[min(b + 1, len(EDGES))]) / 2 for b, ended in finished.items()) / count
