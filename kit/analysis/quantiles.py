"""Quantiles of pooled requests and how far they can be trusted. Knows numbers, not what they measure."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, log
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

CONFIDENCE = 0.95
Numbers: TypeAlias = npt.NDArray[np.float64]


class Quantile(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with its order-statistic interval; `high` None means that no upper bound exists for so few values."""

    value: float
    low: float | None
    high: float | None
    count: int
    indicative: bool


def fewest_for_upper_bound(q: float, confidence: float = CONFIDENCE) -> int:
    """The smallest sample whose largest value bounds the q-quantile from above: 299 for q = 0.99 at 95 %."""
    return ceil(log(1 - confidence) / log(q))


def linear(ordered: Sequence[float] | Numbers, q: float) -> float:
    """The q-quantile of sorted values, linear between the two order statistics around it (numpy's default)."""
    place = (len(ordered) - 1) * q
    below = int(place)
    if below + 1 >= len(ordered):
        return float(ordered[-1])
    return float(ordered[below] + (ordered[below + 1] - ordered[below]) * (place - below))


def quantile(values: Sequence[float], q: float) -> Quantile | None:
    """The q-quantile (linear between order statistics, as SGLang's own client takes it) with its interval.

    The interval is the narrowest pair of order statistics that covers the true quantile with 95 %: it assumes nothing
    of the distribution, but it does assume independent requests, which requests of one batch are not.
    """
    if not values:
        return None
    ordered = sorted(values)
    low, high = _ranks(len(ordered), q)
    return Quantile(
        value=linear(ordered, q),
        low=None if low is None else ordered[low - 1],
        high=None if high is None else ordered[high - 1],
        count=len(ordered),
        indicative=high is None,
    )


@lru_cache(maxsize=4096)
def _ranks(n: int, q: float) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the order statistics that bound the q-quantile; None where no such rank exists.

    P(X_(l) <= quantile < X_(u)) = P(l <= K <= u - 1) with K ~ Binomial(n, q).
    """
    below = bdtr(np.arange(n), n, q)  # below[k] = P(K <= k), k = 0 .. n - 1
    spare = below[n - 1] - CONFIDENCE
    if spare < 0:
        low = int(np.searchsorted(below, 1 - CONFIDENCE, side="right"))
        return (low or None), None
    pairs = []
    for low in range(1, n + 1):
        missed = below[low - 1]
        if missed > spare:
            break
        high = int(np.searchsorted(below, missed + CONFIDENCE)) + 1
        if high <= n:
            pairs.append((high - low, low, high))
    return min(pairs)[1:] if pairs else (None, n)
