"""Which charts a run gets and what each says, from a summary and its records. Draws nothing itself.

A title states the finding in words, read from the same crossovers and cells as the tables. A run that is a rehearsal
says so on every chart.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from kit import charts
from kit.analysis import gpu
from kit.analysis.chunks import Chunks
from kit.analysis.conditions import Condition, Fit
from kit.analysis.crossover import State
from kit.analysis.metrics import succeeded
from kit.analysis.summary import ArmCrossover, Summary
from kit.analysis.table import Cell, Row
from kit.analysis.words import listed_users, users_text
from kit.charts import Bracket, Line, Words
from kit.measurements import GpuSample, Measurements, SittingRecord, TrialData

OUTPUT, TPOT, TTFT, GAP = "output_throughput_tok_s", "tpot_p50_ms", "ttft_p99_ms", "gap_longest_p99_ms"
GAINS = {
    OUTPUT: "more output",
    TPOT: "a shorter time per token",
    TTFT: "an earlier P99 first token",
    GAP: "a shorter longest silence (P99)",
}
LOSSES = {
    OUTPUT: "less output",
    TPOT: "a longer time per token",
    TTFT: "a later P99 first token",
    GAP: "a longer longest silence (P99)",
}
NAMES = {OUTPUT: "output", TPOT: "time per token", TTFT: "P99 first token", GAP: "longest silence (P99)"}
WHISKERS = "bars: range of the trials, or a quantile's 95 % interval"


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One chart: where it lies beside the report, what it says, and what draws its SVG element."""

    file: str
    title: str
    draw: Callable[[], str]


def of_run(summary: Summary, m: Measurements) -> list[Chart]:
    """The charts of a run, in the report's order, not drawn yet; a chart without data is left out."""
    found = [_pools(summary)]
    for dataset in summary.datasets:
        found += [_output(summary, dataset), _ttft(summary, dataset), _tpot(summary, dataset)]
        found.append(_gaps(summary, m, dataset))
    found += [_card(summary, m, sitting) for sitting in m.sittings]
    return [chart for chart in found if chart]


def _chart(name: str, words: Words, draw: Callable[[], str]) -> Chart:
    return Chart(file=f"charts/{name}.svg", title=words.finding, draw=draw)


def _words(summary: Summary, finding: str, plotted: str) -> Words:
    warning = f"Rehearsal, no measurement of a model: {'; '.join(summary.rehearsal)}." if summary.rehearsal else ""
    return Words(finding=finding, plotted=plotted, warning=warning)


# ---- over load ------------------------------------------------------------------------------------------------------


def _output(summary: Summary, dataset: str) -> Chart | None:
    lines = _lines(summary, dataset, OUTPUT)
    if not lines:
        return None
    words = _words(
        summary, _finding(summary, dataset, OUTPUT), f"Output tokens per second, data set {dataset}; {WHISKERS}"
    )
    brackets = _brackets(summary, dataset, OUTPUT)
    return _chart(
        f"output-{dataset}", words, partial(charts.over_load, words, lines, "output tokens per second", brackets)
    )


def _tpot(summary: Summary, dataset: str) -> Chart | None:
    lines = _lines(summary, dataset, TPOT)
    if not lines:
        return None
    words = _words(summary, _finding(summary, dataset, TPOT), f"Median time per token, data set {dataset}; {WHISKERS}")
    brackets = _brackets(summary, dataset, TPOT)
    return _chart(f"tpot-{dataset}", words, partial(charts.over_load, words, lines, "milliseconds per token", brackets))


def _ttft(summary: Summary, dataset: str) -> Chart | None:
    """Median and P99 in one chart: a queue shows in their distance."""
    lines = [*_lines(summary, dataset, "ttft_p50_ms"), *_lines(summary, dataset, TTFT, light=" P99")]
    if not lines:
        return None
    words = _words(
        summary,
        _finding(summary, dataset, TTFT),
        f"Time to the first token, data set {dataset}: median (filled) and P99 (hollow, thin); {WHISKERS}",
    )
    brackets = _brackets(summary, dataset, TTFT)
    return _chart(
        f"ttft-{dataset}", words, partial(charts.over_load, words, lines, "milliseconds", brackets, scale="log")
    )


def _lines(summary: Summary, dataset: str, metric: str, light: str = "") -> list[Line]:
    """One line for each arm that has the metric at a fixed concurrency."""
    lines = []
    for number, arm in enumerate(summary.arms):
        rows = [r for r in summary.rows if r.dataset == dataset and r.arm == arm and r.point.rate_per_s is None]
        points = [_point(row, row.cells[metric]) for row in rows if metric in row.cells]
        if points:
            lines.append(Line(name=f"{arm}{light}", arm=number, points=points, light=bool(light)))
    return lines


