"""How much random prompts, or an end token that is ignored, flatter or wrong speculation on this host.

The bias is the ratio of two ratios: what speculation gains on random prompts over what it gains on the reader's own, at
the same load. The local counterpart of published figures; it means something with real weights only.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import exp, log
from typing import Literal

import msgspec

from kit.analysis.conditions import RANDOM_SOURCES
from kit.analysis.noise import Variance, added, seed_variance, t_quantile
from kit.analysis.ratios import Ratio
from kit.plan import Point
from kit.scenario import Dataset

METRICS = ("output_throughput_tok_s", "tpot_p50_ms")


class Bias(msgspec.Struct, frozen=True, kw_only=True):
    """The gain on one data set over the gain on another. Above 1, the first one flatters speculation.

    `kind` "random prompts": `over` is random and `under` is not. "ignored end token": the same source, with and without
    `ignore_eos`. The interval is over seeds only: both data sets ran on the same starts.
    """

    kind: Literal["random prompts", "ignored end token"]
    arm: str
    metric: str
    concurrency: int
    over: str
    under: str
    over_ignores_eos: bool
    under_ignores_eos: bool
    factor: float
    low: float | None
    high: float | None


def biases(ratios: Sequence[Ratio], datasets: Mapping[str, Dataset]) -> list[Bias]:
    """Every pair of data sets that tells of a bias, at every fixed concurrency that both have."""
    at: dict[tuple[str, str, Point], Ratio] = {
        (r.arm, r.metric, r.point): r for r in ratios if r.metric in METRICS and r.point.rate_per_s is None
    }
    found = []
    for over, under in product(datasets, datasets):
        kind = _kind(datasets[over], datasets[under])
        for (arm, metric, point), first in at.items():
            second = at.get((arm, metric, Point(under, point.concurrency)))
            if kind is not None and point.dataset == over and second is not None:
                found.append(_bias(kind, first, second, datasets))
    return found


def _kind(over: Dataset, under: Dataset) -> Literal["random prompts", "ignored end token"] | None:
    if over.source in RANDOM_SOURCES and under.source not in RANDOM_SOURCES:
        return "random prompts"
    same = (over.source, over.path) == (under.source, under.path)
    return "ignored end token" if same and over.ignore_eos and not under.ignore_eos else None


def _bias(
    kind: Literal["random prompts", "ignored end token"], over: Ratio, under: Ratio, datasets: Mapping[str, Dataset]
) -> Bias:
    difference = log(over.gain / under.gain)
    spread = _spread(over), _spread(under)
    half = None
    if spread[0] is not None and spread[1] is not None:
        variance = added(spread[0], spread[1])
        half = t_quantile(variance.df, 0.05) * variance.value**0.5
    return Bias(
        kind=kind,
        arm=over.arm,
        metric=over.metric,
        concurrency=over.point.concurrency,
        over=over.dataset,
        under=under.dataset,
        over_ignores_eos=datasets[over.dataset].ignore_eos,
        under_ignores_eos=datasets[under.dataset].ignore_eos,
        factor=exp(difference),
        low=None if half is None else exp(difference - half),
        high=None if half is None else exp(difference + half),
    )


def _spread(ratio: Ratio) -> Variance | None:
    """The variance of the mean log ratio over seeds."""
    single = seed_variance([log(s.ratio) for s in ratio.per_seed])
    return Variance(single.value / len(ratio.per_seed), single.df) if single else None
