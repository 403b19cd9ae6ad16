"""The number a claim speaks of, as this run measured it. Knows nothing of what was published.

A claim's `metric` is a tag of the metrics registry, taken at each load over seeds, or one of FACTS, which a server's
start, a trial's log or the scenario states. A registry number has a 95 % interval over seeds (a ratio's also holds the
restart noise, see `analysis.ratios`); a fact has the range of all the times it was stated.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from statistics import mean, median, stdev

import msgspec

from kit.analysis import metrics, trust
from kit.analysis.noise import t_quantile
from kit.analysis.ratios import Ratio
from kit.analysis.summary import Summary
from kit.errors import UnusableInput
from kit.measurements import Measurements, ServerFacts
from kit.scenario import Claim, Dataset, Scenario

ALPHA = 0.05


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one place. `note` says why there is no number or no interval, or why it must not be used."""

    dataset: str = ""
    concurrency: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    note: str | None = None


class Run(msgspec.Struct, frozen=True):
    """A run in all its forms: raw records, their summary and the scenario that was resolved for it."""

    records: Measurements
    summary: Summary
    scenario: Scenario

    def servers(self, arm: str) -> list[ServerFacts]:
        """What every start of an arm's server said."""
        return [s.facts for _, s in self.records.servers if s.arm == arm]


Fact = Callable[[Claim, Run], list[Found]]


def take(claim: Claim, run: Run) -> list[Found]:
    """The claim's number at each place it speaks of; an empty list never happens. Raises UnusableInput for a metric
    that nobody knows."""
    check(claim, run.scenario)
    if claim.metric in FACTS:
        return FACTS[claim.metric](claim, run)
    if claim.against:
        return [_ratio(claim, run, *place) for place in _places(claim, run)]
    return [_absolute(claim, run, *place) for place in _places(claim, run)]


def check(claim: Claim, scenario: Scenario) -> None:
    """Whether the claim's expression can be taken at all; raises UnusableInput."""
    name = f"claims.{claim.id}"
    metric = metrics.BY_TAG.get(claim.metric)
    if metric is None and claim.metric not in FACTS:
        known = ", ".join([*(m.tag for m in metrics.METRICS), *FACTS])
        raise UnusableInput(f"{name}: no metric is called {claim.metric!r}; there are {known}")
    if metric is not None and not claim.arm:
        raise UnusableInput(f"{name}: metric {claim.metric} needs an arm")
    if metric is not None and claim.against:
        if scenario.baseline not in (claim.arm, claim.against) or claim.arm == claim.against:
            raise UnusableInput(f"{name}: a ratio is to or from the baseline {scenario.baseline!r}")
        if not metric.compared:
            raise UnusableInput(f"{name}: metric {claim.metric} is not compared between arms")


def _places(claim: Claim, run: Run) -> list[tuple[str, int]]:
    sweep = run.scenario.sweep
    return [
        (dataset, users)
        for dataset in claim.dataset or list(run.scenario.datasets)
        for users in claim.concurrency or sweep.concurrency
    ]


# ---- numbers over seeds ---------------------------------------------------------------------------------------------


def _ratio(claim: Claim, run: Run, dataset: str, users: int) -> Found:
    inverted = claim.arm == run.scenario.baseline
    arm = claim.against if inverted else claim.arm
    ratio = ratio_at(run.summary.ratios, claim.metric, arm, dataset, users)
    if ratio is None:
        return Found(dataset=dataset, concurrency=users, note=_unmeasured(dataset, users))
    low, high = (ratio.low, ratio.high) if not inverted else (_inverse(ratio.high), _inverse(ratio.low))
    return Found(
        dataset=dataset,
        concurrency=users,
        value=1 / ratio.ratio if inverted else ratio.ratio,
        low=low,
        high=high,
        note=_missing_seeds(run, (s.seed for s in ratio.per_seed)) or ratio.note,
    )


def ratio_at(ratios: Sequence[Ratio], metric: str, arm: str, dataset: str, users: int) -> Ratio | None:
    """The closed-loop ratio of an arm at a load; None when it was not measured."""
    same = (r for r in ratios if (r.metric, r.arm, r.dataset, r.point.concurrency) == (metric, arm, dataset, users))
    return next((r for r in same if r.point.rate_per_s is None), None)


