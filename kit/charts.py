"""Draws charts as SVG text: the home of matplotlib. Knows points, bars and words; nothing of what a run is.

The same data gives the same bytes: no date, fixed ids, letters as paths, so that a file opens offline anywhere. Arms
differ by colour (Okabe and Ito's, safe for colour-blind readers), by marker and by line, so that print in grey works.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Scale: TypeAlias = Literal["linear", "log"]
WIDTH_IN = 7.2
SALT = "sglang-speculation-kit"
INK, SOFT, FAINT = "#1a1a1a", "#5f5f5f", "#d9d9d9"

# Okabe and Ito (2008), the baseline in ink; yellow is left out, being too pale for a line on white.
COLOURS = (INK, "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 2), (2, 1.5), (8, 2, 2, 2), (4, 1.5), (10, 3), (1, 1))
HATCHES = ("", "//", "\\\\", "xx", "--", "||", "++")

STYLE: dict[Any, Any] = {
    "svg.hashsalt": SALT,
    "svg.fonttype": "path",
    "path.simplify": True,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
}


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """`finding` is the title, in words; `plotted` says what is drawn; `warning` says why not to trust it."""

    finding: str
    plotted: str
    warning: str = ""


class Point(msgspec.Struct, frozen=True):
    """A value at a load, with its interval where there is one."""

    load: int
    value: float
    low: float | None = None
    high: float | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's values over load. `arm` counts from 0, the baseline; `light` draws a second line of the same arm."""

    name: str
    arm: int
    points: Sequence[Point]
    light: bool = False


class Bracket(msgspec.Struct, frozen=True, kw_only=True):
    """Two tested loads between which a gain ends; `name` says whose, where it could be another's."""

    name: str = ""
    arm: int = 0
    wins_up_to: int
    no_win_from: int


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's KV pool in tokens; `low` and `high` where it was forecast; `label` stands at its end."""

    name: str
    arm: int
    tokens: float
    label: str
    low: float | None = None
    high: float | None = None


class Sample(msgspec.Struct, frozen=True):
    """The card at an instant; None where it does not say."""

    at_s: float
    clock_mhz: float | None
    power_w: float | None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the run that one arm's server had."""

    name: str
    arm: int
    start_s: float
    end_s: float


def over_load(
    words: Words,
    lines: Sequence[Line],
    unit: str,
    brackets: Sequence[Bracket] = (),
    scale: Scale = "linear",
) -> str:
    """Values over concurrency, one line an arm, with intervals; the crossovers' brackets are shaded."""
    with _styled():
        figure, axes = _sheet(words, 3.9)
        loads = sorted({p.load for line in lines for p in line.points})
        _load_axis(axes, loads, _room(line.name for line in lines))
        _value_axis(axes, lines, unit, scale, bool(brackets))
        for row, bracket in enumerate(brackets):
            _mark_end(axes, bracket, row)
        for line in lines:
            _draw_line(axes, line)
        _label_ends(axes, lines)
        return _svg(figure, words)


def tail(words: Words, gaps_ms: Sequence[tuple[str, int, Sequence[float]]]) -> str:
    """How often a gap is longer than x, both axes logarithmic: `(name, arm, gaps in ms)` of each arm."""
    with _styled():
        figure, axes = _sheet(words, 3.9, left=0.155, above_in=0.22)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ends = []
        for name, arm, gaps in gaps_ms:
            xs, ys = _exceedance(gaps)
            if xs:
                axes.plot(xs, ys, color=_colour(arm), dashes=_dashes(arm), lw=1.6, drawstyle="steps-post")
                ends.append((name, arm, xs, ys))
        _tail_axes(axes, ends)
        _legend(axes, [(name, arm) for name, arm, _, _ in ends])
        return _svg(figure, words)


def pools(words: Words, bars: Sequence[Bar]) -> str:
    """One bar an arm; the outline behind each is the baseline's pool, so that what is missing shows."""
    with _styled():
        figure, axes = _sheet(words, 0.95 + 0.52 * len(bars), left=0.14)
        base = max((b.tokens for b in bars if b.arm == 0), default=0)
        for row, bar in enumerate(bars):
            _draw_bar(axes, row, bar, base)
        axes.set_yticks(range(len(bars)), [b.name for b in bars])
        axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=9.5)
        axes.set_ylim(len(bars) - 0.45, -0.55)
        room = _room((b.label for b in bars), 6.0)
        axes.set_xlim(0, max([b.high or b.tokens for b in bars], default=1) / (1 - room))
        axes.xaxis.set_major_formatter(lambda v, _: _short(v))
        axes.set_xlabel("tokens of KV pool")
        return _svg(figure, words)


