"""How much two starts of the same server differ, and how sure a mean over seeds is. Pure arithmetic on logarithms.

Seeds on one server share its start, so their spread says nothing of the luck of that start. What says it is the plain
server that runs first and again last (A B A). With run noise e, restart noise r and n seeds, the logarithm of
spec / geometric mean of the two plain runs, averaged over seeds, has the variance

    V = 3/2 var(r) + 3/2 var(e) / n,          and  D = mean log(last / first)  has  2 var(r) + 2 var(e) / n = 4/3 V.

So sqrt(3/4) D is one draw of the error of the mean log ratio, whatever the shares of r and e. From the second block on,
the differences of the mean log ratio between blocks are further draws, and then of the speculative server's starts too.
All these `contrasts` are squared about zero, not about their mean: a drift of the machine is in them as well.

Until a second block there is no draw of the speculative server's starts, which are taken to be as lucky as plain's.

A start that is fast at one load is often fast at all, so P points of one pair of starts are not P independent draws.
Their intraclass correlation rho is estimated from the contrasts, and their degrees of freedom are P / (1 + (P-1) rho^2)
for each pair, which is the variance of a mean of squares of equally correlated normal values.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf, isinf, log
from statistics import fmean

import msgspec
from scipy.special import psi, stdtr, stdtrit, zeta

ABA = (3 / 4) ** 0.5
"""Turns D = mean log(last / first) into a draw of the error of spec / geometric mean of first and last."""


class Variance(msgspec.Struct, frozen=True):
    """An estimate of a variance and the degrees of freedom behind it (infinite when it is known)."""

    value: float
    df: float


def seed_variance(values: Sequence[float]) -> Variance | None:
    """The sample variance of single values; None for fewer than two."""
    if len(values) < 2:
        return None
    return Variance(_square_sum(values, fmean(values)) / (len(values) - 1), len(values) - 1)


def restart_variance(contrasts: Sequence[Sequence[float]]) -> Variance | None:
    """The variance of one block's mean log ratio; each inner sequence holds the points of one pair of starts."""
    groups = [c for c in contrasts if len(c)]
    count = sum(len(g) for g in groups)
    if not count:
        return None
    size = count / len(groups)
    shared = 1 + (size - 1) * _intraclass(groups) ** 2
    return Variance(sum(_square_sum(g, 0.0) for g in groups) / count, count / shared)


def _intraclass(groups: Sequence[Sequence[float]]) -> float:
    """The correlation of points that share a pair of starts, between 0 and 1, by the analysis of variance."""
    count = sum(len(g) for g in groups)
    if count == len(groups):
        return 0.0
    between = sum(len(g) * fmean(g) ** 2 for g in groups) / len(groups)
    within = sum(_square_sum(g, fmean(g)) for g in groups) / (count - len(groups))
    whole = between + (count / len(groups) - 1) * within
    return max(0.0, (between - within) / whole) if whole > 0 else 0.0


def _square_sum(values: Sequence[float], about: float) -> float:
    return sum([(v - about) ** 2 for v in values])


def helmert(means: Sequence[float]) -> list[float]:
    """Independent contrasts of repeated means, each with the variance of one of them."""
    return [
        (means[k] - sum(means[:k]) / k) * (k / (k + 1)) ** 0.5
        for k in range(1, len(means))
    ]  # fmt: skip


def moderate(variances: Sequence[Variance | None]) -> list[Variance | None]:
    """Draws the points' own seed variances towards their common value, as far as they agree (moderated t, Smyth 2004).

    Three seeds give two degrees of freedom for each point, and seven points hold seven estimates of much the same
    thing. How much the logarithms of the estimates scatter beyond what chance explains tells how alike the points are:
    alike, they share all their degrees of freedom; unlike, each point keeps its own.
    """
    known = [v for v in variances if v is not None and v.value > 0 and v.df > 0]
    if len(known) < 2:
        return list(variances)
    prior = _prior(known)
    return [None if v is None else _drawn(v, prior) for v in variances]


def _prior(known: list[Variance]) -> Variance:
    """The common variance and how many degrees of freedom it is worth."""
    logs = [log(v.value) - _digamma(v.df / 2) + log(v.df / 2) for v in known]
    mean = fmean(logs)
    beyond = _square_sum(logs, mean) / (len(logs) - 1) - fmean(_trigamma_of(v.df / 2) for v in known)
    if beyond <= 0:
        total = sum(v.df for v in known)
        return Variance(sum(v.value * v.df for v in known) / total, inf)
    half = _inverse_trigamma(beyond)
    return Variance(exp(mean + float(psi(half)) - log(half)), 2 * half)


def _drawn(own: Variance, prior: Variance) -> Variance:
    if isinf(prior.df):
        return prior
    df = own.df + prior.df
    return Variance((own.value * own.df + prior.value * prior.df) / df, df)


def _trigamma(x: float) -> float:
    return float(zeta(2, x))


_digamma = lru_cache(lambda x: float(psi(x)))
_trigamma_of = lru_cache(_trigamma)


def _inverse_trigamma(y: float) -> float:
    """x with trigamma(x) = y, by Newton's steps on 1/trigamma, which is nearly straight (its slope: -2 zeta(3, x))."""
    x = 0.5 + 1 / y
    for _ in range(50):
        value = _trigamma(x)
        step = value * (1 - value / y) / (-2 * float(zeta(3, x)))
        x += step
        if abs(step) < 1e-9 * x:
            break
    return x


def added(first: Variance, second: Variance) -> Variance:
    """The sum of two independent variance estimates, with Satterthwaite's degrees of freedom."""
    total = first.value + second.value
    if total == 0:
        return Variance(0.0, min(first.df, second.df))
    return Variance(total, total**2 / (first.value**2 / first.df + second.value**2 / second.df))


def t_quantile(df: float, level: float) -> float:
    """The factor of a two-sided interval that misses with probability `level`."""
    return float(stdtrit(min(df, 1e6), 1 - level / 2))


def t_probability(df: float, t: float) -> float:
    """The two-sided probability of a t beyond +-t."""
    return float(2 * stdtr(min(df, 1e6), -abs(t)))
