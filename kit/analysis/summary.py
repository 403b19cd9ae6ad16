"""The whole analysis of a run as one record of plain data. Pure: the same measurements give the same summary, byte for
byte. Knows nothing of files, templates or verdicts (`kit.verdict` draws those from it)."""

from collections.abc import Sequence

import msgspec

from kit.analysis import conditions, crossover, metrics, ratios, table
from kit.analysis.bias import Bias, biases
from kit.analysis.conditions import Condition
from kit.analysis.crossover import Crossover
from kit.analysis.decompose import BreakEven, Decomposition, break_evens, decompositions
from kit.analysis.doubt import Case, Doubt
from kit.analysis.doubts import doubts
from kit.analysis.limits import Limit, Pressure, limits, pressures
from kit.analysis.objectives import Objective, objectives
from kit.analysis.ratios import Noise, Ratio
from kit.analysis.sheet import Order, entries, point_order
from kit.analysis.table import Row
from kit.analysis.twins import Twins, twins
from kit.errors import UnusableInput
from kit.measurements import Measurements
from kit.plan import Point
from kit.scenario import Scenario, Slo

CROSSOVER_METRICS = ("output_throughput_tok_s", "tpot_p50_ms", "ttft_p99_ms", "gap_longest_p99_ms")


class MetricText(msgspec.Struct, frozen=True, kw_only=True):
    """What a template needs of a metric: how it is called, written and defined."""

    tag: str
    heading: str
    unit: str
    better: str
    definition: str
    digits: int
    judged: bool