def _point(row: Row, cell: Cell) -> charts.Point:
    if cell.quantile is not None:
        return charts.Point(row.point.concurrency, cell.value, cell.quantile.low, cell.quantile.high)
    values = [s.value for s in cell.per_seed]
    spread = (min(values), max(values)) if len(values) > 1 else (None, None)
    return charts.Point(row.point.concurrency, cell.value, *spread)


def _crossovers(summary: Summary, dataset: str, metric: str) -> list[ArmCrossover]:
    return [c for c in summary.crossovers if c.dataset == dataset and c.metric == metric]


def _brackets(summary: Summary, dataset: str, metric: str) -> list[Bracket]:
    """The crossovers between two tested loads; arms are named when more than one could be meant."""
    several = len(summary.arms) > 2
    return [
        Bracket(
            name=c.arm if several else "",
            arm=summary.arms.index(c.arm),
            wins_up_to=c.found.wins_up_to,
            no_win_from=c.found.no_win_from,
        )
        for c in _crossovers(summary, dataset, metric)
        if c.found.kind == "bracket" and c.found.wins_up_to and c.found.no_win_from
    ]


def _finding(summary: Summary, dataset: str, metric: str) -> str:
    """What the crossovers of a metric say, in one line for all arms."""
    found = _crossovers(summary, dataset, metric)
    if not found:
        return "No arm to compare with: values only"
    arms: dict[str, list[str]] = {}
    for c in found:
        arms.setdefault(_said(summary, c), []).append(c.arm)
    return "; ".join(_sentence(own, said) for said, own in arms.items())


def _sentence(arms: Sequence[str], said: str) -> str:
    """`eagle3 has more output at ...`; `eagle3 and ngram have ...` where the same is true of both."""
    *others, last = arms
    return f"{', '.join(others)} and {last} have {said}" if others else f"{last} has {said}"


def _said(summary: Summary, c: ArmCrossover) -> str:
    """What follows `eagle3 has`."""
    found, gain = c.found, GAINS[c.metric]
    if found.kind == "bracket":
        return f"{gain} up to {users_text(found.wins_up_to)} and not from {found.no_win_from} on"
    if found.kind == "always":
        return f"{gain} at every tested load, up to {users_text(found.wins_up_to)}"
    if found.kind == "none":
        return f"{gain} at no tested load"
    return _load_by_load(summary, c)


def _load_by_load(summary: Summary, c: ArmCrossover) -> str:
    """Where the gain has no single end: at which loads there is one, at which there is none, and what is open."""
    loads: dict[State, list[int]] = {}
    for r in summary.ratios:
        if (r.dataset, r.arm, r.metric) == (c.dataset, c.arm, c.metric) and r.point.rate_per_s is None:
            loads.setdefault(r.state, []).append(r.point.concurrency)
    groups = {
        GAINS[c.metric]: loads.get("faster", []),
        LOSSES[c.metric]: loads.get("slower", []),
        "no gain": [*loads.get("equal", []), *loads.get("no gain", [])],
    }
    shown = [f"{what} at {listed_users(sorted(at))}" for what, at in groups.items() if at]
    if not shown:
        return f"no decided gain or loss in {NAMES[c.metric]} at any load"
    elsewhere = ["undecided elsewhere"] if "undecided" in loads else []
    return ", ".join([*shown, *elsewhere])


# ---- gaps -----------------------------------------------------------------------------------------------------------


def _gaps(summary: Summary, m: Measurements, dataset: str) -> Chart | None:
    """The pooled gaps of each arm at the load where output stops gaining, else at the highest."""
    load = _telling_load(summary, m, dataset)
    if load is None:
        return None
    series = []
    for number, arm in enumerate(summary.arms):
        trials = [t for t in _closed(m, dataset) if t.record.arm == arm and t.record.concurrency == load]
        gaps = (1000 * Chunks([r for t in trials for r in succeeded(t)]).gaps_s).tolist()
        if gaps:
            series.append((arm, number, gaps))
    if not series:
        return None
    words = _words(
        summary,
        _gap_finding(summary, dataset, load),
        f"All gaps between chunks that carry tokens at {users_text(load)}, data set {dataset}",
    )
    return _chart(f"gaps-{dataset}", words, partial(charts.tail, words, series))


def _closed(m: Measurements, dataset: str) -> list[TrialData]:
    return [t for t in m.trials if t.record.dataset == dataset and not t.record.rate_per_s and not t.record.void]


def _telling_load(summary: Summary, m: Measurements, dataset: str) -> int | None:
    loads = {t.record.concurrency for t in _closed(m, dataset)}
    ends = [c.found.no_win_from for c in _crossovers(summary, dataset, OUTPUT) if c.found.no_win_from in loads]
    return max((e for e in ends if e), default=max(loads, default=None))


