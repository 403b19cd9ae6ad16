"""Speculation against plain: seed-paired ratios, their intervals and what may be said of them.

For each seed the logarithm of spec / geometric mean of the two plain runs of the block, on the same workload. Its mean
over seeds has two sources of error, and the interval adds both:

  runs      the seeds' own spread (the points' estimates drawn together, `noise.moderate`) over the number of seeds;
  restarts  the spread of log(last / first) of the plain server, and of blocks from the second on (`noise`). It is
            measured on means over seeds, so a part of the run noise is counted twice: on the safe side.

The degrees of freedom of the sum are Satterthwaite's. The interval that decides (`judge`) is Holm's over the points
that one verdict uses: the loads of one arm on one data set, for the metrics of one traffic class; at the level of the
look (`looks`). A point decided at an early look stays decided. A point that has no second plain run is shown and not
judged, and so is a metric whose client lagged by too much of what the metric times (`trust`).
"""

from collections.abc import Sequence
from itertools import groupby
from math import exp, log
from statistics import fmean, stdev

import msgspec

from kit.analysis import metrics, noise, pairing
from kit.analysis.crossover import State
from kit.analysis.judge import Estimate, Judgement, interval, judge, more_seeds
from kit.analysis.looks import ALPHA, look_level
from kit.analysis.metrics import Metric
from kit.analysis.sheet import Entry, Order
from kit.measurements import RunRecord
from kit.plan import Point

CLASSES = {
    "output_throughput_tok_s": "batch",
    "tpot_p50_ms": "interactive",
    "ttft_p99_ms": "interactive",
}
"""Which traffic class's verdict leans on a metric; the others are judged each by itself."""


class SeedRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Spec / plain of one seed; over the geometric mean of its blocks when it was measured in several."""

    seed: int
    blocks: list[int]
    ratio: float


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one arm against plain at one point. Ratios are spec / plain; `gain` is above 1 when spec is better.

    `seed_low`, `seed_high`: 95 % t-interval over the seeds alone. `low`, `high`: 95 % with restarts.
    `judged_low`, `judged_high`: the wider one that decided, at `level`. `more_seeds` is how many more an undecided
    point is likely to need: None when it is decided or nothing can be said, 100 for "at least 100".
    """

    dataset: str
    point: Point
    arm: str
    metric: str
    better: str
    family: str
    ratio: float
    gain: float
    seeds: int
    blocks: int
    per_seed: list[SeedRatio]
    seed_low: float | None = None
    seed_high: float | None = None
    low: float | None = None
    high: float | None = None
    judged_low: float | None = None
    judged_high: float | None = None
    level: float | None = None
    p: float | None = None
    state: State = "undecided"
    look: int = 1
    more_seeds: int | None = None
    note: str | None = None


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """The noise floor of one metric, from the plain server that ran twice in each block.

    `drift` is the mean of last / first over points, `spread` the standard deviation of its logarithm, `floor` the
    smallest ratio to plain (above 1) that a single comparison tells from two starts of the same server: None when so
    few starts tell less than a factor of ten.
    """

    metric: str
    drift: float
    spread: float | None
    points: int
    blocks: int
    floor: float | None
    df: float


# ---- the whole run --------------------------------------------------------------------------------------------------


class _Key(msgspec.Struct, frozen=True, order=True):
    dataset: str
    arm: str
    family: str


def compare(run: RunRecord, sheet: Sequence[Entry], baseline: str, arms: Sequence[str], order: Order) -> list[Ratio]:
    """Every ratio of the run, in the order of data set, load, arm and metric, each look judged at its own level."""
    looks = {int(b["number"]): int(b.get("look", 1)) for b in run.blocks}
    planned = max([run.looks_planned, *looks.values()])
    found: dict[tuple[Point, str, str], Ratio] = {}
    for look in sorted({looks.get(e.start.block, 1) for e in sheet}):
        seen = [e for e in sheet if looks.get(e.start.block, 1) <= look]
        for ratio in _compare_once(seen, baseline, arms, look, look_level(look, planned)):
            key = (ratio.point, ratio.arm, ratio.metric)
            found[key] = _kept(found.get(key), ratio)
    rank = {tag: i for i, tag in enumerate(metrics.BY_TAG)}
    return sorted(found.values(), key=lambda r: (order(r.point, r.arm), rank[r.metric]))


def _kept(before: Ratio | None, now: Ratio) -> Ratio:
    """What an earlier look decided stays; the estimate and its intervals are those of all data."""
    if before is None or before.state == "undecided":
        return now
    return msgspec.structs.replace(now, state=before.state, look=before.look, more_seeds=None)


