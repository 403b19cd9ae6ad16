"""A summary's tables as Markdown. Knows how values are written, not how they were made; no metric is a special case."""

import re
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from kit.analysis.conditions import Condition
from kit.analysis.ratios import Ratio
from kit.analysis.summary import MetricText, Summary
from kit.analysis.table import Row, load_text
from kit.verdict import Conclusion, Figures, Value

NOT_AVAILABLE = "n/a"
NUMBER = re.compile(r"-?[\d,.]+( \*| %| \(forced\))?")
FIRST_LOOK = (
    "output_throughput_tok_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "gap_longest_p99_ms",
    "itl_sglang_p99_ms",
    "accept_length",
)
"""The metrics of the table that a reader acts on, in its order; all others stand in the table behind it."""


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands separators; None is n/a."""
    return NOT_AVAILABLE if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"  # -0.0 + 0.0 is 0.0


def share(value: float | None, digits: int = 1) -> str:
    """0.587 as 58.7 %."""
    return NOT_AVAILABLE if value is None else f"{100 * value:.{digits}f} %"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """`1.02 to 1.31`; n/a when neither end is known."""
    if low is None and high is None:
        return NOT_AVAILABLE
    return f"{number(low, digits)} to {number(high, digits)}"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table of texts."""
    clean = [[str(value).replace("|", "\\|").replace("\n", " ") for value in row] for row in rows]
    sides = ["right" if _is_number_column(column) else "left" for column in zip(*clean, strict=True)]
    return tabulate(clean, headings, tablefmt="pipe", disable_numparse=True, colalign=sides or None)


