"""Claims and comparisons of runs as Markdown tables. Knows how they are written, not how they were judged."""

from collections.abc import Sequence

import msgspec

from kit.analysis.metrics import BY_TAG
from kit.analysis.words import users_text
from kit.claims.against import Compared, Difference
from kit.claims.judge import Judged, Place
from kit.claims.verify import VerifyReport
from kit.scenario import Claim
from kit.tables import NOT_AVAILABLE, interval, number, table

MOST_PLACES = 6
"""A claim on every load names so many places at the most; the rest is in the tables of measurements."""


def claims(judged: Sequence[Judged]) -> str:
    """What was published, what was measured, and the verdict on each."""
    rows = (
        [j.claim.text, _published(j.claim), _measured(j), f"**{j.outcome}**", j.reason]
        for j in judged
    )  # fmt: skip
    return table(["claim", "published", "measured here", "verdict", "why"], rows)


def differences(found: Sequence[Difference]) -> str:
    """In what the two runs were made differently."""
    rows = ([d.what, d.published or NOT_AVAILABLE, d.here or NOT_AVAILABLE] for d in found)
    return table(["", "published", "here"], rows)


def compared(found: Sequence[Compared]) -> str:
    """Each number of both runs and how far it moved."""
    rows = (
        [
            c.kind, _heading(c.metric), c.arm, c.dataset, c.concurrency, written(c.published), written(c.here),
            number(c.shift, 3), interval(c.low, c.high, 3), f"{100 * c.tolerance:.1f} %", f"**{c.outcome}**", c.reason,
        ]
        for c in found
    )  # fmt: skip
    columns = ["kind", "metric", "arm", "prompts", "users", "published", "here", "here / published", "95 % interval"]
    return table([*columns, "tolerance", "verdict", "why"], rows)


def as_json(found: VerifyReport) -> str:
    """The whole report as JSON."""
    return msgspec.json.format(msgspec.json.encode(found).decode(), indent=1)


def written(value: float | None) -> str:
    """Four significant digits, whole numbers whole."""
    if value is None:
        return NOT_AVAILABLE
    if value == int(value):
        return number(value, 0)
    return number(value, max(0, 3 - len(str(int(abs(value)))) + (abs(value) < 1)))


def _heading(tag: str) -> str:
    return BY_TAG[tag].heading if tag in BY_TAG else tag.replace("_", " ")


def _published(claim: Claim) -> str:
    if claim.value is not None:
        return written(claim.value)
    if claim.low is not None or claim.high is not None:
        return f"{written(claim.low)} to {written(claim.high)}"
    return claim.relation or NOT_AVAILABLE


def _measured(judged: Judged) -> str:
    places = [_place(p) for p in judged.places[:MOST_PLACES]]
    more = len(judged.places) - len(places)
    return "; ".join(places + ([f"and {more} more"] if more else [])) or NOT_AVAILABLE


def _place(place: Place) -> str:
    found = place.found
    where = f"{users_text(found.concurrency)}: " if found.concurrency else ""
    exact = found.low == found.high  # what a server or scenario states has no interval
    bounds = "" if exact else f" ({interval(found.low, found.high)})"
    return f"{where}{written(found.value)}{bounds}"
