"""The table: every metric at every point for every arm, pooled over seeds, with the seeds' own values beside it."""

from collections.abc import Sequence

import msgspec

from kit.analysis import metrics
from kit.analysis.quantiles import Quantile, quantile
from kit.analysis.ratios import point_of, start_of
from kit.measurements import TrialData
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
    return f"{point.concurrency} user{'' if point.concurrency == 1 else 's'}"


def rows(trials: Sequence[TrialData], datasets: Sequence[str], arms: Sequence[str]) -> list[Row]:
    """Rows in the order of data set, load and arm."""
    groups: dict[tuple[Point, str], list[TrialData]] = {}
    for t in trials:
        groups.setdefault((point_of(t), t.record.arm), []).append(t)
    place = {name: i for i, name in enumerate([*datasets, *arms])}
    return [
        Row(
            dataset=point.dataset,
            point=point,
            load=load_text(point),
            arm=arm,
            trials=len(group),
            requests=sum(len(metrics.succeeded(t)) for t in group),
            cells={c.metric: c for metric in metrics.METRICS if (c := cell(metric, group)) is not None},
        )
        for (point, arm), group in sorted(
            groups.items(),
            key=lambda item: (
                place.get(item[0][0].dataset, -1),
                item[0][0].rate_per_s or 0.0,
                item[0][0].concurrency,
                place.get(item[0][1], -1),
            ),
        )
    ]


def cell(metric: metrics.Metric, trials: Sequence[TrialData]) -> Cell | None:
    """One metric over the trials of one arm at one point; None when no trial has it."""
    each = [(t, metrics.values(metric, t)) for t in trials]
    numbers = [v for _, found in each for v in found]
    value = metrics.pooled(metric, numbers)
    if value is None:
        return None
    return Cell(
        metric=metric.tag,
        value=value,
        quantile=quantile(numbers, metric.pool) if metric.is_quantile and metric.pool is not None else None,
        per_seed=[_seed_value(t, own) for t, found in each if (own := metrics.pooled(metric, found)) is not None],
    )


def _seed_value(trial: TrialData, value: float) -> SeedValue:
    start = start_of(trial)
    return SeedValue(
        sitting=start.sitting, block=start.block, leg=trial.record.leg, seed=trial.record.seed, value=value
    )
