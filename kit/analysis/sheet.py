"""Every usable trial with its metrics taken once: what table, ratios and noise are made from."""

import re
from collections.abc import Sequence

import msgspec

from kit.analysis import gpu, metrics, trust
from kit.analysis.chunks import Chunks
from kit.analysis.quantiles import Numbers
from kit.measurements import LockRecord, Measurements, TrialData
from kit.plan import Point

LEG = re.compile(r"b(\d+)-(\d+)-")


class Start(msgspec.Struct, frozen=True, order=True):
    """One leg: a start of a server within a block of a sitting; `position` is its place in the block."""

    sitting: int
    block: int
    position: int
    leg: str

    @property
    def aba(self) -> tuple[int, int]:
        """The A B A that the leg belongs to."""
        return self.sitting, self.block


class Entry(msgspec.Struct, frozen=True):
    """A usable trial: where it stands, what each metric gives to the pool and its own value, and what the cards did.

    `lags` are the client's P99 lag as shares of what metrics time, and `why_not` says why a verdict may not lean on a
    metric, by what it times; it lacks what may be leaned on.
    """

    trial: TrialData
    start: Start
    point: Point
    numbers: dict[str, Numbers]
    values: dict[str, float]
    cards: gpu.GpuSummary | None
    lags: dict[metrics.Timed, float]
    why_not: dict[metrics.Timed, str]

    @property
    def arm(self) -> str:
        """The arm's name."""
        return self.trial.record.arm

    @property
    def seed(self) -> int:
        """The seed of the workload."""
        return self.trial.record.seed


def entries(m: Measurements) -> list[Entry]:
    """The usable trials of a run, in the order of sitting, leg and trial."""
    locks = {s.number: s.lock for s in m.sittings}
    return [_entry(t, locks.get(t.sitting, LockRecord())) for t in trust.usable(m)]


def _entry(trial: TrialData, lock: LockRecord) -> Entry:
    chunks = Chunks(metrics.succeeded(trial))
    numbers = _numbers(trial, chunks)
    values = {tag: v for tag, found in numbers.items() if (v := metrics.pooled(metrics.BY_TAG[tag], found)) is not None}
    record = trial.record
    point = Point(record.dataset, record.concurrency, record.rate_per_s)
    cards = metrics.cards(trial, lock)
    lags = trust.lag_shares(trial, chunks)
    return Entry(trial, start_of(trial), point, numbers, values, cards, lags, trust.why_not_judged(trial, lags))


def _numbers(trial: TrialData, chunks: Chunks) -> dict[str, Numbers]:
    """What each metric gives to the pool; the metrics of one quantity share its array, which is in order."""
    taken: dict[object, Numbers] = {}
    found = {}
    for metric in metrics.METRICS:
        quantity = (metric.trial or metric.request or metric.chunks, metric.scale)
        if quantity not in taken:
            taken[quantity] = metrics.values(metric, trial, chunks)
        found[metric.tag] = taken[quantity]
    return found


def start_of(trial: TrialData) -> Start:
    """Where a trial stands in the plan, from its leg's name."""
    found = LEG.match(trial.record.leg)
    block, position = (int(found[1]), int(found[2])) if found else (1, 0)
    return Start(trial.sitting, block, position, trial.record.leg)


def point_order(point: Point) -> tuple[str, float, int]:
    """Sorts points by data set and load, open loop after fixed concurrencies."""
    return point.dataset, point.rate_per_s or 0.0, point.concurrency


class Order:
    """The scenario's order of data sets and arms, for sorting rows."""

    def __init__(self, datasets: Sequence[str], arms: Sequence[str]) -> None:
        self._datasets = {name: i for i, name in enumerate(datasets)}
        self._arms = {name: i for i, name in enumerate(arms)}

    def __call__(self, point: Point, arm: str) -> tuple[int, float, int, int]:
        """The sort key of an arm at a point."""
        return (self._datasets.get(point.dataset, -1), *point_order(point)[1:], self._arms.get(arm, -1))
