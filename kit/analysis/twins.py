"""Requests set beside themselves: the same request of the same workload in a speculative arm and in plain.

Two things that no quantile shows: how many requests speculation made slower, and how many answers it changed.
"""

from collections.abc import Callable, Sequence
from math import sqrt

import msgspec

from kit.analysis.conditions import Condition
from kit.analysis.metrics import e2e_s, succeeded, tpot_s
from kit.analysis.sheet import Entry, Order
from kit.measurements import RequestRecord
from kit.plan import Point


class Twins(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one point. Shares are 0 to 1 of `pairs`; None where nothing pairs.

    `slower_e2e`, `slower_tpot`: requests slower than the geometric mean of their plain runs in the block.
    `identical`: answers that equal the first plain run's; None under a forced accept length, where answers mean
    nothing. `plain_identical`: the same of the last plain run against the first, which is what 1 would have to beat.
    """

    dataset: str
    point: Point
    arm: str
    pairs: int
    slower_e2e: float | None
    slower_tpot: float | None
    identical: float | None
    plain_identical: float | None


class _Pair(msgspec.Struct, frozen=True):
    """A request and its plain runs, first and last."""

    own: RequestRecord
    plain: list[RequestRecord]


def twins(sheet: Sequence[Entry], conditions: Sequence[Condition], order: Order) -> list[Twins]:
    """One for each speculative arm and point that has a plain run in its block."""
    baseline = next((c.arm for c in conditions if c.baseline), "")
    forced = {c.arm for c in conditions if c.forced_accept_length is not None}
    places = sorted({(e.point, e.arm) for e in sheet if e.arm != baseline}, key=lambda key: order(*key))
    found = []
    for point, arm in places:
        pairs = _pairs(sheet, baseline, point, arm)
        if pairs:
            found.append(_twins(point, arm, pairs, arm in forced))
    return found


def _pairs(sheet: Sequence[Entry], baseline: str, point: Point, arm: str) -> list[_Pair]:
    plain: dict[tuple[tuple[int, int], int, int], list[RequestRecord]] = {}
    at = [e for e in sheet if e.point == point]
    for entry in sorted((e for e in at if e.arm == baseline), key=lambda e: e.start):
        for r in succeeded(entry.trial):
            plain.setdefault((entry.start.aba, entry.seed, r.index), []).append(r)
    return [
        _Pair(r, plain[key])
        for e in at
        if e.arm == arm
        for r in succeeded(e.trial)
        if (key := (e.start.aba, e.seed, r.index)) in plain
    ]


def _twins(point: Point, arm: str, pairs: list[_Pair], forced: bool) -> Twins:
    own = [(p.own, p.plain[0]) for p in pairs]
    last = [(p.plain[-1], p.plain[0]) for p in pairs if len(p.plain) > 1]
    return Twins(
        dataset=point.dataset,
        point=point,
        arm=arm,
        pairs=len(pairs),
        slower_e2e=_slower(pairs, e2e_s),
        slower_tpot=_slower(pairs, tpot_s),
        identical=None if forced else _identical(own),
        plain_identical=_identical(last),
    )


def _slower(pairs: list[_Pair], take: Callable[[RequestRecord], float | None]) -> float | None:
    slower = []
    for pair in pairs:
        own = take(pair.own)
        plain = [v for r in (pair.plain[0], pair.plain[-1]) if (v := take(r)) is not None]
        if own is not None and len(plain) == 2:
            slower.append(own > sqrt(plain[0] * plain[1]))
    return sum(slower) / len(slower) if slower else None


def _identical(pairs: list[tuple[RequestRecord, RequestRecord]]) -> float | None:
    known = [(a.output_sha256, b.output_sha256) for a, b in pairs if a.output_sha256 and b.output_sha256]
    return sum(a == b for a, b in known) / len(known) if known else None