def by_seed(summary: Summary, metric: str, arm: str, dataset: str, users: int) -> dict[int, float]:
    """The metric of each seed, over the geometric mean of its trials; empty when it was not measured."""
    grouped: dict[int, list[float]] = defaultdict(list)
    for row in summary.rows:
        if (row.arm, row.dataset, row.point.concurrency) == (arm, dataset, users) and row.point.rate_per_s is None:
            for each in row.cells[metric].per_seed if metric in row.cells else []:
                grouped[each.seed].append(each.value)
    return {s: exp(mean(map(log, v))) for s, v in sorted(grouped.items()) if all(x > 0 for x in v)}


def _absolute(claim: Claim, run: Run, dataset: str, users: int) -> Found:
    seeds = by_seed(run.summary, claim.metric, claim.arm, dataset, users)
    if not seeds:
        return Found(dataset=dataset, concurrency=users, note=_unmeasured(dataset, users))
    middle, half = spread([log(v) for v in seeds.values()])
    return Found(
        dataset=dataset,
        concurrency=users,
        value=exp(middle),
        low=None if half is None else exp(middle - half),
        high=None if half is None else exp(middle + half),
        note=_missing_seeds(run, seeds) or ("one seed has no spread" if half is None else None),
    )


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half of its 95 % t-interval; no interval for a single value."""
    if len(values) < 2:
        return mean(values), None
    return mean(values), t_quantile(len(values) - 1, ALPHA) * stdev(values) / len(values) ** 0.5


def _missing_seeds(run: Run, found: Iterable[int]) -> str | None:
    missing = sorted(set(run.scenario.sweep.seeds) - set(found))
    if not missing:
        return None
    return f"seed{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} not measured in full"


def _unmeasured(dataset: str, users: int) -> str:
    return f"not measured on {dataset} at {users} user{'s' * (users != 1)}"


def _inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


# ---- facts ----------------------------------------------------------------------------------------------------------


def _stated(values: Sequence[float | None], why: str, dataset: str = "", users: int | None = None) -> Found:
    """A fact that was stated several times: its median, and the range of all."""
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return Found(dataset=dataset, concurrency=users, note=why)
    return Found(dataset=dataset, concurrency=users, value=median(known), low=min(known), high=max(known))


def _of_server(field: Callable[[ServerFacts], float | None], name: str) -> Fact:
    def fact(claim: Claim, run: Run) -> list[Found]:
        return [_stated([field(f) for f in run.servers(claim.arm)], f"the server of {claim.arm} does not state {name}")]

    return fact


def _cap(claim: Claim, run: Run) -> list[Found]:
    """The limit of running requests; one that was asked for says nothing of the server's own."""
    asked = {f.max_running_requests_asked for f in run.servers(claim.arm)} - {None}
    if asked:
        return [Found(note=f"set by hand to {', '.join(map(str, sorted(x for x in asked if x)))}")]
    return _of_server(lambda f: f.max_running_requests, "its limit of running requests")(claim, run)


def _share_taken(claim: Claim, run: Run) -> list[Found]:
    pools = [[f.pool_tokens for f in run.servers(arm)] for arm in (claim.arm, claim.against)]
    ours, theirs = ([p for p in side if p] for side in pools)
    if not ours or not theirs:
        return [Found(note="a server does not state its pool")]
    low, high = 1 - max(ours) / min(theirs), 1 - min(ours) / max(theirs)
    return [Found(value=1 - mean(ours) / mean(theirs), low=low, high=high)]


def _lengths(claim: Claim, run: Run) -> dict[str, int]:
    """Prompt and answer together, in tokens, of the data sets for which the scenario fixes both."""

    def total(d: Dataset) -> int | None:
        return None if d.input_len is None or d.output_len is None else d.input_len + d.output_len

    names = claim.dataset or list(run.scenario.datasets)
    return {n: length for n in names if (length := total(run.scenario.datasets[n])) is not None}


def _request_tokens(claim: Claim, run: Run) -> list[Found]:
    return [_stated([float(n)], "", dataset) for dataset, n in _lengths(claim, run).items()] or [
        Found(note="the scenario fixes no lengths")
    ]


