"""The table: every metric at every point for every arm, pooled over seeds, with the seeds' own values beside it."""

from collections.abc import Sequence

import msgspec
import numpy as np

from kit.analysis import metrics
from kit.analysis.quantiles import Quantile, quantile
from kit.analysis.sheet import Entry, Order
from kit.analysis.words import users_text
from kit.plan import Point


class SeedValue(msgspec.Struct, frozen=True, kw_only=True):
    """One trial's value."""

    sitting: int
    block: int
    leg: str
    seed: int
    value: float


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A metric at a point: pooled over the arm's trials; `quantile` with its interval where requests pool to one."""

    metric: str
    value: float
    quantile: Quantile | None = None
    per_seed: list[SeedValue] = []


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one point. `cells` is by metric tag and lacks what is not available."""

    dataset: str
    point: Point
    load: str
    arm: str
    trials: int
    requests: int
    cells: dict[str, Cell]


def load_text(point: Point) -> str:
    """The load in words: users, or requests per second in open loop."""
    if point.rate_per_s is not None:
        return f"{point.rate_per_s:g} req/s"
    return users_text(point.concurrency)


def rows(sheet: Sequence[Entry], order: Order) -> list[Row]:
    """Rows in the order of data set, load and arm."""
    groups: dict[tuple[Point, str], list[Entry]] = {}
    for entry in sheet:
        groups.setdefault((entry.point, entry.arm), []).append(entry)
    return [_row(point, arm, groups[point, arm]) for point, arm in sorted(groups, key=lambda key: order(*key))]


def _row(point: Point, arm: str, group: list[Entry]) -> Row:
    return Row(
        dataset=point.dataset,
        point=point,
        load=load_text(point),
        arm=arm,
        trials=len(group),
        requests=sum(len(metrics.succeeded(e.trial)) for e in group),
        cells={x.tag: c for x in metrics.METRICS if (c := _cell(x, group)) is not None},
    )


def _cell(metric: metrics.Metric, group: list[Entry]) -> Cell | None:
    """One metric over the trials of one arm at one point; None when no trial has it."""
    numbers = np.sort(np.concatenate([e.numbers[metric.tag] for e in group]))
    value = metrics.pooled(metric, numbers)
    if value is None:
        return None
    return Cell(
        metric=metric.tag,
        value=value,
        quantile=quantile(numbers.tolist(), metric.pool) if metric.is_quantile and metric.pool is not None else None,
        per_seed=[_seed_value(e, e.values[metric.tag]) for e in group if metric.tag in e.values],
    )


def _seed_value(entry: Entry, value: float) -> SeedValue:
    start = entry.start
    return SeedValue(sitting=start.sitting, block=start.block, leg=start.leg, seed=entry.seed, value=value)