def _is_number_column(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers and, here and there, a missing one."""
    known = [c for c in cells if c not in (NOT_AVAILABLE, "–")]
    return bool(known) and all(NUMBER.fullmatch(c) for c in known)


def conditions(summary: Summary) -> str:
    """The arms side by side, one row for each fact: the pools, what fits in them, the caps, and what was forced."""
    arms = summary.conditions
    rows: list[list[str]] = [[heading, *(said(c) for c in arms)] for heading, said in _FACTS]
    for dataset in summary.datasets:
        rows.append([f"requests that fit ({dataset})", *(_fit(c, dataset) for c in arms)])
    return table(["", *(c.arm for c in arms)], [r for r in rows if set(r[1:]) != {NOT_AVAILABLE}])


def measured(summary: Summary, dataset: str, first_look: bool) -> str:
    """Every arm at every load: the metrics of the first look, or all the others. `*`: a P99 of under 299 requests."""
    metrics = [x for x in summary.metrics if (x.tag in FIRST_LOOK) == first_look]
    if first_look:
        metrics.sort(key=lambda x: FIRST_LOOK.index(x.tag))
    rows = [r for r in summary.rows if r.dataset == dataset]
    metrics = [x for x in metrics if any(x.tag in r.cells for r in rows)]
    headings = ["load", "arm", *(_heading(x) for x in metrics)]
    return table(headings, ([r.load, r.arm, *(_cell(r, x) for x in metrics)] for r in rows))


def ratios(summary: Summary, dataset: str) -> str:
    """Each judged metric of each arm against plain: ratio, interval, state and the seeds' own ratios."""
    headings = {x.tag: _heading(x).partition(" (")[0] for x in summary.metrics}
    judged = {x.tag for x in summary.metrics if x.judged}
    rows = [r for r in summary.ratios if r.dataset == dataset and r.metric in judged]
    columns = ["load", "arm", "metric", "spec / plain", "95 % interval", "judged interval", "speculation is", "seeds"]
    return table(columns, ([load_text(r.point), r.arm, headings[r.metric], *_ratio(r)] for r in rows))


def noise(summary: Summary) -> str:
    """The plain server against itself: drift, spread and the smallest ratio that can be told from it."""
    headings = {x.tag: x.heading for x in summary.metrics}
    rows = (
        [headings[n.metric], number(n.drift, 3), share(n.spread), number(n.floor, 3), n.points, n.blocks]
        for n in summary.noise
    )
    return table(["metric", "last / first", "spread", "smallest ratio told", "points", "blocks"], rows)


def crossovers(summary: Summary) -> str:
    """Where each gain ends, by metric."""
    headings = {x.tag: x.heading for x in summary.metrics}
    rows = ([c.dataset, c.arm, headings[c.metric], c.found.text] for c in summary.crossovers)
    return table(["data set", "arm", "metric", "speculation wins"], rows)


def verdicts(summary: Summary, conclusion: Conclusion) -> str:
    """What to do for each traffic class, with its condition and what keeps the server there."""
    rows = (
        [
            v.dataset,
            v.traffic,
            v.arm,
            f"**{v.says}**",
            v.condition,
            f"`{v.flag}`" if v.flag else "–",
            share(v.identical),
        ]
        for v in conclusion.verdicts
    )
    return table(["prompts", "traffic", "arm", "speculate?", "condition", "flag", "same answers as plain"], rows)


def figures(found: Figures) -> str:
    """A small table of the checklist. `*`: a P99 of under 299 requests."""
    return table(found.headings, ([x if isinstance(x, str) else _value(x) for x in row] for row in found.rows))


def _value(value: Value) -> str:
    if value.number is None:
        return NOT_AVAILABLE
    mark = " *" if value.mark == "indicative" else f" ({value.mark})" if value.mark else ""
    return f"{number(value.number, value.digits)}{f' {value.unit}' if value.unit else ''}{mark}"


def doubts(summary: Summary) -> str:
    """What stands against the figures, the severe ones first."""
    rank = {"severe": 0, "warning": 1, "note": 2}
    rows = (
        [
            d.severity,
            d.subject,
            d.text,
            number(d.number, _digits(d.number)),
            number(d.limit, _digits(d.limit)),
            d.advice,
        ]
        for d in sorted(summary.doubts, key=lambda d: rank[d.severity])
    )
    return table(["", "of", "doubt", "number", "limit", "advice"], rows)


def decompositions(summary: Summary) -> str:
    """TPOT gain = accept length / step cost, at the plain load with the same running batch."""
    rows = (
        [
            d.dataset, d.concurrency, d.arm, number(d.running, 1), number(d.tpot_gain), number(d.accept_length),
            number(d.plain_step_ms), number(d.step_ms), number(d.step_cost),
        ]
        for d in summary.decompositions
    )  # fmt: skip
    columns = [
        "prompts",
        "users",
        "arm",
        "running",
        "TPOT gain",
        "accept length",
        "plain step (ms)",
        "verify step (ms)",
    ]
    return table([*columns, "step cost = break-even accept length"], rows)


def pressures(summary: Summary) -> str:
    """Running, queued, retracted and eager, from the decode lines of the log."""
    rows = (
        [
            p.dataset, load_text(p.point), p.arm, number(p.mean_running, 1), number(p.max_running, 0),
            number(p.mean_queue, 1), number(p.max_queue, 0), share(p.token_usage), number(p.retracted, 0),
            share(p.eager_share),
        ]
        for p in summary.pressures
    )  # fmt: skip
    columns = ["prompts", "load", "arm", "running, mean", "max", "queued, mean", "max", "pool used, max", "retracted"]
    return table([*columns, "eager batches"], rows)


def twins(summary: Summary) -> str:
    """Each request against its own plain runs: how many became slower, how many answers stayed the same."""
    rows = (
        [
            t.dataset, load_text(t.point), t.arm, t.pairs, share(t.slower_e2e), share(t.slower_tpot),
            share(t.identical), share(t.plain_identical),
        ]
        for t in summary.twins
    )  # fmt: skip
    columns = ["prompts", "load", "arm", "pairs", "slower end to end", "slower per token", "same answer as plain"]
    return table([*columns, "plain against plain"], rows)


def biases(summary: Summary) -> str:
    """How much one kind of prompt flatters speculation over another."""
    headings = {x.tag: x.heading for x in summary.metrics}
    rows = (
        [b.kind, b.arm, headings[b.metric], b.concurrency, b.over, b.under, number(b.factor), interval(b.low, b.high)]
        for b in summary.biases
    )
    return table(["bias", "arm", "metric", "users", "gain on", "over gain on", "factor", "95 % interval"], rows)


def objectives(summary: Summary) -> str:
    """The highest load of each arm within the limits, with its energy."""
    rows = (
        [o.dataset, o.arm, number(o.highest, 0), "yes" if o.indicative else "no", number(o.joules_per_token, 3)]
        for o in summary.objectives
    )
    return table(["prompts", "arm", "users within the limits", "indicative", "J/token there"], rows)


def definitions(summary: Summary) -> str:
    """Every metric with its unit, direction and definition."""
    rows = ([x.heading, x.unit, x.better, x.definition] for x in summary.metrics)
    return table(["metric", "unit", "better", "definition"], rows)


def _digits(value: float | None) -> int:
    """Enough digits to tell, none that were not measured."""
    if value is None or value == int(value):
        return 0
    return 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3


def _whole(value: int | None) -> str:
    return number(value, 0)


def _pool(c: Condition) -> str:
    return f"{_whole(c.pool_tokens)}{' (forced)' if c.pool_forced and c.pool_tokens else ''}"


def _cap(c: Condition) -> str:
    if c.max_running_requests is None:
        return NOT_AVAILABLE
    how = "capped silently" if c.cap_warning else "asked for" if c.max_running_asked is not None else "default"
    return f"{_whole(c.max_running_requests)} ({how})"


def _words(value: object) -> str:
    return NOT_AVAILABLE if value is None else str(value)


_FACTS = (
    ("algorithm", lambda c: c.algorithm or "none"),
    ("SGLang", lambda c: _words(c.version)),
    ("device", lambda c: _words(c.device)),
    ("server starts", lambda c: _whole(c.starts)),
    ("**KV pool, tokens**", _pool),
    ("share of the plain pool that is gone", lambda c: "–" if c.baseline else share(c.draft_share)),
    ("**max running requests**", _cap),
    ("CUDA graphs up to a batch of", lambda c: _whole(c.graph_max_batch)),
    ("weights, GiB", lambda c: number(c.weights_gib)),
    ("draft weights, GiB", lambda c: number(c.draft_weights_gib)),
    ("memory fraction", lambda c: _words(c.mem_fraction_static)),
    ("chunked prefill, tokens", lambda c: _whole(c.chunked_prefill_tokens)),
    ("KV type", lambda c: _words(c.kv_dtype)),
    ("draft steps / tokens", lambda c: f"{_words(c.draft_steps)} / {_words(c.draft_tokens)}" if c.algorithm else "–"),
    ("weights", lambda c: "random" if c.random_weights else "real"),
    ("accept length forced to", lambda c: number(c.forced_accept_length)),
    ("seconds until it generated", lambda c: number(c.ready_after_s, 0)),
)


def _fit(condition: Condition, dataset: str) -> str:
    fits = [f for f in condition.fits if f.dataset == dataset]
    return f"{fits[0].requests:,} of {fits[0].mean_tokens:,.0f} tokens" if fits else NOT_AVAILABLE


def _heading(metric: MetricText) -> str:
    return f"{metric.heading} ({metric.unit})" if metric.unit else metric.heading


def _cell(row: Row, metric: MetricText) -> str:
    cell = row.cells.get(metric.tag)
    if cell is None:
        return NOT_AVAILABLE
    mark = " *" if cell.quantile is not None and cell.quantile.indicative and "P99" in metric.heading.upper() else ""
    return number(cell.value, metric.digits) + mark


def _ratio(r: Ratio) -> list[str]:
    seeds = " ".join(number(s.ratio) for s in r.per_seed)
    state = r.state if not r.note else f"{r.state} ({r.note})"
    return [number(r.ratio), interval(r.low, r.high), interval(r.judged_low, r.judged_high), state, seeds]
