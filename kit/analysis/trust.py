"""Which trials may be used at all, and which of their metrics may be shown but not judged. Knows trials, not arms."""

from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from kit.analysis.chunks import Chunks
from kit.analysis.metrics import Timed, decode_span, duration_s, failed_share, succeeded
from kit.analysis.words import percent
from kit.measurements import Measurements, TrialData

IN_FLIGHT = 0.98
"""Under this share of the asked concurrency really in flight, the client was the bottleneck."""
LAG_SHARE = 0.05
"""A client that lags by more than this share of a span blurs what it stamps of it."""
SPANS: dict[Timed, str] = {
    "gap": "the median chunk gap",
    "first token": "the median TTFT",
    "answer": "the median time from first to last chunk",
    "trial": "the trial's duration",
}
"""What the client's lag is weighed against, by what a metric times."""


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


def spans_s(trial: TrialData, chunks: Chunks) -> dict[Timed, float]:
    """What a client's lag is weighed against, in seconds. What the trial lacks is not there. `chunks`: of successes."""
    done = chunks.requests
    found: dict[Timed, list[float]] = {
        "gap": np.sort(chunks.gaps_s).tolist(),
        "first token": [r.chunks[0][0] - r.sent_s for r in done if r.sent_s is not None],
        "answer": [span[0] for r in done if (span := decode_span(r))],
        "trial": [seconds] if (seconds := duration_s(trial)) else [],
    }
    return {timed: median(values) for timed, values in found.items() if values}


def lag_shares(trial: TrialData, chunks: Chunks) -> dict[Timed, float]:
    """The client's P99 lag over each of the spans."""
    lag = trial.record.watch.lag_p99_s
    return {} if lag is None else {timed: lag / span for timed, span in spans_s(trial, chunks).items() if span > 0}


def why_not_judged(trial: TrialData, lags: Mapping[Timed, float]) -> dict[Timed, str]:
    """Why a verdict must not lean on figures of the trial, by what they time; empty when it may lean on all.

    Too few requests in flight change the load itself, so nothing is judged. A lag blurs single stamps: it takes the
    figures whose span it is a large part of, and leaves those over which it cannot add up.
    """
    in_flight = trial.record.watch.in_flight_share
    if in_flight is not None and in_flight < IN_FLIGHT:
        return dict.fromkeys(SPANS, f"the client kept {percent(in_flight)} of the asked concurrency in flight")
    return {
        timed: f"the client's P99 lag is {percent(share)} of {SPANS[timed]}"
        for timed, share in lags.items()
        if share > LAG_SHARE
    }