def over_time(
    words: Words,
    samples: Sequence[Sample],
    spans: Sequence[Span],
    lock_mhz: float | None = None,
    limit_w: float | None = None,
) -> str:
    """The card's SM clock and power over the run, above each other; spans say which arm's server ran."""
    from matplotlib import ticker

    with _styled():
        figure, clock = _sheet(words, 4.3, rows=2, above_in=0.16)
        power = figure.axes[1]
        _draw_series(
            clock, [(s.at_s, s.clock_mhz) for s in samples], "#0072b2", "SM clock (MHz)", lock_mhz, "locked at"
        )
        _draw_series(power, [(s.at_s, s.power_w) for s in samples], "#d55e00", "power (W)", limit_w, "limit")
        _draw_spans(clock, power, spans)
        unit, step_s = _time_step(samples[-1].at_s if samples else 0.0)
        power.set_xlabel(f"{'minutes' if unit == 60 else 'seconds'} since the start")
        power.xaxis.set_major_formatter(lambda v, _: f"{v / unit:g}")
        power.xaxis.set_major_locator(ticker.MultipleLocator(step_s))
        clock.tick_params(labelbottom=False)
        return _svg(figure, words)


@contextmanager
def _styled() -> Iterator[None]:
    """Draws in the kit's style. What only names charts, as a report's text does, never waits for matplotlib."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        yield


# ---- the sheet ------------------------------------------------------------------------------------------------------


def _sheet(
    words: Words, height_in: float, left: float = 0.09, rows: int = 1, above_in: float = 0.0
) -> "tuple[Figure, Axes]":
    """A figure with its words at the top and axes below; inches of the axes are the same however long the words.

    `above_in` keeps room between the words and the axes, for what is written there.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    title = [line for part in words.finding.split("; ") for line in _balanced(part, 74)]
    plotted, warning = wrap(words.plotted, 114), _balanced(words.warning, 114)
    below = [*plotted, *warning]
    head_in = 0.14 + 0.21 * len(title) + 0.165 * len(below) + 0.12 + above_in
    total = head_in + height_in
    figure = Figure(figsize=(WIDTH_IN, total))
    FigureCanvasSVG(figure)
    y = 1 - 0.14 / total
    for text in title:
        figure.text(0.015, y, text, size=11, weight="bold", color=INK, va="top")
        y -= 0.21 / total
    for number, text in enumerate(below):
        warns = number >= len(plotted)
        figure.text(
            0.015, y - 0.02 / total, text, size=8.5, va="top",
            color="#a3420a" if warns else SOFT,
        )  # fmt: skip
        y -= 0.165 / total
    axes = figure.subplots(
        rows, 1, sharex=rows > 1, squeeze=False,
        gridspec_kw={"left": left, "right": 0.985 if rows > 1 else 0.975, "top": 1 - head_in / total - 0.02,
                     "bottom": 0.46 / total, "hspace": 0.14},
    )  # fmt: skip
    return figure, axes[0][0]