def _gap_finding(summary: Summary, dataset: str, load: int) -> str:
    said = [
        f"{row.arm} {row.cells[GAP].value:,.0f} ms"
        for row in summary.rows
        if row.dataset == dataset
        and row.point.concurrency == load
        and row.point.rate_per_s is None
        and GAP in row.cells
    ]
    if not said:
        return f"Gaps between chunks at {users_text(load)}"
    return f"Longest silence of an answer at {users_text(load)} (P99 over requests): {', '.join(said)}"


# ---- pools ----------------------------------------------------------------------------------------------------------


def _pools(summary: Summary) -> Chart | None:
    known = [c for c in summary.conditions if c.pool_tokens]
    if not known:
        return None
    words = _words(
        summary, _pool_finding(known), "KV pool of each arm's server as it says itself; dashed: the baseline's pool"
    )
    bars = [
        charts.Bar(name=c.arm, arm=summary.arms.index(c.arm), tokens=float(c.pool_tokens or 0), label=_pool_label(c))
        for c in known
    ]
    return _chart("pools", words, partial(charts.pools, words, bars))


def _pool_label(c: Condition) -> str:
    fit = _fit(c)
    forced = " (forced)" if c.pool_forced else ""
    return f"{c.pool_tokens:,} tokens{forced}" + (f", {fit.requests:,} requests" if fit else "")


def _fit(c: Condition) -> Fit | None:
    return c.fits[0] if c.fits else None


def _pool_finding(known: Sequence[Condition]) -> str:
    base = next((c for c in known if c.baseline), None)
    taken = [c for c in known if c.draft_share is not None and c.draft_share > 0.005]
    if not taken or base is None:
        if any(c.pool_forced for c in known):
            return f"Pools set by --max-total-tokens{_fits_said(known)}"
        return "No arm has a smaller pool than the baseline"
    worst = max(taken, key=lambda c: c.draft_share or 0)
    said = f"{worst.arm} has {worst.draft_share:.0%} less pool than {base.arm}".replace("%", " %")
    fit, base_fit = _fit(worst), _fit(base)
    if fit and base_fit:
        said += f": {fit.requests:,} requests of {fit.mean_tokens:,.0f} tokens fit instead of {base_fit.requests:,}"
    return said


def _fits_said(known: Sequence[Condition]) -> str:
    said = [f"{c.arm} fits {fit.requests:,} requests" for c in known if (fit := _fit(c))]
    return f": {', '.join(said)}" if said else ""


# ---- the card -------------------------------------------------------------------------------------------------------


def _card(summary: Summary, m: Measurements, sitting: SittingRecord) -> Chart | None:
    """Clock and power of the first card over one sitting; its time axis is that boot's."""
    trials = [t for t in m.trials if t.sitting == sitting.number and t.gpu]
    samples = sorted((s for t in trials for s in t.gpu if s.index == _first(t.gpu)), key=lambda s: s.monotonic_s)
    if not any(s.sm_clock_mhz is not None or s.power_w is not None for s in samples):
        return None
    start = samples[0].monotonic_s
    locked = sitting.lock.state == "locked"
    words = _words(summary, _card_finding(samples, sitting), "SM clock and power of the card while trials ran")
    draw = partial(
        charts.over_time,
        words,
        [charts.Sample(s.monotonic_s - start, s.sm_clock_mhz, s.power_w) for s in samples],
        list(_spans(summary, trials, start)),
        sitting.lock.set_mhz if locked else None,
        next((g.power_limit_w for g in sitting.gpus if g.index == samples[0].index), None),
    )
    name = "card" if len(m.sittings) == 1 else f"card-sitting-{sitting.number}"
    return _chart(name, words, draw)


def _first(samples: Sequence[GpuSample]) -> int:
    return min(s.index for s in samples)


def _card_finding(samples: Sequence[GpuSample], sitting: SittingRecord) -> str:
    window = (samples[0].monotonic_s, samples[-1].monotonic_s)
    found = gpu.summarize(samples, sitting.lock, window)
    if sitting.lock.state == "locked" and found and found.held_share is not None:
        return (
            f"The clock was locked at {sitting.lock.set_mhz} MHz and held in {100 * found.held_share:.1f} % of samples"
        )
    clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None and gpu.is_loaded(s)]
    if clocks:
        return f"The clock was not locked: {min(clocks):,} to {max(clocks):,} MHz under load"
    return "The clock was not locked"


def _spans(summary: Summary, trials: Iterable[TrialData], start_s: float) -> Iterable[charts.Span]:
    """One stretch for each leg, from its trials' first sample to their last."""
    legs: dict[str, list[TrialData]] = {}
    for trial in trials:
        legs.setdefault(trial.record.leg, []).append(trial)
    for own in legs.values():
        at = [s.monotonic_s - start_s for t in own for s in t.gpu]
        arm = own[0].record.arm
        number = summary.arms.index(arm) if arm in summary.arms else 0
        yield charts.Span(name=arm, arm=number, start_s=min(at), end_s=max(at))
