"""From the sheet to paired log gains: seeds pair arms, blocks pair an arm with the plain runs before and after it.

Knows nothing of what is concluded.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import log
from statistics import fmean

import msgspec

from kit.analysis import noise
from kit.analysis.judge import Estimate
from kit.analysis.metrics import Metric
from kit.analysis.noise import Variance
from kit.analysis.sheet import Entry, Start, point_order
from kit.plan import Point

NO_LAST_PLAIN = "no second plain run: restart noise is unknown"


class Gains(msgspec.Struct, frozen=True):
    """Log gains of one arm at one point by seed and by block; `complete` when plain ran twice in those blocks."""

    by_seed: dict[int, dict[tuple[int, int], float]]
    complete: bool
    why_not: str | None


class Values(msgspec.Struct, frozen=True):
    """One metric of every usable trial, found by arm, point, seed and leg."""

    metric: Metric
    baseline: str
    numbers: dict[str, dict[Point, dict[int, dict[Start, float]]]]
    untrusted: dict[tuple[str, Point], str]

    def plain_pair(self, point: Point, seed: int, block: tuple[int, int]) -> list[float]:
        """The plain runs of a block: first and, when it was measured, last."""
        legs = self.numbers.get(self.baseline, {}).get(point, {}).get(seed, {})
        found = [legs[s] for s in sorted(legs) if s.aba == block]
        return [found[0], found[-1]] if len(found) > 1 else found


def collect(entries: Iterable[Entry], metric: Metric, baseline: str) -> Values:
    """One metric out of the sheet. A metric of 0 has no logarithm and takes no part."""
    numbers: dict[str, dict[Point, dict[int, dict[Start, float]]]] = {}
    untrusted: dict[tuple[str, Point], str] = {}
    for entry in entries:
        if metric.times in entry.why_not:
            untrusted[entry.arm, entry.point] = entry.why_not[metric.times]
        number = entry.values.get(metric.tag, 0.0)
        if number > 0:
            numbers.setdefault(entry.arm, {}).setdefault(entry.point, {}).setdefault(entry.seed, {})[entry.start] = (
                number
            )
    return Values(metric, baseline, numbers, untrusted)


def gains_at(values: Values, arm: str, point: Point) -> Gains | None:
    """The log gains of an arm at a point; blocks with both plain runs only, unless there is none."""
    sign = 1 if values.metric.better == "higher" else -1
    whole: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    half: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for seed, legs in values.numbers.get(arm, {}).get(point, {}).items():
        for start, number in sorted(legs.items()):
            plain = values.plain_pair(point, seed, start.aba)
            if plain:
                gains = whole if len(plain) == 2 else half
                gains[seed][start.aba] = sign * (log(number) - fmean(map(log, plain)))
    untrusted = values.untrusted.get((arm, point)) or values.untrusted.get((values.baseline, point))
    if whole:
        return Gains(dict(whole), True, untrusted)
    return Gains(dict(half), False, NO_LAST_PLAIN) if half else None


def plain_contrasts(values: Values) -> dict[tuple[int, int], dict[Point, float]]:
    """Of each block and point, the mean over seeds of log(last / first) of the plain server."""
    found: dict[tuple[int, int], dict[Point, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point, seeds in values.numbers.get(values.baseline, {}).items():
        for seed, legs in seeds.items():
            for block in {s.aba for s in legs}:
                pair = values.plain_pair(point, seed, block)
                if len(pair) == 2:
                    found[block][point].append(log(pair[1] / pair[0]))
    return {b: {p: fmean(v) for p, v in sorted(at.items())} for b, at in sorted(found.items())}


def block_contrasts(gains: Mapping[Point, Gains]) -> list[list[float]]:
    """From the second block on: how the mean log gain moved between blocks, a list for each further block."""
    moved: dict[int, list[float]] = defaultdict(list)
    for at in gains.values():
        by_block: dict[tuple[int, int], list[float]] = defaultdict(list)
        for seed_gains in at.by_seed.values():
            for block, gain in seed_gains.items():
                by_block[block].append(gain)
        if at.complete:
            for k, value in enumerate(noise.helmert([fmean(by_block[b]) for b in sorted(by_block)])):
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
    own = [noise.seed_variance(g) for g in gains.values()]
    shared_df = sum(v.df for v in own if v is not None)
    found = {}
    for (point, values), seeds in zip(gains.items(), noise.moderate(own), strict=True):
        mean, why = fmean(values), why_not[point]
        if seeds is None or restarts is None:
            lacks = "one seed has no spread" if seeds is None else NO_LAST_PLAIN
            found[point] = Estimate(mean, None, why or lacks)
            continue
        runs = Variance(seeds.value / len(values), min(seeds.df, shared_df))
        start = Variance(restarts.value * block_weight[point], restarts.df)
        found[point] = Estimate(mean, noise.added(runs, start), why)
    return found


def estimates(values: Values, arm: str) -> tuple[dict[Point, Estimate], dict[Point, Gains]]:
    """The estimate of an arm at every point at which it was measured beside plain, and what it is made from."""
    points = sorted(values.numbers.get(arm, {}), key=point_order)
    gains = {p: g for p in points if (g := gains_at(values, arm, p)) is not None}
    contrasts = [[noise.ABA * d for d in at.values()] for at in plain_contrasts(values).values()]
    return (
        estimate_all(
            {p: [fmean(b.values()) for _, b in sorted(g.by_seed.items())] for p, g in gains.items()},
            [*contrasts, *block_contrasts(gains)],
            {p: _block_weight(g) for p, g in gains.items()},
            {p: g.why_not for p, g in gains.items()},
        ),
        gains,
    )


def _block_weight(gains: Gains) -> float:
    """The sum of squares of the shares that the blocks have in the mean over seeds."""
    shares: dict[tuple[int, int], float] = defaultdict(float)
    for blocks in gains.by_seed.values():
        for block in blocks:
            shares[block] += 1 / len(blocks) / len(gains.by_seed)
    return sum(s**2 for s in shares.values())
