"""What holds an arm back at a load: cap, pool, graph ceiling or compute, told apart by what the log counted.

Knows the counts of decode, prefill and retraction lines; knows nothing of ratios.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from kit.analysis.conditions import Condition
from kit.analysis.sheet import Entry
from kit.analysis.words import percent
from kit.measurements import LogCounts
from kit.plan import Point

FULL = 0.9
"""A pool that was used to this share was what requests waited for."""
EAGER = 0.5
"""With this share of decode lines outside CUDA graphs, the batch was above the graph ceiling."""
LimitKind: TypeAlias = Literal["cap", "pool", "graph ceiling", "compute", "unknown"]


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """What the log said of one arm at one point, over its trials."""

    dataset: str
    point: Point
    arm: str
    mean_running: float | None
    max_running: int | None
    mean_queue: float | None
    max_queue: int | None
    token_usage: float | None
    retracted: int | None
    eager_share: float | None
    requests_fit: int | None
    cap: int | None
    graph_max_batch: int | None


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that held the arm back, in words with its numbers."""

    kind: LimitKind
    text: str


def pressures(sheet: Sequence[Entry], conditions: Sequence[Condition]) -> list[Pressure]:
    """One for each arm and point, in the sheet's order."""
    groups: dict[tuple[Point, str], list[LogCounts]] = {}
    for entry in sheet:
        groups.setdefault((entry.point, entry.arm), []).append(entry.trial.record.log)
    by_arm = {c.arm: c for c in conditions}
    return [_pressure(point, arm, logs, by_arm[arm]) for (point, arm), logs in groups.items() if arm in by_arm]


def _pressure(point: Point, arm: str, logs: list[LogCounts], condition: Condition) -> Pressure:
    decoded = sum(x.decode_lines for x in logs)
    return Pressure(
        dataset=point.dataset,
        point=point,
        arm=arm,
        mean_running=_mean(logs, lambda x: x.mean_running),
        max_running=_highest(logs, lambda x: x.max_running),
        mean_queue=_mean(logs, lambda x: x.mean_queue),
        max_queue=_highest(logs, lambda x: x.max_queue),
        token_usage=max((x.max_token_usage for x in logs if x.max_token_usage is not None), default=None),
        retracted=sum(x.retracted_requests for x in logs) if decoded else None,
        eager_share=sum(x.eager_decode_lines for x in logs) / decoded if decoded else None,
        requests_fit=next((f.requests for f in condition.fits if f.dataset == point.dataset), None),
        cap=condition.max_running_requests,
        graph_max_batch=condition.graph_max_batch,
    )


def _mean(logs: list[LogCounts], field: Callable[[LogCounts], float | None]) -> float | None:
    known = [v for x in logs if (v := field(x)) is not None]
    return sum(known) / len(known) if known else None


def _highest(logs: list[LogCounts], field: Callable[[LogCounts], int | None]) -> int | None:
    return max((v for x in logs if (v := field(x)) is not None), default=None)


def limits(p: Pressure) -> list[Limit]:
    """What holds the arm back at its load, the strongest evidence first; never empty."""
    if p.max_running is None:
        return [Limit(kind="unknown", text="the log has no decode line of this load, so nothing tells what limits it")]
    users = p.point.concurrency
    found = [x for x in (_cap(p, users), _pool(p, users), _ceiling(p)) if x is not None]
    if found:
        return found
    if p.max_running < users:
        text = f"{p.max_running} of {users} requests ran at a time, and neither cap nor pool accounts for it"
        return [Limit(kind="unknown", text=text)]
    ran = f"all {users} requests ran at once" if users > 1 else "the one request ran alone"
    text = f"compute: {ran}, none waited for room, so a verify step itself costs what it costs"
    return [Limit(kind="compute", text=text)]


def _cap(p: Pressure, users: int) -> Limit | None:
    if p.cap is None or p.max_running is None or not p.max_running >= p.cap or users <= p.cap:
        return None
    text = f"the cap: {p.max_running} ran, which is max_running_requests, and up to {_n(p.max_queue)} waited"
    return Limit(kind="cap", text=text)


def _pool(p: Pressure, users: int) -> Limit | None:
    held = p.max_running is not None and p.max_running < users and not (p.cap and p.max_running >= p.cap)
    full = p.token_usage is not None and p.token_usage >= FULL
    scarce = p.requests_fit is not None and p.requests_fit < users
    if not p.retracted and not (held and (full or scarce)):
        return None
    fit = f"{p.requests_fit} requests fit" if p.requests_fit is not None else "how many requests fit is unknown"
    retracted = f", {p.retracted} were put back for lack of room" if p.retracted else ""
    text = f"the pool: {fit}, {_n(p.max_running)} of {users} ran and up to {_n(p.max_queue)} waited{retracted}"
    return Limit(kind="pool", text=text)


def _ceiling(p: Pressure) -> Limit | None:
    if p.eager_share is None or p.eager_share < EAGER or p.graph_max_batch is None or not p.max_running:
        return None
    if p.max_running <= p.graph_max_batch:
        return None
    text = (
        f"the graph ceiling: batches of up to {p.max_running} ran above the {p.graph_max_batch} that CUDA graphs "
        f"were captured for, {percent(p.eager_share)} of decode lines outside graphs"
    )
    return Limit(kind="graph ceiling", text=text)


def _n(number: int | None) -> str:
    return "an unknown number" if number is None else str(number)
