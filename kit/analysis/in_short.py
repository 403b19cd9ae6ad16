"""What a run showed of each speculative arm, in a few lines with numbers: speed, output, first token, pool and cap.

Made from the summary's numbers alone: every arm of every scenario gets the same lines, without those that lack a
number. Knows nothing of verdicts.
"""

from collections.abc import Sequence

import msgspec

from kit.analysis.conditions import Condition
from kit.analysis.limits import LimitKind, limits
from kit.analysis.ratios import Ratio
from kit.analysis.sheet import point_order
from kit.analysis.summary import Summary
from kit.analysis.table import load_text
from kit.analysis.words import listed_users, percent
from kit.plan import Point

HIGHEST = 2
"""At so many of the highest loads the output is told."""


class InShort(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one data set; each line is one fact with its numbers."""

    dataset: str
    arm: str
    lines: list[str]


def in_short(summary: Summary) -> list[InShort]:
    """One for each data set and speculative arm that was measured."""
    return [
        InShort(dataset=dataset, arm=c.arm, lines=lines)
        for dataset in summary.datasets
        for c in summary.conditions
        if not c.baseline and (lines := _lines(summary, dataset, c))
    ]


def _lines(summary: Summary, dataset: str, own: Condition) -> list[str]:
    plain = next((c for c in summary.conditions if c.baseline), None)
    found = (
        _tokens(_ratios(summary, dataset, own.arm, "tpot_p50_ms")),
        _output(_ratios(summary, dataset, own.arm, "output_throughput_tok_s")),
        _first_token(summary, dataset, own.arm),
        _accept_length(summary, dataset, own),
        _pool(dataset, own, plain),
        _cap(own, plain),
    )
    return [line for line in found if line is not None]


def _ratios(summary: Summary, dataset: str, arm: str, metric: str) -> list[Ratio]:
    """An arm's ratios by load: at fixed concurrencies, or at rates where there are no others."""
    found = [r for r in summary.ratios if (r.dataset, r.arm, r.metric) == (dataset, arm, metric)]
    closed = [r for r in found if r.point.rate_per_s is None]
    return sorted(closed or found, key=lambda r: point_order(r.point))


def _tokens(ratios: Sequence[Ratio]) -> str | None:
    if not ratios:
        return None
    low, high = min(r.ratio for r in ratios), max(r.ratio for r in ratios)
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"Time per token (median): {span} times plain's at {_loads([r.point for r in ratios])}; {_states(ratios)}."


def _states(ratios: Sequence[Ratio]) -> str:
    """`faster at every load`, or each state with its loads."""
    by_state: dict[str, list[Ratio]] = {}
    for r in ratios:
        by_state.setdefault(_state(r), []).append(r)
    told = []
    for rs in by_state.values():
        where = " at every load" if len(by_state) == 1 else f" at {_loads([r.point for r in rs])}"
        told.append(f"{rs[0].state}{where if len(ratios) > 1 else ''}{f' ({why})' if (why := _why(rs[0])) else ''}")
    return ", ".join(told)


def _output(ratios: Sequence[Ratio]) -> str | None:
    told = [
        f"{r.ratio:.2f} times plain's at {load_text(r.point)} ({_interval(r)}{_state(r)})" for r in ratios[-HIGHEST:]
    ]
    return f"Output: {'; '.join(told)}." if told else None


def _state(ratio: Ratio) -> str:
    """`faster`, or `undecided: client lag 14 %` where something else than the interval speaks against the number."""
    why = _why(ratio)
    return f"{ratio.state}: {why}" if why else ratio.state


def _why(ratio: Ratio) -> str | None:
    return ratio.note if ratio.state == "undecided" else None


def _interval(ratio: Ratio) -> str:
    known = ratio.low is not None and ratio.high is not None
    return f"{ratio.low:.2f} to {ratio.high:.2f}, " if known else ""


def _first_token(summary: Summary, dataset: str, arm: str) -> str | None:
    """TTFT beside plain's where pool or cap hold requests back; at the highest load when they do so nowhere."""
    found = {(r.arm, r.point): r.cells for r in summary.rows if r.dataset == dataset and "ttft_p50_ms" in r.cells}
    points = sorted((p for a, p in found if a == arm and (summary.baseline, p) in found), key=point_order)
    held = _held(summary, arm, points)
    told = [
        f"{own['ttft_p50_ms'].value:,.0f} ms against plain's {plain['ttft_p50_ms'].value:,.0f} ms at {load_text(p)} "
        f"(P99 {own['ttft_p99_ms'].value:,.0f} against {plain['ttft_p99_ms'].value:,.0f})"
        for p in (held or points[-1:])
        for own, plain in [(found[arm, p], found[summary.baseline, p])]
    ]
    kinds = list(dict.fromkeys(kind for at in held.values() for kind in at))
    where = f"where the {' or the '.join(kinds)} holds requests back" if kinds else "neither pool nor cap binds"
    return f"First token (median), {where}: {'; '.join(told)}." if told else None


def _held(summary: Summary, arm: str, points: Sequence[Point]) -> dict[Point, list[LimitKind]]:
    """The loads at which pool or cap make requests wait, with which of them."""
    found: dict[Point, list[LimitKind]] = {}
    for pressure in summary.pressures:
        kinds: list[LimitKind] = [x.kind for x in limits(pressure) if x.kind in ("pool", "cap")]
        if pressure.arm == arm and kinds:
            found[pressure.point] = kinds
    return {p: found[p] for p in points if p in found}


def _accept_length(summary: Summary, dataset: str, own: Condition) -> str | None:
    values = [
        r.cells["accept_length"].value
        for r in summary.rows
        if (r.dataset, r.arm) == (dataset, own.arm) and "accept_length" in r.cells
    ]
    if not values:
        return None
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    forced = " (forced)" if own.forced_accept_length is not None else ""
    return f"Accept length: {low if low == high else f'{low} to {high}'} tokens per step{forced}."


def _pool(dataset: str, own: Condition, plain: Condition | None) -> str | None:
    if own.pool_tokens is None:
        return None
    less = f", {percent(own.draft_share)} less than plain's" if own.draft_share is not None else " against plain's"
    beside = f"{less} {plain.pool_tokens:,}{_forced(plain)}" if plain and plain.pool_tokens is not None else ""
    fits = [next((f for f in c.fits if f.dataset == dataset), None) for c in (own, plain) if c]
    fit = f"; {fits[0].requests:,} requests of {fits[0].mean_tokens:,.0f} tokens fit" if fits and fits[0] else ""
    other = f", {fits[1].requests:,} in plain's" if fit and len(fits) > 1 and fits[1] else ""
    return f"KV pool: {own.pool_tokens:,} tokens{_forced(own)}{beside}{fit}{other}."


def _forced(c: Condition) -> str:
    return " (forced)" if c.pool_forced else ""


def _cap(own: Condition, plain: Condition | None) -> str | None:
    if own.max_running_requests is None:
        return None
    how = "the server's default"
    if own.max_running_asked is not None:
        how = "asked for"
    elif own.cap_warning:
        how = "set by the server when speculation was turned on"
    beside = f", plain {plain.max_running_requests:,}" if plain and plain.max_running_requests is not None else ""
    return f"Cap: {own.max_running_requests:,} requests at a time ({how}){beside}."


def _loads(points: Sequence[Point]) -> str:
    """`1, 8 and 64 users`; rates keep their unit."""
    if any(p.rate_per_s is not None for p in points):
        return ", ".join(load_text(p) for p in points)
    return listed_users([p.concurrency for p in points])
