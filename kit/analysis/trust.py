"""Which trials may be used at all, and which may be shown but not judged. Knows trials, not arms or ratios."""

from collections.abc import Iterable
from statistics import median

from kit.analysis.metrics import failed_share, gaps_s, succeeded
from kit.measurements import Measurements, TrialData

IN_FLIGHT = 0.98
"""Under this share of the asked concurrency really in flight, the client was the bottleneck."""
LAG_SHARE = 0.05
"""A client that lags by more than this share of the median chunk gap blurs what it stamps."""


def usable(m: Measurements) -> list[TrialData]:
    """The trials with figures: not void, answered at all, and with no more failures than the scenario allows."""
    limit = float(m.run.scenario.get("limits", {}).get("failed_share", 0.01))
    return [t for t in latest(m.trials) if t.record.void is None and (failed_share(t) or 0) <= limit and succeeded(t)]


def latest(trials: Iterable[TrialData]) -> list[TrialData]:
    """Of a trial that was repeated, the last attempt; in the order of sitting, leg and trial."""
    found: dict[tuple[int, str, str], TrialData] = {}
    for t in sorted(trials, key=lambda t: (t.sitting, t.record.leg, t.record.trial, t.record.attempt)):
        found[t.sitting, t.record.leg, t.record.trial] = t
    return list(found.values())


def median_gap_s(trial: TrialData) -> float | None:
    """The median time between chunks of all requests; None when every answer came in one chunk."""
    gaps = [g for r in succeeded(trial) for g in gaps_s(r)]
    return median(gaps) if gaps else None


def lag_share(trial: TrialData) -> float | None:
    """The client's P99 lag over the median chunk gap."""
    gap, lag = median_gap_s(trial), trial.record.watch.lag_p99_s
    return lag / gap if gap and lag is not None else None


def why_not_judged(trial: TrialData) -> str | None:
    """Why a verdict must not lean on the trial's figures; None when it may."""
    watch = trial.record.watch
    if watch.in_flight_share is not None and watch.in_flight_share < IN_FLIGHT:
        return f"the client kept {watch.in_flight_share:.0%} of the asked concurrency in flight"
    lag = lag_share(trial)
    if lag is not None and lag > LAG_SHARE:
        return f"the client's P99 lag is {lag:.0%} of the median chunk gap"
    return None
