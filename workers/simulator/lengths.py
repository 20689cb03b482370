"""How long the simulated answers are: one distribution per dataset.

A draw is a pure function of its key, so the same prompt has the same length whatever server, order or
attempt it comes in; only then can a test compare a disturbed run with an undisturbed one.
"""

import math
import random
from typing import Literal

import msgspec

Shape = Literal["lognormal", "constant", "bimodal", "uniform"]


class LengthSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution of answer lengths in tokens, the end token included.

    `mean` is the mean of the whole distribution in every shape. `sigma` is the spread: of the logarithm
    for lognormal and for both modes of bimodal; for uniform the half width as a share of the mean.
    `long_share` of the answers of a bimodal one are `long_ratio` times as long as the rest: the shape
    that defeats a running mean, because the short ones finish first.
    """

    shape: Shape = "lognormal"
    mean: float = 200.0
    sigma: float = 0.6
    long_share: float = 0.2
    long_ratio: float = 10.0

    def __post_init__(self) -> None:
        if not (self.mean >= 1 and math.isfinite(self.mean)):
            raise ValueError(f"the mean length must be at least 1 token, got {self.mean:g}")
        if not (0 <= self.sigma <= 10):
            raise ValueError(f"sigma must be in [0, 10], got {self.sigma:g}")
        if self.shape == "uniform" and self.sigma > 1:
            raise ValueError(f"sigma of a uniform length is a share of the mean, at most 1, got {self.sigma:g}")
        if not (0 < self.long_share < 1):
            raise ValueError(f"long_share must be between 0 and 1, got {self.long_share:g}")
        if not (self.long_ratio >= 1 and math.isfinite(self.long_ratio)):
            raise ValueError(f"long_ratio must be at least 1, got {self.long_ratio:g}")

    def draw(self, key: int) -> int:
        """The length that belongs to `key`, at least 1."""
        rng = random.Random(key)
        mean = self.mean
        if self.shape == "constant":
            return max(1, round(mean))
        if self.shape == "uniform":
            return max(1, round(mean * (1 + self.sigma * (2 * rng.random() - 1))))
        if self.shape == "bimodal":
            short = mean / (1 - self.long_share + self.long_share * self.long_ratio)
            mean = short * self.long_ratio if rng.random() < self.long_share else short
        mu = math.log(mean) - self.sigma * self.sigma / 2
        return max(1, round(math.exp(mu + self.sigma * rng.gauss(0.0, 1.0))))


def parse_length(text: str) -> tuple[str, LengthSpec]:
    """`NAME=SHAPE:MEAN[:SIGMA[:LONG_SHARE[:LONG_RATIO]]]` as the command line takes it; the name `*` is the default.

    Raises:
        ValueError: it is not of that form, in words that can be shown.
    """
    name, separator, rest = text.partition("=")
    if not separator or not name:
        raise ValueError(f"{text!r} is not NAME=SHAPE:MEAN[:SIGMA]")
    shape, *numbers = rest.split(":")
    fields = ("mean", "sigma", "long_share", "long_ratio")
    if not numbers or len(numbers) > len(fields):
        raise ValueError(f"{text!r} is not NAME=SHAPE:MEAN[:SIGMA[:LONG_SHARE[:LONG_RATIO]]]")
    try:
        values = dict(zip(fields, map(float, numbers), strict=False))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
    try:
        return name, msgspec.convert({"shape": shape, **values}, LengthSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"{text!r}: {error}") from error
