"""Speculation against plain: seed-paired ratios, their intervals and what may be said of them.

For each seed the logarithm of spec / geometric mean of the two plain runs of the block, on the same workload. Its mean
over seeds has two sources of error, and the interval adds both:

  runs      the seeds' own spread (the points' estimates drawn together, `noise.moderate`) over the number of seeds;
  restarts  the spread of log(last / first) of the plain server, and of blocks from the second on (`noise`). It is
            measured on means over seeds, so a part of the run noise is counted twice: on the safe side.

The degrees of freedom of the sum are Satterthwaite's. A gain within the margin of 3 % is no gain:

  faster     the whole interval lies above +3 %        slower   the whole interval lies below -3 %
  equal      the whole interval lies within +-3 %      no gain  the interval ends below +3 %
  undecided  the interval reaches over +3 %: more seeds, or a block with new starts, are needed

The interval that decides is Holm's over the points that one verdict uses (the loads of one arm on one data set, for the
metrics of one traffic class), at the level of the look (`looks`). A point decided at an early look stays decided.
A point whose client was a bottleneck, or that has no second plain run, is shown and not judged.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import exp, log

import msgspec
import numpy as np

from kit.analysis import metrics, noise, trust
from kit.analysis.crossover import State
from kit.analysis.looks import ALPHA, look_level
from kit.analysis.metrics import Metric
from kit.analysis.noise import Variance
from kit.measurements import Measurements, TrialData
from kit.plan import Point

MARGIN = log(1.03)
"""A gain below 3 % is no gain."""
MOST_SEEDS = 100
"""Beyond so many further seeds the answer is 'more than', since the estimate of the noise says no more."""
LEG = re.compile(r"b(\d+)-(\d+)-")
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
    smallest ratio to plain (above 1) that a single comparison tells from two starts of the same server.
    """

    metric: str
    drift: float
    spread: float | None
    points: int
    blocks: int
    floor: float
    df: float


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


# ---- judging: numbers in, states out --------------------------------------------------------------------------------


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


# ---- from trials to estimates ---------------------------------------------------------------------------------------


class _Start(msgspec.Struct, frozen=True, order=True):
    """One leg: a start of a server within a block of a sitting."""

    sitting: int
    block: int
    order: int
    leg: str

    @property
    def abat(self) -> tuple[int, int]:
        """The A B A that the leg belongs to."""
        return self.sitting, self.block


class _Gains(msgspec.Struct):
    """Log gains of one arm at one point: by seed and by block; `seconds` tells whether plain ran twice."""

    by_seed: dict[int, dict[tuple[int, int], float]]
    complete: bool
    why_not: str | None


def start_of(trial: TrialData) -> _Start:
    """Where a trial stands in the plan, from its leg's name."""
    found = LEG.match(trial.record.leg)
    block, order = (int(found[1]), int(found[2])) if found else (1, 0)
    return _Start(trial.sitting, block, order, trial.record.leg)


def point_of(trial: TrialData) -> Point:
    """Where arms are compared."""
    return Point(trial.record.dataset, trial.record.concurrency, trial.record.rate_per_s)


class Values(msgspec.Struct, frozen=True):
    """One metric of every usable trial, found by arm, point, seed and leg."""

    metric: Metric
    baseline: str
    numbers: dict[str, dict[Point, dict[int, dict[_Start, float]]]]
    untrusted: dict[tuple[str, Point], str]

    def plain_pair(self, point: Point, seed: int, block: tuple[int, int]) -> list[float]:
        """The plain runs of a block: first and, when it was measured, last."""
        legs = self.numbers.get(self.baseline, {}).get(point, {}).get(seed, {})
        found = [legs[s] for s in sorted(legs) if s.abat == block]
        return [found[0], found[-1]] if len(found) > 1 else found


def collect(trials: Iterable[TrialData], metric: Metric, baseline: str) -> Values:
    """Takes the metric of every usable trial once."""
    numbers: dict[str, dict[Point, dict[int, dict[_Start, float]]]] = {}
    untrusted: dict[tuple[str, Point], str] = {}
    for trial in trials:
        number, arm, point = metrics.value(metric, trial), trial.record.arm, point_of(trial)
        if (why := trust.why_not_judged(trial)) is not None:
            untrusted[arm, point] = why
        if number is not None and number > 0:
            seeds = numbers.setdefault(arm, {}).setdefault(point, {})
            seeds.setdefault(trial.record.seed, {})[start_of(trial)] = number
    return Values(metric, baseline, numbers, untrusted)


