"""A run against another run of the same scenario: what differs in how they were made, then in what they measured.

Seeds pair the runs, since both replay the same frozen workloads. A ratio or an absolute is reproduced when it lies
within the other run's own spread: half of its 95 % interval, restarts included where they are known. The spread counts
from 3 %, under which no difference is one, to 9 %, so that a shift by a tenth never passes for noise. Ratios come
first; absolutes need the same card.
"""

from collections.abc import Iterable, Mapping
from math import exp, log

import msgspec

from kit.analysis.ratios import Ratio
from kit.claims.found import Run, by_seed, ratio_at, spread
from kit.claims.judge import Outcome, cards

RATIOS = ("output_throughput_tok_s", "tpot_p50_ms", "ttft_p50_ms")
ABSOLUTES = ("output_throughput_tok_s", "tpot_p50_ms", "ttft_p50_ms", "accept_length")
LEAST, MOST = log(1.03), log(1.09)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which the runs were made differently; None where a run does not say."""

    what: str
    here: str | None
    published: str | None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One number of both runs. `shift` is here / published, with its 95 % interval over paired seeds.

    `tolerance` is relative: the published run's own spread.
    """

    kind: str
    metric: str
    arm: str
    dataset: str
    concurrency: int
    published: float
    here: float | None = None
    shift: float | None = None
    low: float | None = None
    high: float | None = None
    tolerance: float
    outcome: Outcome
    reason: str


class _Side(msgspec.Struct, frozen=True):
    """A number of the published run at one place: what it is, its values by seed and its spread in logarithms."""

    kind: str
    metric: str
    arm: str
    dataset: str
    users: int
    seeds: dict[int, float]
    half: float | None


# ---- how the runs were made -----------------------------------------------------------------------------------------


def differences(here: Run, published: Run) -> list[Difference]:
    """Everything recorded about the making of a run that differs, in a fixed order; times and places apart."""
    ours, theirs = _made(here), _made(published)
    names = list(dict.fromkeys([*theirs, *ours]))
    return [
        Difference(what=name, here=ours.get(name), published=theirs.get(name))
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def _made(run: Run) -> dict[str, str]:
    record, scenario = run.records.run, run.scenario
    facts = {
        "model": f"{scenario.model.path} @ {scenario.model.revision or 'no revision'}",
        "draft": f"{scenario.draft.path} @ {scenario.draft.revision or 'no revision'}" if scenario.draft else "none",
        "engine": record.engine,
        "kit": f"{record.kit_version} {record.kit_commit or ''}".strip(),
        "card": ", ".join(sorted(set(cards(run)))) or "none",
        "driver": _all(g.driver for s in run.records.sittings for g in s.gpus),
        "clock lock": _all(f"{s.lock.state} {s.lock.set_mhz or ''}".strip() for s in run.records.sittings),
        "processor": _all(s.host.cpu for s in run.records.sittings),
    }
    facts |= {f"image {key}": value for key, value in sorted(record.image.items())}
    facts |= {f"workload {w.dataset}, seed {w.seed}": w.sha256 for w in record.workloads}
    for arm in scenario.arms:
        facts |= _server(run, arm)
    return facts


def _server(run: Run, arm: str) -> dict[str, str]:
    servers = [s for _, s in run.records.servers if s.arm == arm]
    if not servers:
        return {f"server {arm}": "never started"}
    return {
        f"arguments of {arm}": " ".join(servers[-1].argv),
        f"environment of {arm}": " ".join(f"{k}={v}" for k, v in sorted(servers[-1].env.items())),
        f"SGLang of {arm}": _all(s.facts.version for s in servers),
    }


def _all(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({v or "not stated" for v in values})) or "none"


# ---- what the runs measured -----------------------------------------------------------------------------------------


def compare(here: Run, published: Run) -> list[Compared]:
    """Every ratio of the published run, then every absolute, at each of its fixed loads."""
    found = [_compared(side, here, published) for side in _ratios(published)]
    return found + [_compared(side, here, published) for side in _absolutes(published)]


def _ratios(run: Run) -> list[_Side]:
    return [
        _Side("ratio", r.metric, r.arm, r.dataset, r.point.concurrency, _ratio_seeds(r), _half(r))
        for metric in RATIOS
        for r in run.summary.ratios
        if r.metric == metric and r.point.rate_per_s is None
    ]


def _ratio_seeds(ratio: Ratio) -> dict[int, float]:
    return {s.seed: s.ratio for s in ratio.per_seed}


def _half(ratio: Ratio) -> float | None:
    return log(ratio.high / ratio.low) / 2 if ratio.low and ratio.high else None


def _absolutes(run: Run) -> list[_Side]:
    return [
        _Side("absolute", metric, row.arm, row.dataset, row.point.concurrency, seeds, spread(_logs(seeds))[1])
        for metric in ABSOLUTES
        for row in run.summary.rows
        if row.point.rate_per_s is None
        and (seeds := by_seed(run.summary, metric, row.arm, row.dataset, row.point.concurrency))
    ]


def _logs(values: Mapping[int, float]) -> list[float]:
    return [log(v) for v in values.values()]


def _here(side: _Side, run: Run) -> dict[int, float]:
    if side.kind == "absolute":
        return by_seed(run.summary, side.metric, side.arm, side.dataset, side.users)
    ratio = ratio_at(run.summary.ratios, side.metric, side.arm, side.dataset, side.users)
    return _ratio_seeds(ratio) if ratio else {}


def _compared(side: _Side, here: Run, published: Run) -> Compared:
    ours = _here(side, here)
    tolerance = min(MOST, max(LEAST, side.half or 0.0))
    paired = [log(ours[s] / side.seeds[s]) for s in side.seeds if s in ours]
    shift, half = spread(paired) if paired else (None, None)
    outcome, reason = _outcome(side, ours, here, published, shift, half, tolerance)
    return Compared(
        kind=side.kind,
        metric=side.metric,
        arm=side.arm,
        dataset=side.dataset,
        concurrency=side.users,
        published=exp(spread(_logs(side.seeds))[0]),
        here=exp(spread(_logs(ours))[0]) if ours else None,
        shift=None if shift is None else exp(shift),
        low=None if shift is None or half is None else exp(shift - half),
        high=None if shift is None or half is None else exp(shift + half),
        tolerance=exp(tolerance) - 1,
        outcome=outcome,
        reason=reason,
    )


def _outcome(
    side: _Side,
    ours: Mapping[int, float],
    here: Run,
    published: Run,
    shift: float | None,
    half: float | None,
    tolerance: float,
) -> tuple[Outcome, str]:
    if why_not := _not_comparable(side, here, published):
        return "not comparable", why_not
    missing = sorted(set(side.seeds) - set(ours))
    if missing or shift is None:
        return "cannot tell", f"seed {', '.join(map(str, missing))} not measured here"
    if abs(shift) <= tolerance:
        return "holds", "within the published run's own spread"
    if half is None or abs(shift) <= half:
        return "cannot tell", "beyond the published spread, but these seeds do not tell it from none"
    return "fails", "beyond the published run's own spread"


def _not_comparable(side: _Side, here: Run, published: Run) -> str | None:
    ours, theirs = ({w.seed: w.sha256 for w in r.records.run.workloads if w.dataset == side.dataset}
                    for r in (here, published))  # fmt: skip
    other = [s for s in side.seeds if s in ours and ours[s] != theirs.get(s)]
    if other:
        return f"another workload (seed {', '.join(map(str, other))})"
    if side.kind == "absolute" and side.metric != "accept_length" and set(cards(here)) != set(cards(published)):
        return "another card"
    return None
