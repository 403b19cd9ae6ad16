"""Whether a published claim holds in a run. Knows the numbers `found` took, not how they were made.

A number holds when all of its interval lies within the published value or range, widened by the claim's tolerance; it
fails when all of it lies outside; otherwise nobody can tell. Over several loads the worst counts. "Not above" allows
the margin of 3 % under which a gain is no gain; "above" needs the whole interval above 1 and fails when all of it lies
below that margin.
A condition that a run does not meet is no failure of the source: it cannot be told. Nor can anything of a run that is
not finished.
"""

import re
from collections.abc import Sequence
from math import exp
from typing import Literal, TypeAlias

import msgspec

from kit.analysis.judge import MARGIN
from kit.analysis.words import counted, users_text
from kit.claims.found import Found, Run, take
from kit.scenario import Claim

Outcome: TypeAlias = Literal["holds", "fails", "cannot tell", "not comparable", "cited"]
Placed: TypeAlias = Literal["holds", "fails", "cannot tell"]
DECISIVE = ("model", "draft", "arms", "datasets", "server.flags", "server.env", "image")
"""Keys of a scenario that make a run another experiment; loads, seeds, ports and the like do not."""
ROUNDING = 1e-9
"""What logarithms may do to a number that is the published one exactly."""
WORST: tuple[Placed, ...] = ("fails", "cannot tell", "holds")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One place that a claim speaks of: what was found there and how it lies to the published value."""

    found: Found
    outcome: Placed
    reason: str


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and its verdict. `low` and `high` are the limits with the tolerance, None for an order.

    `local` is how the run lies to the claim when it is not judged: the local counterpart of a figure of another card.
    """

    claim: Claim
    outcome: Outcome
    reason: str
    local: Placed
    low: float | None
    high: float | None
    places: list[Place]

    @property
    def counted(self) -> bool:
        """Whether the outcome bears on the exit code."""
        return self.outcome in WORST


def judge(run: Run) -> list[Judged]:
    """Every claim of the run's scenario, in its order. Raises UnusableInput for a metric that nobody knows."""
    return [judge_one(claim, run) for claim in run.scenario.claims]


def judge_one(claim: Claim, run: Run) -> Judged:
    """One claim against one run."""
    places = [_place(claim, found) for found in take(claim, run)]
    local = next(w for w in WORST if any(p.outcome == w for p in places))
    why_not = "quoted from another source" if claim.kind == "cited" else not_comparable(claim, run)
    outcome: Outcome = local
    if why_not:
        outcome = "cited" if claim.kind == "cited" else "not comparable"
    low, high = limits(claim)
    reason = why_not or _reason(places, local)
    if not why_not and not run.records.finished:
        outcome, reason = "cannot tell", unfinished(run)
    return Judged(claim=claim, outcome=outcome, reason=reason, local=local, low=low, high=high, places=places)


def unfinished(run: Run) -> str:
    """What is said of a run that is not finished, with how much of it is measured."""
    return f"the run is not finished: {run.records.measured} of {counted(run.records.planned, 'trial')} measured"


def limits(claim: Claim) -> tuple[float | None, float | None]:
    """The published value or range, widened by the tolerance; an order has its margin, open on one side."""
    if claim.relation is not None:
        margin = exp(MARGIN)
        return {
            "above": (1.0, None),
            "below": (None, 1.0),
            "not above": (None, margin),
            "not below": (1 / margin, None),
        }[claim.relation]
    low = claim.low if claim.low is not None else claim.value
    high = claim.high if claim.high is not None else claim.value
    assert low is not None and high is not None
    return low * (1 - claim.tolerance), high * (1 + claim.tolerance)


def _place(claim: Claim, found: Found) -> Place:
    if found.note or found.value is None or found.low is None or found.high is None:
        return Place(found=found, outcome="cannot tell", reason=found.note or "has no interval")
    outcome, reason = _lies(claim, found.low, found.high)
    if outcome == "fails" and claim.kind == "condition":
        return Place(found=found, outcome="cannot tell", reason="this run was made under another condition")
    return Place(found=found, outcome=outcome, reason=reason)


def _lies(claim: Claim, low: float, high: float) -> tuple[Placed, str]:
    bottom, top = limits(claim)
    if (bottom is None or low >= bottom * (1 - ROUNDING)) and (top is None or high <= top * (1 + ROUNDING)):
        return "holds", "inside the limits"
    fail_below, fail_above = _failing(claim, bottom, top)
    if (fail_below is not None and high < fail_below) or (fail_above is not None and low > fail_above):
        return "fails", "outside the limits"
    return "cannot tell", "the interval reaches over a limit"


def _failing(claim: Claim, bottom: float | None, top: float | None) -> tuple[float | None, float | None]:
    """Where a number fails outright: beyond the limits; a strict order also within the margin."""
    if claim.relation == "above":
        return exp(MARGIN), None
    if claim.relation == "below":
        return None, exp(-MARGIN)
    return bottom, top


def _reason(places: Sequence[Place], worst: Placed) -> str:
    """Where the outcome comes from: the first place that decides it, or all of them."""
    if worst == "holds":
        return "inside the limits" if len(places) == 1 else f"inside the limits at all {len(places)} places"
    place = next(p for p in places if p.outcome == worst)
    at = [f"on {place.found.dataset}"] if place.found.dataset else []
    if place.found.concurrency is not None:
        at.append(f"at {users_text(place.found.concurrency)}")
    where = " ".join(at)
    return place.reason if place.found.note or not where else f"{place.reason} {where}"


# ---- what may be compared -------------------------------------------------------------------------------------------


def not_comparable(claim: Claim, run: Run) -> str | None:
    """Why a claim is shown and not judged in this run; None when it is judged."""
    if claim.card and not on_card(claim.card, cards(run)):
        measured = ", ".join(sorted(set(cards(run)))) or "no GPU"
        return f"belongs to {claim.card}, measured on {measured}"
    changed = [key for key in run.scenario.changed if key.startswith(DECISIVE)]
    if changed and claim.kind != "condition":
        return f"this run changed what was published: {', '.join(changed)}"
    if claim.forced:
        return None
    servers = [f for arm in (claim.arm, claim.against) if arm for f in run.servers(arm)]
    if claim.kind in ("ratio", "absolute", "order"):
        if any(f.load_format == "dummy" for f in servers):
            return "the weights are random here"
        if any(f.forced_accept_length is not None for f in servers):
            return "the accept length was forced here"
    if claim.kind == "pool" and any(f.max_total_tokens_asked is not None for f in servers):
        return "the pool was set by hand here"
    return None


def cards(run: Run) -> list[str]:
    """The names of the cards of every sitting, one for each that was used."""
    return [g.name or "unnamed GPU" for s in run.records.sittings for g in s.gpus]


def on_card(wanted: str, names: Sequence[str]) -> bool:
    """Whether all cards are of the wanted kind: NVIDIA L4 is no NVIDIA L40S."""
    pattern = re.compile(rf"\b{re.escape(wanted)}\b")
    return bool(names) and all(pattern.search(name) for name in names)