def _gains(values: Values, arm: str, point: Point) -> _Gains | None:
    """The log gains of an arm at a point; blocks with both plain runs only, unless there is none."""
    sign = 1 if values.metric.better == "higher" else -1
    whole: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    half: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for seed, legs in values.numbers.get(arm, {}).get(point, {}).items():
        for start, number in sorted(legs.items()):
            plain = values.plain_pair(point, seed, start.abat)
            if plain:
                gains = whole if len(plain) == 2 else half
                gains[seed][start.abat] = sign * (log(number) - float(np.mean(np.log(plain))))
    untrusted = values.untrusted.get((arm, point)) or values.untrusted.get((values.baseline, point))
    if whole:
        return _Gains(dict(whole), True, untrusted)
    return _Gains(dict(half), False, "no second plain run: restart noise is unknown") if half else None


def plain_contrasts(values: Values) -> dict[tuple[int, int], dict[Point, float]]:
    """Of each block and point, the mean over seeds of log(last / first) of the plain server."""
    found: dict[tuple[int, int], dict[Point, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point, seeds in values.numbers.get(values.baseline, {}).items():
        for seed, legs in seeds.items():
            for block in {s.abat for s in legs}:
                pair = values.plain_pair(point, seed, block)
                if len(pair) == 2:
                    found[block][point].append(log(pair[1] / pair[0]))
    return {b: {p: float(np.mean(v)) for p, v in sorted(at.items())} for b, at in sorted(found.items())}


def _block_contrasts(gains: Mapping[Point, _Gains]) -> list[list[float]]:
    """From the second block on: how the mean log gain moved between blocks, a list for each further block."""
    moved: dict[int, list[float]] = defaultdict(list)
    for at in gains.values():
        by_block: dict[tuple[int, int], list[float]] = defaultdict(list)
        for seed_gains in at.by_seed.values():
            for block, gain in seed_gains.items():
                by_block[block].append(gain)
        if at.complete:
            for k, value in enumerate(noise.helmert([float(np.mean(by_block[b])) for b in sorted(by_block)])):
                moved[k].append(value)
    return [moved[k] for k in sorted(moved)]


def estimate_all(
    gains: Mapping[Point, Sequence[float]],
    contrasts: Sequence[Sequence[float]],
    block_weight: Mapping[Point, float],
    why_not: Mapping[Point, str | None],
) -> dict[Point, Estimate]:
    """The estimates of one arm and metric. `gains`: a log gain for each seed; `block_weight`: the sum of squares of the
    blocks' shares in the mean (1 for one block, 1/2 for two of equal size)."""
    restarts = noise.restart_variance(contrasts)
    own = [Variance(float(np.var(g, ddof=1)), len(g) - 1) if len(g) > 1 else None for g in gains.values()]
    shared_df = sum(v.df for v in own if v is not None)
    found = {}
    for (point, values), seeds in zip(gains.items(), noise.moderate(own), strict=True):
        mean, why = float(np.mean(values)), why_not[point]
        if seeds is None or restarts is None:
            lacks = "one seed has no spread" if seeds is None else "no second plain run: restart noise is unknown"
            found[point] = Estimate(mean, None, why or lacks)
            continue
        runs = Variance(seeds.value / len(values), min(seeds.df, shared_df))
        start = Variance(restarts.value * block_weight[point], restarts.df)
        found[point] = Estimate(mean, noise.added(runs, start), why)
    return found


def _estimates(values: Values, arm: str) -> tuple[dict[Point, Estimate], dict[Point, _Gains]]:
    points = sorted(values.numbers.get(arm, {}), key=_order)
    gains = {p: g for p in points if (g := _gains(values, arm, p)) is not None}
    contrasts = [[noise.ABA * d for d in at.values()] for at in plain_contrasts(values).values()]
    return (
        estimate_all(
            {p: [float(np.mean(list(b.values()))) for _, b in sorted(g.by_seed.items())] for p, g in gains.items()},
            [*contrasts, *_block_contrasts(gains)],
            {p: _block_weight(g) for p, g in gains.items()},
            {p: g.why_not for p, g in gains.items()},
        ),
        gains,
    )


def _block_weight(gains: _Gains) -> float:
    """The sum of squares of the shares that the blocks have in the mean over seeds."""
    shares: dict[tuple[int, int], float] = defaultdict(float)
    for blocks in gains.by_seed.values():
        for block in blocks:
            shares[block] += 1 / len(blocks) / len(gains.by_seed)
    return sum(s**2 for s in shares.values())


def _order(point: Point) -> tuple[str, float, int]:
    return point.dataset, point.rate_per_s or 0.0, point.concurrency


# ---- the whole run --------------------------------------------------------------------------------------------------


class _Key(msgspec.Struct, frozen=True, order=True):
    dataset: str
    arm: str
    family: str


def compare(m: Measurements, baseline: str, datasets: Sequence[str], arms: Sequence[str]) -> list[Ratio]:
    """Every ratio of the run, in the order of data set, load, arm and metric, each look judged at its own level."""
    looks = {int(b["number"]): int(b.get("look", 1)) for b in m.run.blocks}
    planned = max([m.run.looks_planned, *looks.values()])
    found: dict[tuple[Point, str, str], Ratio] = {}
    usable = trust.usable(m)
    for look in sorted({looks.get(start_of(t).block, 1) for t in usable} or {1}):
        seen = [t for t in usable if looks.get(start_of(t).block, 1) <= look]
        for ratio in _compare_once(seen, baseline, arms, look, look_level(look, planned)):
            key = (ratio.point, ratio.arm, ratio.metric)
            found[key] = _kept(found.get(key), ratio)
    rank = {tag: i for i, tag in enumerate(metrics.BY_TAG)}
    place = {name: i for i, name in enumerate([*datasets, *arms])}
    return sorted(
        found.values(),
        key=lambda r: (place.get(r.dataset, 0), _order(r.point)[1:], place.get(r.arm, 0), rank[r.metric]),
    )


def _kept(before: Ratio | None, now: Ratio) -> Ratio:
    """What an earlier look decided stays; the estimate and its intervals are those of all data."""
    if before is None or before.state == "undecided":
        return now
    return msgspec.structs.replace(now, state=before.state, look=before.look, more_seeds=None)


def _compare_once(
    trials: Sequence[TrialData], baseline: str, arms: Sequence[str], look: int, alpha: float
) -> list[Ratio]:
    rows: list[tuple[_Key, Metric, Point, Estimate, _Gains]] = []
    for metric in (x for x in metrics.METRICS if x.compared):
        values = collect(trials, metric, baseline)
        for arm in (a for a in arms if a != baseline):
            estimates, gains = _estimates(values, arm)
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
    key: _Key, metric: Metric, point: Point, estimate: Estimate, gains: _Gains, verdict: Judgement | None, look: int
) -> Ratio:
    sign = 1 if metric.better == "higher" else -1
    seeds = [SeedRatio(seed=s, blocks=[b for _, b in sorted(at)], ratio=exp(sign * float(np.mean(list(at.values())))))
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
    if len(logs) < 2:
        return None, None
    half = noise.t_quantile(len(logs) - 1, ALPHA) * float(np.std(logs, ddof=1)) / len(logs) ** 0.5
    return exp(float(np.mean(logs)) - half), exp(float(np.mean(logs)) + half)


def _oriented(gain: tuple[float, float], sign: int) -> tuple[float, float]:
    """An interval of the log gain as one of the ratio spec / plain."""
    low, high = exp(sign * gain[0]), exp(sign * gain[1])
    return (low, high) if sign > 0 else (high, low)


def noise_floors(m: Measurements, baseline: str) -> list[Noise]:
    """Drift, spread and floor of every compared metric; none for a metric without a block whose plain ran twice."""
    found = []
    for metric in (x for x in metrics.METRICS if x.compared):
        blocks = plain_contrasts(collect(trust.usable(m), metric, baseline))
        logs = [d for at in blocks.values() for d in at.values()]
        variance = noise.restart_variance([[noise.ABA * d for d in at.values()] for at in blocks.values()])
        if variance is None:
            continue
        floor = exp(noise.t_quantile(variance.df, ALPHA) * (variance.value / len(blocks)) ** 0.5)
        found.append(Noise(
            metric=metric.tag, drift=exp(float(np.mean(logs))), points=len({p for at in blocks.values() for p in at}),
            spread=float(np.std(logs, ddof=1)) if len(logs) > 1 else None, blocks=len(blocks), floor=floor,
            df=variance.df,
        ))  # fmt: skip
    return found


def undecided(ratios: Sequence[Ratio], judged: Sequence[str] | None = None) -> list[Point]:
    """The points at which a judged metric is undecided and more seeds may help: where `--until-decided` goes on."""
    tags = judged or list(CLASSES)
    return sorted({r.point for r in ratios if r.metric in tags and r.state == "undecided" and r.more_seeds}, key=_order)
