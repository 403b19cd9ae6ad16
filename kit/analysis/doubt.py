"""A doubt is a warning that is a value, and the analysis as far as doubts are drawn from it. No check lives here."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from kit.analysis.conditions import Condition
from kit.analysis.limits import Pressure
from kit.analysis.ratios import Noise, Ratio
from kit.analysis.sheet import Entry
from kit.analysis.table import Row
from kit.measurements import Measurements
from kit.scenario import Scenario

Severity: TypeAlias = Literal["note", "warning", "severe"]


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """What stands against a figure: `number` passed `limit` on `subject`; `text` says it, `advice` what to do.

    note: to be known when reading; warning: figures may be off; severe: figures must not be used as they are.
    """

    tag: str
    subject: str
    text: str
    number: float | None
    limit: float | None
    advice: str
    severity: Severity


class Case(msgspec.Struct, frozen=True):
    """What the checks look at."""

    m: Measurements
    scenario: Scenario
    sheet: Sequence[Entry]
    conditions: Sequence[Condition]
    rows: Sequence[Row]
    ratios: Sequence[Ratio]
    noise: Sequence[Noise]
    pressures: Sequence[Pressure]


Check: TypeAlias = Callable[[Case], Iterable[Doubt]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A check of one number per trial against one limit.

    `text` and `advice` may name {number}, {percent} (100 times the number), {limit} and {loads}.
    """

    tag: str
    number: Callable[[Case, Entry], float | None]
    limit: float
    text: str
    advice: str
    severity: Severity = "warning"
    below: bool = False


def apply(rule: Rule, case: Case) -> Iterable[Doubt]:
    """At most one doubt for each arm and data set: the worst trial's number, and the loads that pass the limit."""
    groups: dict[tuple[str, str], list[tuple[float, Entry]]] = {}
    for entry in case.sheet:
        number = rule.number(case, entry)
        if number is not None and (number < rule.limit if rule.below else number > rule.limit):
            groups.setdefault((entry.arm, entry.point.dataset), []).append((number, entry))
    for (arm, dataset), found in groups.items():
        worst = (min if rule.below else max)(number for number, _ in found)
        words = {"number": worst, "percent": 100 * worst, "limit": rule.limit, "loads": loads([e for _, e in found])}
        yield Doubt(
            tag=rule.tag,
            subject=f"{arm} on {dataset}",
            text=rule.text.format(**words),
            number=worst,
            limit=rule.limit,
            advice=rule.advice.format(**words),
            severity=rule.severity,
        )


def loads(entries: Sequence[Entry]) -> str:
    """The loads of some trials in words."""
    users = sorted({e.point.concurrency for e in entries if e.point.rate_per_s is None})
    rates = sorted({e.point.rate_per_s for e in entries if e.point.rate_per_s is not None})
    parts = [f"{', '.join(map(str, users))} user{'' if users == [1] else 's'}"] if users else []
    parts += [f"{', '.join(f'{r:g}' for r in rates)} req/s"] if rates else []
    return " and ".join(parts)
