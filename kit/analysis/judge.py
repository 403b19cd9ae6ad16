"""What may be said of a set of estimates: numbers in, states out. Knows nothing of trials, arms or metrics.

A gain within the margin of 3 % is no gain:

  faster     the whole interval lies above +3 %        slower   the whole interval lies below -3 %
  equal      the whole interval lies within +-3 %      no gain  the interval ends below +3 %
  undecided  the interval reaches over +3 %

So each estimate is decided by one question, on which side of +3 % it lies, and Holm's step-down over the points that a
verdict uses keeps the chance of any wrong side at the level. The margin is also what makes one pair of starts bearable:
two starts of the same server often differ by 1 or 2 %, and a block has only one pair to learn that from.
"""

from collections.abc import Sequence
from math import log

import msgspec

from kit.analysis import noise
from kit.analysis.crossover import State
from kit.analysis.looks import ALPHA
from kit.analysis.noise import Variance

MARGIN = log(1.03)
"""A gain below 3 % is no gain."""
MOST_SEEDS = 100
"""Beyond so many further seeds the answer is 'at least so many', since the estimate of the noise says no more."""


class Estimate(msgspec.Struct, frozen=True):
    """A mean log gain, the variance of that mean and, when it cannot be judged, why."""

    mean: float
    variance: Variance | None
    why_not: str | None = None


class Judgement(msgspec.Struct, frozen=True):
    """What may be said of one estimate: the level of its interval, the interval of the log gain, p and the state."""

    level: float
    low: float
    high: float
    p: float
    state: State


def judge(estimates: Sequence[Estimate], alpha: float = ALPHA) -> list[Judgement | None]:
    """Holm's step-down over the estimates that can be judged; None for the others.

    p is the smallest level at which an estimate is decided: its interval then ends at the margin.
    """
    open_ = {i: p for i, e in enumerate(estimates) if (p := _decided_at(e)) is not None}
    found: list[Judgement | None] = [None] * len(estimates)
    level, stopped = alpha, False
    for step, (i, p) in enumerate(sorted(open_.items(), key=lambda item: item[1])):
        if not stopped:
            level = alpha / (len(open_) - step)
            stopped = p > level
        found[i] = _judgement(estimates[i], level, p)
    return found


def _decided_at(estimate: Estimate) -> float | None:
    if estimate.variance is None or estimate.why_not:
        return None
    distance, error = estimate.mean - MARGIN, estimate.variance.value**0.5
    if error == 0:
        return 0.0
    return noise.t_probability(estimate.variance.df, distance / error)


def _judgement(estimate: Estimate, level: float, p: float) -> Judgement:
    low, high = interval(estimate, level)
    state: State = "undecided"
    if low > MARGIN:
        state = "faster"
    elif high < -MARGIN:
        state = "slower"
    elif high < MARGIN:
        state = "equal" if low > -MARGIN else "no gain"
    return Judgement(level, low, high, p, state)


def interval(estimate: Estimate, level: float) -> tuple[float, float]:
    """The interval of the mean log gain that misses with probability `level`."""
    assert estimate.variance is not None
    half = noise.t_quantile(estimate.variance.df, level) * estimate.variance.value**0.5
    return estimate.mean - half, estimate.mean + half


def more_seeds(estimate: Estimate, level: float, seeds: int) -> int | None:
    """How many further seeds, in blocks of their own, would decide the point if its estimate stays as it is."""
    if estimate.variance is None:
        return None
    distance = abs(estimate.mean - MARGIN)
    for extra in range(1, MOST_SEEDS):
        grown = (seeds + extra) / seeds
        error = (estimate.variance.value / grown) ** 0.5
        if noise.t_quantile(estimate.variance.df * grown, level) * error < distance:
            return extra
    return MOST_SEEDS