def _balanced(text: str, width: int) -> list[str]:
    """As few lines as `width` allows, and none of them a lonely word."""
    lines = wrap(text, width)
    return next((w for n in range(width // 2, width) if len(w := wrap(text, n)) == len(lines)), lines)


def _room(labels: Iterable[str], axes_in: float = 6.4) -> float:
    """The share of the axes' width that the longest label takes at its right end."""
    return min(0.35 + 0.077 * max((len(label) for label in labels), default=0), 0.6 * axes_in) / axes_in


def _svg(figure: "Figure", words: Words) -> str:
    """The figure as one <svg> element, without prolog and metadata, with its words for readers who hear it."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = out.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r'<!--.*?-->|(?<=<g) id="[^"]*"|\n\s*(?=<)', "", body)
    body = re.sub(r' ((?:x|y|d)="[^"]*")', lambda a: f" {_shorter(a[1])}", body)
    said = f"<title>{escape(words.finding)}</title><desc>{escape(f'{words.plotted} {words.warning}'.strip())}</desc>"
    return body.replace(">", f' role="img">{said}', 1).rstrip() + "\n"


def _shorter(path: str) -> str:
    """A path's numbers to a hundredth of a point, on one line."""
    return re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), " ".join(path.split()))


def _colour(arm: int) -> str:
    return COLOURS[arm % len(COLOURS)]


def _dashes(arm: int) -> tuple[float, ...]:
    return DASHES[arm % len(DASHES)] or (None, None)  # type: ignore[return-value]


def _short(value: float) -> str:
    """A number on an axis: 24k, 1.5k, 300, 0.4."""
    if value >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


# ---- lines over load ------------------------------------------------------------------------------------------------


def _load_axis(axes: "Axes", loads: Sequence[int], room: float) -> None:
    """The tested concurrencies are the ticks, on a log2 axis; `room` stays free at the right for the lines' names."""
    from matplotlib import ticker

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(ticker.FixedLocator([float(x) for x in loads]))
    axes.xaxis.minorticks_off()
    axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
    if loads:
        spread = max(loads[-1] / loads[0], 2.0)
        axes.set_xlim(loads[0] / spread**0.04, loads[-1] * spread ** (room / (1 - room)))
    axes.set_xlabel("concurrent users")


def _value_axis(axes: "Axes", lines: Sequence[Line], unit: str, scale: Scale, marked: bool) -> None:
    """Linear from 0, or logarithmic around what is positive; `marked` keeps room for words at the top."""
    ends = [end for line in lines for p in line.points for end in (p.value, p.low, p.high) if end is not None]
    if scale == "log":
        axes.set_yscale("log")
        positive = [end for end in ends if end > 0] or [1.0, 10.0]
        _log_ticks(axes.yaxis, max(positive) / min(positive))
        axes.set_ylim(min(positive) / 1.3, max(positive) * (2.2 if marked else 1.3))
    else:
        axes.set_ylim(0, max([*ends, 1e-9]) * (1.2 if marked else 1.08))
    axes.yaxis.set_major_formatter(lambda v, _: _short(v))
    axes.grid(axis="y", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel(unit)


def _log_ticks(axis: "Axis", ratio: float) -> None:
    """As many ticks per decade as the span leaves room for."""
    from matplotlib import ticker

    subs = range(1, 10) if ratio < 8 else (1, 2, 5) if ratio < 3000 else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=tuple(float(s) for s in subs)))
    axis.minorticks_off()


def _mark_end(axes: "Axes", bracket: Bracket, row: int) -> None:
    """A shaded band for the only crossover; where arms differ, a bar in the arm's colour at the top for each."""
    ends = [bracket.wins_up_to, bracket.no_win_from]
    several = bool(bracket.name)
    colour = _colour(bracket.arm) if several else "#6b5a1e"
    text = f"gain ends between\n{ends[0]} and {ends[1]}"
    top = 0.985 - 0.1 * row
    if several:
        text = f"{bracket.name}: gain ends in {ends[0]} to {ends[1]}"
        axes.plot(ends, [top, top], transform=axes.get_xaxis_transform(), color=colour, lw=1.4, marker="|", ms=7)
    else:
        axes.axvspan(ends[0], ends[1], color="#f0e6c8", alpha=0.8, lw=0, zorder=0)
    axes.text(
        (ends[0] * ends[1]) ** 0.5, top - (0.02 if several else 0), text, transform=axes.get_xaxis_transform(),
        ha="center", va="top", size=7.5, color=colour,
    )  # fmt: skip


def _draw_line(axes: "Axes", line: Line) -> None:
    xs, ys = [p.load for p in line.points], [p.value for p in line.points]
    down = [max(p.value - (p.value if p.low is None else p.low), 0.0) for p in line.points]
    up = [max((p.value if p.high is None else p.high) - p.value, 0.0) for p in line.points]
    colour = _colour(line.arm)
    axes.errorbar(
        xs, ys, yerr=(down, up), color=colour, lw=1.1 if line.light else 1.8, dashes=_dashes(line.arm),
        marker=MARKERS[line.arm % len(MARKERS)], ms=5.5, mfc="white" if line.light else colour, mew=1.2,
        elinewidth=1.0, capsize=2.5, capthick=1.0,
    )  # fmt: skip