def _compare_once(sheet: Sequence[Entry], baseline: str, arms: Sequence[str], look: int, alpha: float) -> list[Ratio]:
    rows: list[tuple[_Key, Metric, Point, Estimate, pairing.Gains]] = []
    for metric in (x for x in metrics.METRICS if x.compared):
        values = pairing.collect(sheet, metric, baseline)
        for arm in (a for a in arms if a != baseline):
            estimates, gains = pairing.estimates(values, arm)
            family = CLASSES.get(metric.tag, metric.tag)
            rows += [
                (_Key(p.dataset, arm, family), metric, p, estimate, gains[p])
                for p, estimate in estimates.items()
            ]  # fmt: skip
    found = []
    for _, family_rows in groupby(sorted(rows, key=lambda r: r[0]), key=lambda r: r[0]):
        members = list(family_rows)
        for (key, metric, point, estimate, at), verdict in zip(
            members, judge([r[3] for r in members], alpha), strict=True
        ):
            found.append(_ratio(key, metric, point, estimate, at, verdict, look))
    return found


def _ratio(
    key: _Key,
    metric: Metric,
    point: Point,
    estimate: Estimate,
    gains: pairing.Gains,
    verdict: Judgement | None,
    look: int,
) -> Ratio:
    sign = 1 if metric.better == "higher" else -1
    seeds = [SeedRatio(seed=s, blocks=[b for _, b in sorted(at)], ratio=exp(sign * fmean(at.values())))
             for s, at in sorted(gains.by_seed.items())]  # fmt: skip
    seed_low, seed_high = _seed_interval([log(s.ratio) for s in seeds])
    low, high = _oriented(interval(estimate, ALPHA), sign) if estimate.variance else (None, None)
    judged_low, judged_high = _oriented((verdict.low, verdict.high), sign) if verdict else (None, None)
    open_ = verdict is not None and verdict.state == "undecided"
    return Ratio(
        dataset=key.dataset, point=point, arm=key.arm, metric=metric.tag, better=metric.better, family=key.family,
        ratio=exp(sign * estimate.mean), gain=exp(estimate.mean), seeds=len(seeds),
        blocks=len({b for at in gains.by_seed.values() for b in at}), per_seed=seeds,
        seed_low=seed_low, seed_high=seed_high, low=low, high=high, judged_low=judged_low, judged_high=judged_high,
        level=verdict.level if verdict else None, p=verdict.p if verdict else None,
        state=verdict.state if verdict else "undecided", look=look, note=estimate.why_not,
        more_seeds=more_seeds(estimate, verdict.level, len(seeds)) if open_ and verdict else None,
    )  # fmt: skip


def _seed_interval(logs: list[float]) -> tuple[float | None, float | None]:
    """The plain 95 % t-interval over seeds: three seeds have two degrees of freedom and t = 4.30."""
    single = noise.seed_variance(logs)
    if single is None:
        return None, None
    half = noise.t_quantile(single.df, ALPHA) * (single.value / len(logs)) ** 0.5
    return exp(fmean(logs) - half), exp(fmean(logs) + half)


def _oriented(gain: tuple[float, float], sign: int) -> tuple[float, float]:
    """An interval of the log gain as one of the ratio spec / plain."""
    low, high = exp(sign * gain[0]), exp(sign * gain[1])
    return (low, high) if sign > 0 else (high, low)


def noise_floors(sheet: Sequence[Entry], baseline: str) -> list[Noise]:
    """Drift, spread and floor of every compared metric; none for a metric without a block whose plain ran twice."""
    found = []
    for metric in (x for x in metrics.METRICS if x.compared):
        blocks = pairing.plain_contrasts(pairing.collect(sheet, metric, baseline))
        logs = [d for at in blocks.values() for d in at.values()]
        variance = noise.restart_variance([[noise.ABA * d for d in at.values()] for at in blocks.values()])
        if variance is None:
            continue
        least = noise.t_quantile(variance.df, ALPHA) * (variance.value / len(blocks)) ** 0.5
        found.append(Noise(
            metric=metric.tag, drift=exp(fmean(logs)), points=len({p for at in blocks.values() for p in at}),
            spread=stdev(logs) if len(logs) > 1 else None, blocks=len(blocks), df=variance.df,
            floor=exp(least) if least < log(10) else None,
        ))  # fmt: skip
    return found
