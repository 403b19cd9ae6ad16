"""The highest concurrency of each arm within the scenario's objectives, and what a token costs there."""

from collections.abc import Sequence

import msgspec

from kit.analysis.table import Row
from kit.analysis.words import users_text
from kit.scenario import Slo


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One tested load against the objectives; None where a figure is missing."""

    concurrency: int
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    within: bool | None
    indicative: bool


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one data set. `highest` is the highest tested load within the limits with none below it outside.

    The figures are those at `highest`. `indicative` says that its P99 has too few requests for an upper bound.
    """

    dataset: str
    arm: str
    loads: list[Load]
    highest: int | None
    indicative: bool
    joules_per_token: float | None
    output_throughput_tok_s: float | None
    text: str


def objectives(rows: Sequence[Row], slo: Slo | None) -> list[Objective]:
    """One for each arm and data set with fixed concurrencies; none without objectives."""
    if slo is None:
        return []
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.point.rate_per_s is None:
            groups.setdefault((row.dataset, row.arm), []).append(row)
    return [_objective(dataset, arm, at, slo) for (dataset, arm), at in groups.items()]


def _objective(dataset: str, arm: str, rows: list[Row], slo: Slo) -> Objective:
    loads = [_load(row, slo) for row in rows]
    highest = None
    for row, load in zip(rows, loads, strict=True):
        if not load.within:
            break
        highest = row, load
    text = f"within the limits up to {users_text(highest[1].concurrency)}" if highest else "at no tested load within"
    if not highest and loads[0].within is None:
        text = "cannot tell: a figure is missing at the lowest load"
    return Objective(
        dataset=dataset,
        arm=arm,
        loads=loads,
        highest=highest[1].concurrency if highest else None,
        indicative=highest[1].indicative if highest else any(x.indicative for x in loads),
        joules_per_token=_value(highest[0], "joules_per_token") if highest else None,
        output_throughput_tok_s=_value(highest[0], "output_throughput_tok_s") if highest else None,
        text=text,
    )


def _load(row: Row, slo: Slo) -> Load:
    ttft, tpot = _value(row, "ttft_p99_ms"), _value(row, "tpot_p50_ms")
    known = ttft is not None and tpot is not None
    quantile = row.cells["ttft_p99_ms"].quantile if ttft is not None else None
    return Load(
        concurrency=row.point.concurrency,
        ttft_p99_ms=ttft,
        tpot_p50_ms=tpot,
        within=(ttft or 0) <= slo.ttft_p99_s * 1e3 and (tpot or 0) <= slo.tpot_p50_s * 1e3 if known else None,
        indicative=quantile is None or quantile.indicative,
    )


def _value(row: Row, metric: str) -> float | None:
    cell = row.cells.get(metric)
    return cell.value if cell else None
