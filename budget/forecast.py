"""Buckets of lengths and ages, and (from them) what a job in flight will still cost.

Pure functions on numbers; no Redis. The edges are part of the wire format: `ages` in Redis counts
finished jobs by length and jobs in flight by age in these buckets, and Lua gets the same edges.
"""

from bisect import bisect_right

# 32 x 2^(b/6), rounded: every bucket is 12 % wider than the one before, from 32 tokens to beyond two million.
EDGES: tuple[int, ...] = tuple(round(32 * 2 ** (b / 6)) for b in range(97))


def bucket(tokens: int) -> int:
    """The bucket that a length or age of `tokens` falls into: how many edges it has reached, 0 to 97."""
    return bisect_right(EDGES, tokens)