class ArmCrossover(msgspec.Struct, frozen=True, kw_only=True):
    """The crossover of one arm on one data set by one metric, and the states it is read from.

    `limits` says what holds the arm back at the first load beyond the gain, or at the highest load where it always
    gains.
    """

    dataset: str
    arm: str
    metric: str
    states: dict[str, crossover.State]
    found: Crossover
    limits: list[Limit]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a run. Lists are in the scenario's order; what is not available is None or absent.

    `sources` and `ignores_eos` are by data set, `flags` (an arm's own, as one types them) by arm. `trials` are those
    whose figures count, `measured` all complete ones of the `planned`.
    """

    scenario: str
    title: str
    question: str
    engine: str
    image: dict[str, str]
    unpinned: bool
    baseline: str
    arms: list[str]
    datasets: list[str]
    sources: dict[str, str]
    ignores_eos: dict[str, bool]
    flags: dict[str, list[str]]
    seeds: list[int]
    blocks: int
    sittings: int
    trials: int
    finished: bool
    measured: int
    planned: int
    slo: Slo | None
    rehearsal: list[str]
    conditions: list[Condition]
    fit_note: str
    metrics: list[MetricText]
    rows: list[Row]
    noise: list[Noise]
    ratios: list[Ratio]
    crossovers: list[ArmCrossover]
    pressures: list[Pressure]
    decompositions: list[Decomposition]
    break_evens: list[BreakEven]
    twins: list[Twins]
    biases: list[Bias]
    objectives: list[Objective]
    doubts: list[Doubt]
    incomplete: list[str]
    method: list[str]


def summarise(m: Measurements) -> Summary:
    """The analysis of a run's measurements. Raises UnusableInput when the recorded scenario cannot be read."""
    scenario = _scenario(m)
    arms = [scenario.baseline, *(a for a in scenario.arms if a != scenario.baseline)]
    datasets = list(scenario.datasets)
    order, sheet = Order(datasets, arms), entries(m)
    compared = ratios.compare(m.run, sheet, scenario.baseline, arms, order)
    said = conditions.conditions(m, scenario, sheet)
    rows = table.rows(sheet, order)
    floors = ratios.noise_floors(sheet, scenario.baseline)
    pressed = pressures(sheet, said)
    return Summary(
        scenario=scenario.name,
        title=scenario.title,
        question=scenario.question,
        engine=m.run.engine,
        image=m.run.image,
        unpinned=m.run.unpinned,
        baseline=scenario.baseline,
        arms=arms,
        datasets=datasets,
        sources={name: d.source for name, d in scenario.datasets.items()},
        ignores_eos={name: d.ignore_eos for name, d in scenario.datasets.items()},
        flags={name: _flags(scenario, name) for name in arms},
        seeds=sorted({e.seed for e in sheet}),
        blocks=len({e.start.aba for e in sheet}),
        sittings=len({e.start.sitting for e in sheet}),
        trials=len(sheet),
        finished=m.finished,
        measured=m.measured,
        planned=m.planned,
        slo=scenario.slo,
        rehearsal=conditions.rehearsal(said, scenario),
        conditions=said,
        fit_note=conditions.FIT_NOTE,
        metrics=[_text(x) for x in metrics.METRICS],
        rows=rows,
        noise=floors,
        ratios=compared,
        crossovers=crossovers(compared, pressed),
        pressures=pressed,
        decompositions=decompositions(sheet, pressed, said, compared, order),
        break_evens=break_evens(compared, said),
        twins=twins(sheet, said, order),
        biases=biases(compared, scenario.datasets),
        objectives=objectives(rows, scenario.slo),
        doubts=doubts(Case(m, scenario, sheet, said, rows, compared, floors, pressed)),
        incomplete=m.incomplete,
        method=METHOD,
    )


METHOD = [
    "Ratios are taken seed by seed on the same frozen workload: the logarithm of spec over the geometric mean of the "
    "plain runs before and after it (A B A), which cancels a steady drift.",
    "Intervals add two sources of error: the spread over seeds, and the luck of a server's start, measured by how far "
    "the first and last plain server differ and, from the second block on, by how far blocks differ. Seeds on one "
    "server do not sample restarts. The restart spread is squared about zero, so a drift widens it; a part of the run "
    "noise is in both, which errs on the safe side. Degrees of freedom are Satterthwaite's, and points that move "
    "together count as fewer. In a single block the speculative server started once, and its luck is taken to be like "
    "plain's.",
    "A difference is claimed when the whole interval lies beyond 3 %, and 'no gain' when all of it lies below; the "
    "interval that decides is Holm's over the loads that one verdict uses. Looks taken with --until-decided share the "
    "5 % (Pocock's spending).",
    "The client's P99 lag is weighed against what each metric times: chunk gaps and ITL against the median gap, TTFT "
    "against the median TTFT, TPOT and end to end against the median time from first to last chunk, throughput and "
    "energy against the trial's duration. Above 5 % of it the metric is shown and not judged. With less than 98 % of "
    "the asked concurrency in flight nothing of the trial is judged.",
    "A P99 has an order-statistic interval and is indicative under 299 requests, where no upper bound exists at 95 %. "
    "Seeds pool for it; requests of one batch are not independent, so it is somewhat too narrow.",
]


def _scenario(m: Measurements) -> Scenario:
    try:
        return msgspec.convert(m.run.scenario, Scenario)
    except msgspec.ValidationError as error:
        raise UnusableInput(f"run.json: the recorded scenario cannot be read by this kit: {error}") from None


def _flags(scenario: Scenario, arm: str) -> list[str]:
    """An arm's own flags as one types them, without those that all arms share."""
    own = scenario.arms[arm].flags.items()
    spelt = [f"--{name}" if value is True else f"--{name} {value}" for name, value in own if value is not False]
    draft = scenario.draft if scenario.arms[arm].draft else None
    return [*spelt, f"--speculative-draft-model-path {draft.path}"] if draft else spelt


def _text(metric: metrics.Metric) -> MetricText:
    return MetricText(
        tag=metric.tag,
        heading=metric.heading,
        unit=metric.unit,
        better=metric.better,
        definition=metric.definition,
        digits=metric.digits,
        judged=metric.judged,
    )


def crossovers(compared: Sequence[Ratio], pressed: Sequence[Pressure]) -> list[ArmCrossover]:
    """Closed-loop loads only: a crossover is a number of users."""
    groups: dict[tuple[str, str, str], dict[int, crossover.State]] = {}
    for r in compared:
        if r.metric in CROSSOVER_METRICS and r.point.rate_per_s is None:
            groups.setdefault((r.dataset, r.arm, r.metric), {})[r.point.concurrency] = r.state
    return [_arm_crossover(*key, states, pressed) for key, states in groups.items()]


def _arm_crossover(
    dataset: str, arm: str, metric: str, states: dict[int, crossover.State], pressed: Sequence[Pressure]
) -> ArmCrossover:
    found = crossover.crossover(states)
    beyond = next((c for c in sorted(states) if states[c] != "faster"), max(states))
    at = [p for p in pressed if (p.arm, p.point.dataset, p.point.concurrency) == (arm, dataset, beyond)]
    return ArmCrossover(
        dataset=dataset,
        arm=arm,
        metric=metric,
        states={str(c): states[c] for c in sorted(states)},
        found=found,
        limits=limits(at[0]) if at else [],
    )


def undecided(summary: Summary) -> list[Point]:
    """The points at which a verdict waits for more seeds: where `run --until-decided` goes on.

    Throughput and TPOT wherever they are undecided. The P99 TTFT only where no objective judges it and TPOT is
    faster, since it only ever speaks against a gain. A point that more seeds cannot help is not among them.
    """
    faster = {(r.point, r.arm) for r in summary.ratios if r.metric == "tpot_p50_ms" and r.state == "faster"}
    waits = {
        r.point
        for r in summary.ratios
        if r.family in ratios.CLASSES.values() and r.state == "undecided" and r.more_seeds
        and (r.metric != "ttft_p99_ms" or (summary.slo is None and (r.point, r.arm) in faster))
    }  # fmt: skip
    return sorted(waits, key=point_order)