def _fit(claim: Claim, run: Run) -> list[Found]:
    pools = [f.pool_tokens for f in run.servers(claim.arm)]
    return [
        _stated([None if p is None else p // length for p in pools], "the server does not state its pool", dataset)
        for dataset, length in _lengths(claim, run).items()
    ] or [Found(note="the scenario fixes no lengths")]


def _running(claim: Claim, run: Run, dataset: str, users: int) -> list[int | None]:
    """The most requests that ran at a time, by the server's log, in each trial of the arm at that load."""
    return [
        t.record.log.max_running
        for t in trust.usable(run.records)
        if (t.record.arm, t.record.dataset, t.record.concurrency) == (claim.arm, dataset, users)
        and t.record.rate_per_s is None
    ]


def _max_running(claim: Claim, run: Run) -> list[Found]:
    return [_stated(_running(claim, run, *at), f"{_unmeasured(*at)}, or not logged", *at) for at in _places(claim, run)]


def _waiting(claim: Claim, run: Run) -> list[Found]:
    """Users beyond the most that ran at a time: those who wait while the server is as full as it gets."""
    return [
        _stated(
            [None if r is None else users - r for r in _running(claim, run, dataset, users)],
            f"{_unmeasured(dataset, users)}, or not logged",
            dataset,
            users,
        )
        for dataset, users in _places(claim, run)
    ]


def _seeds(claim: Claim, run: Run) -> list[Found]:
    """The fewest seeds of any arm at any load."""
    arms = [claim.arm] if claim.arm else list(run.scenario.arms)
    usable = trust.usable(run.records)
    counts = [
        len({t.record.seed for t in usable
             if (t.record.arm, t.record.dataset, t.record.concurrency) == (arm, dataset, users)})
        for arm in arms
        for dataset, users in _places(claim, run)
    ]  # fmt: skip
    return [Found(value=min(counts), low=min(counts), high=min(counts))]


def _datasets(claim: Claim, run: Run) -> list[Found]:
    return [_stated([float(len({t.record.dataset for t in trust.usable(run.records)}))], "")]


def _lock(claim: Claim, run: Run) -> list[Found]:
    locks = [s.lock for s in run.records.sittings]
    states = ", ".join(sorted({lock.state for lock in locks})) or "no sitting"
    return [_stated([lock.set_mhz if lock.state == "locked" else None for lock in locks], f"not locked: {states}")]


def _best_steps(claim: Claim, run: Run) -> list[Found]:
    """The draft steps of the arm with the most output at each load; 0 where the plain server has it."""
    return [_best_at(run, dataset, users) for dataset, users in _places(claim, run)]


def _best_at(run: Run, dataset: str, users: int) -> Found:
    gains: dict[str, float] = {run.scenario.baseline: 1.0}
    for arm in run.scenario.arms:
        if (r := ratio_at(run.summary.ratios, "output_throughput_tok_s", arm, dataset, users)) is not None:
            gains[arm] = r.ratio
    if len(gains) == 1:
        return Found(dataset=dataset, concurrency=users, note=_unmeasured(dataset, users))
    best = max(gains, key=lambda arm: gains[arm])
    steps = [0] if best == run.scenario.baseline else [f.draft_steps for f in run.servers(best)]
    return _stated(steps, f"the server of {best} does not state its draft steps", dataset, users)


def _idle_experts(claim: Claim, run: Run) -> list[Found]:
    """The share of experts without a token in the layer that has the most of them, in trials that recorded experts."""
    return [_stated(_idle_at(claim, run, *at), f"experts not recorded: {_unmeasured(*at)}", *at)
            for at in _places(claim, run)]  # fmt: skip


def _idle_at(claim: Claim, run: Run, dataset: str, users: int) -> list[float]:
    return [
        max(layer.count(0) / len(layer) for layer in t.experts.tokens)
        for t in run.records.trials
        if t.experts and (t.record.arm, t.record.dataset, t.record.concurrency) == (claim.arm, dataset, users)
    ]


FACTS: dict[str, Fact] = {
    "pool_tokens": _of_server(lambda f: f.pool_tokens, "its pool"),
    "pool_share_taken": _share_taken,
    "requests_that_fit": _fit,
    "request_tokens": _request_tokens,
    "max_running_requests": _cap,
    "max_running": _max_running,
    "waiting": _waiting,
    "draft_tokens": _of_server(lambda f: f.draft_tokens, "its draft tokens"),
    "best_draft_steps": _best_steps,
    "idle_experts": _idle_experts,
    "seeds": _seeds,
    "datasets": _datasets,
    "lock_mhz": _lock,
}