def _label_ends(axes: "Axes", lines: Sequence[Line]) -> None:
    """Names stand at the lines' ends instead of in a legend, pushed apart where they would touch; a hair leads back."""
    drawn = [line for line in lines if line.points]
    heights = _apart([_height(axes, line.points[-1].value) for line in drawn], 0.052)
    low, high = axes.get_xlim()
    step = (high / low) ** 0.035
    for line, height in zip(drawn, heights, strict=True):
        axes.annotate(
            line.name, xy=(line.points[-1].load, line.points[-1].value), xycoords="data",
            xytext=(line.points[-1].load * step, height), textcoords=axes.get_xaxis_transform(),
            color=_colour(line.arm), size=8.5, va="center", weight="normal" if line.light else "bold",
            arrowprops={"arrowstyle": "-", "color": _colour(line.arm), "lw": 0.5, "shrinkA": 1, "shrinkB": 5},
        )  # fmt: skip


def _height(axes: "Axes", value: float) -> float:
    """Where a value lies on the y axis, 0 at the bottom and 1 at the top."""
    point = axes.transData.transform((1.0, value))
    return float(axes.transAxes.inverted().transform(point)[1])


def _apart(heights: Sequence[float], least: float) -> list[float]:
    """The heights, moved as little as needed so that neighbours are `least` apart and none leaves the axes."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [min(max(heights[i], 0.02), 0.98) for i in order]
    for _ in range(50):
        for n in range(1, len(placed)):
            lack = least - (placed[n] - placed[n - 1])
            if lack > 1e-9:
                placed[n - 1] -= lack / 2
                placed[n] += lack / 2
    for n in range(len(placed)):  # what was pushed over an end comes back and pushes the others
        placed[n] = max(placed[n], 0.02 + n * least)
    for n in range(len(placed)):
        placed[-1 - n] = min(placed[-1 - n], 0.98 - n * least)
    back = [0.0] * len(heights)
    for n, i in enumerate(order):
        back[i] = placed[n]
    return back


# ---- the tail of the gaps -------------------------------------------------------------------------------------------


def _exceedance(gaps: Sequence[float], most: int = 400) -> tuple[list[float], list[float]]:
    """Sorted gaps and the share of gaps that are longer than or equal to each, thinned where nobody can see it."""
    ordered = sorted(g for g in gaps if g > 0)
    n = len(ordered)
    ranks = sorted({*(_thinned(n, most)), n - 1} if n else set())
    return [ordered[r] for r in ranks], [(n - r) / n for r in ranks]


def _thinned(n: int, most: int) -> Iterable[int]:
    """Ranks evenly spread over the logarithm of what lies above them: the tail whole, the bulk sampled."""
    return {n - max(1, round(n ** (k / most))) for k in range(most + 1)} if n > most else range(n)


def _tail_axes(axes: "Axes", ends: Sequence[tuple[str, int, list[float], list[float]]]) -> None:
    _log_ticks(axes.xaxis, max((xs[-1] / xs[0] for _, _, xs, _ in ends), default=10))
    axes.xaxis.set_major_formatter(lambda v, _: _short(v))
    axes.yaxis.set_major_formatter(lambda v, _: f"1 in {1 / v:,.0f}" if v < 0.99 else "all")
    axes.yaxis.minorticks_off()
    axes.grid(color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("time between two chunks that carry tokens (ms)")
    axes.set_ylabel("share of gaps at least as long")
    if ends:
        axes.set_ylim(min(ys[-1] for _, _, _, ys in ends) * 0.8, 1.3)


def _legend(axes: "Axes", arms: Sequence[tuple[str, int]]) -> None:
    """One row above the axes, where no curve runs."""
    place, x = axes.transAxes, 0.0
    for name, arm in arms:
        colour = _colour(arm)
        axes.plot([x, x + 0.06], [1.04] * 2, transform=place, clip_on=False, color=colour, dashes=_dashes(arm), lw=1.8)
        axes.text(x + 0.07, 1.04, name, transform=place, color=colour, size=8.5, va="center", weight="bold")
        x += 0.11 + 0.0145 * len(name)


# ---- pools ----------------------------------------------------------------------------------------------------------


def _draw_bar(axes: "Axes", row: int, bar: Bar, base: float) -> None:
    if base > bar.tokens:
        axes.barh(row, base, height=0.6, facecolor="none", edgecolor=SOFT, lw=0.8, ls=(0, (3, 2)))
    hatch = HATCHES[bar.arm % len(HATCHES)]
    axes.barh(row, bar.tokens, height=0.6, color=_colour(bar.arm), hatch=hatch, lw=0)
    if bar.low is not None and bar.high is not None:
        axes.errorbar(
            bar.tokens, row, xerr=[[max(bar.tokens - bar.low, 0)], [max(bar.high - bar.tokens, 0)]], color=INK,
            capsize=3, elinewidth=1.1, marker="none",
        )  # fmt: skip
    axes.annotate(
        bar.label, xy=(max(bar.tokens, base, bar.high or 0), row), xytext=(6, 0), textcoords="offset points",
        va="center", size=8.5, color=INK,
    )  # fmt: skip


# ---- the card over time ---------------------------------------------------------------------------------------------


def _draw_series(
    axes: "Axes",
    series: Sequence[tuple[float, float | None]],
    colour: str,
    unit: str,
    mark: float | None,
    mark_name: str,
) -> None:
    known = [(t, v) for t, v in series if v is not None]
    for part in _stretches(known):
        low, high = _envelope(part, max(400 * len(part) // len(known), 2))
        times = [t for t, _ in low]
        axes.fill_between(times, [v for _, v in low], [v for _, v in high], color=colour, alpha=0.85, lw=0.9)
    if mark is not None:
        axes.axhline(mark, color=INK, lw=0.9, ls=(0, (4, 2)))
        axes.annotate(
            f"{mark_name} {mark:,.0f}", xy=(1, mark), xycoords=axes.get_yaxis_transform(), xytext=(-2, 3),
            textcoords="offset points", ha="right", size=8, color=INK,
        )  # fmt: skip
    axes.set_ylim(0, max([*(v for _, v in known), mark or 0, 1]) * 1.18)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}")
    axes.grid(axis="y", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel(unit)


def _stretches(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The points, parted where nothing was sampled for long: nothing is drawn there."""
    steps = sorted(b[0] - a[0] for a, b in pairwise(points))
    longest = 20 * steps[len(steps) // 2] if steps else 0.0
    parts = [[p] for p in points[:1]]
    for before, point in pairwise(points):
        if point[0] - before[0] > longest:
            parts.append([])
        parts[-1].append(point)
    return parts


def _envelope(
    points: Sequence[tuple[float, float]], most: int = 400
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """The lowest and highest value in each of at most `most` stretches of time: small, and no spike is lost."""
    if not points:
        return [], []
    start, end = points[0][0], points[-1][0]
    width = max((end - start) / most, 1e-9)
    bins: dict[int, list[tuple[float, float]]] = {}
    for t, v in points:
        bins.setdefault(int((t - start) / width), []).append((t, v))
    middle = [(sum(t for t, _ in part) / len(part), part) for part in bins.values()]
    return (
        [(t, min(v for _, v in part)) for t, part in middle],
        [(t, max(v for _, v in part)) for t, part in middle],
    )


def _draw_spans(top: "Axes", bottom: "Axes", spans: Sequence[Span]) -> None:
    for n, span in enumerate(spans):
        for axes in (top, bottom):
            axes.axvspan(span.start_s, span.end_s, color="#f2f2f2" if n % 2 else "#fafafa", lw=0, zorder=0)
        top.text(
            (span.start_s + span.end_s) / 2, 1.02, span.name, transform=top.get_xaxis_transform(), ha="center", size=8,
            color=_colour(span.arm), weight="bold",
        )  # fmt: skip


def _time_step(end_s: float) -> tuple[int, float]:
    """Seconds in the axis's unit and between its ticks, ten ticks at most."""
    unit = 60 if end_s >= 120 else 1
    step = next((s for s in (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 240) if end_s / unit / s <= 10), 480)
    return unit, step * unit
