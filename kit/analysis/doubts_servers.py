"""Doubts about servers, cards, image and noise: what was said at start, what the sampler saw, what A B A shows."""

from collections.abc import Iterable
from math import log

from kit.analysis import gpu, metrics
from kit.analysis.doubt import Case, Check, Doubt, Severity, loads
from kit.analysis.judge import MOST_SEEDS
from kit.analysis.ratios import CLASSES
from kit.analysis.sheet import Entry
from kit.analysis.words import users_text
from kit.measurements import LockRecord

DRIFT = 0.03
FAULTS: dict[gpu.Kind, tuple[str, Severity]] = {
    "no-lock": ("Run as root or with persistence mode on, or set [gpu] lock = \"off\" and read ratios only.", "note"),
    "lock-not-held": ("The card could not hold the clock: lock it lower.", "warning"),
    "power-throttled": ("Lock the clock lower, or raise the power limit.", "warning"),
    "thermal-throttled": ("Cool the card, lock the clock lower, and repeat.", "warning"),
    "hw-slowdown": ("The card slowed itself down: look at power supply and cooling, and repeat.", "warning"),
    "foreign-process": ("Something else used the card: free it and repeat.", "severe"),
    "card-failed": ("Look at the driver's log; the trial is not to be used.", "severe"),
}  # fmt: skip


def version(case: Case) -> Iterable[Doubt]:
    """Servers whose log format this kit does not know."""
    for c in case.conditions:
        if c.unknown_version:
            yield Doubt(
                tag="unknown-version", subject=c.arm,
                text=f"SGLang {c.version or 'of unknown version'} is none that this kit knows the log of", number=None,
                limit=None, severity="warning",
                advice="Pool and limits were read by the stable line; check them in server.log.",
            )  # fmt: skip


def mismatches(case: Case) -> Iterable[Doubt]:
    """Facts on which log and /server_info, or the starts of one arm, disagree."""
    for c in case.conditions:
        for text in c.mismatches:
            yield Doubt(
                tag="log-info-mismatch", subject=c.arm, text=f"log and /server_info disagree: {text}", number=None,
                limit=None, advice="Read server.log; one of the two is not what ran.", severity="warning",
            )  # fmt: skip
        for text in c.differs:
            yield Doubt(
                tag="starts-differ", subject=c.arm, text=f"starts of this arm differ: {text}", number=None, limit=None,
                advice="Its trials were not measured under one condition; start a new run.", severity="warning",
            )  # fmt: skip


def beyond_cap(case: Case) -> Iterable[Doubt]:
    """A sweep that asks for more users than the arm runs at a time."""
    most = max(case.scenario.sweep.concurrency)
    for c in case.conditions:
        if c.max_running_requests is not None and most > c.max_running_requests:
            how = "set by the server when speculation was turned on" if c.cap_warning else f"{c.cap} value"
            yield Doubt(
                tag="beyond-cap", subject=c.arm,
                text=f"the sweep goes to {users_text(most)}, and {c.max_running_requests} requests run at a time "
                f"({how})",
                number=float(most), limit=float(c.max_running_requests), severity="note",
                advice="Beyond the cap, first tokens wait for a slot: set --max-running-requests yourself.",
            )  # fmt: skip


def image(case: Case) -> Iterable[Doubt]:
    """A container image that may be another one tomorrow."""
    if case.m.run.unpinned:
        yield Doubt(
            tag="unpinned-image", subject="image", text="the image was taken by its tag, not by its digest",
            number=None, limit=None, advice="Pin it: repository:tag@sha256:digest.", severity="warning",
        )  # fmt: skip


def drift(case: Case) -> Iterable[Doubt]:
    """Judged metrics of the plain server that moved between first and last run."""
    for n in case.noise:
        if n.metric in CLASSES and abs(log(n.drift)) > log(1 + DRIFT):
            yield Doubt(
                tag="drift", subject=metrics.BY_TAG[n.metric].heading,
                text=f"the last plain server gave {n.drift:.3f} times the first", number=abs(n.drift - 1),
                limit=DRIFT, severity="warning",
                advice="The interval carries it; a locked clock, a quiet machine or a further block makes it smaller.",
            )  # fmt: skip


def no_last_plain(case: Case) -> Iterable[Doubt]:
    """Comparisons without the second plain run."""
    arms = sorted({r.arm for r in case.ratios if r.note and r.note.startswith("no second plain")})
    if arms:
        yield Doubt(
            tag="no-last-plain", subject=", ".join(arms), text="the plain server did not run again last",
            number=None, limit=None, advice="Without it no difference can be claimed: let the run end.",
            severity="severe",
        )  # fmt: skip


def undecided(case: Case) -> Iterable[Doubt]:
    """Points that more seeds are likely to decide, one doubt for each arm, data set and judged metric."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for r in case.ratios:
        if r.metric in CLASSES and r.state == "undecided" and r.more_seeds:
            groups.setdefault((r.arm, r.dataset, r.metric), []).append(r.more_seeds)
    for (arm, dataset, metric), more in groups.items():
        yield Doubt(
            tag="undecided", subject=f"{arm} on {dataset}, {metrics.BY_TAG[metric].heading}",
            text=_more_seeds(more), number=float(min(more)), limit=0.0, severity="note",
            advice="Go on with `invoke run --until-decided`, or add seeds.",
        )  # fmt: skip


def _more_seeds(more: list[int]) -> str:
    """How many seeds the nearest and the farthest of some undecided loads are likely to need."""
    if len(more) == 1:
        return f"1 load is undecided; {_seeds(more[0])} likely to settle it"
    return (
        f"{len(more)} loads are undecided; {_seeds(min(more))} likely to settle the nearest, "
        f"{_about(max(more))} the farthest"
    )


def _seeds(count: int) -> str:
    return f"{_about(count)} more seed{' is' if count == 1 else 's are'}"


def _about(count: int) -> str:
    return f"{'at least' if count >= MOST_SEEDS else 'about'} {count}"


def cards(case: Case) -> Iterable[Doubt]:
    """What the sampler saw of lock, throttling and foreign processes; the worst trial of each arm and kind."""
    locks = {s.number: s.lock for s in case.m.sittings}
    found: dict[tuple[str, gpu.Kind], list[tuple[gpu.Fault, Entry]]] = {}
    for entry in case.sheet:
        lock = locks.get(entry.start.sitting, LockRecord())
        for fault in gpu.faults(entry.cards, lock) if entry.cards else []:
            found.setdefault((entry.arm, fault.kind), []).append((fault, entry))
    for (arm, kind), faults in found.items():
        worst = max((f for f, _ in faults), key=lambda f: f.number)
        advice, severity = FAULTS[kind]
        yield Doubt(
            tag=kind, subject=arm, text=f"{worst.text} ({len(faults)} trials, at {loads([e for _, e in faults])})",
            number=worst.number, limit=worst.limit, advice=advice, severity=severity,
        )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    no_last_plain, version, mismatches, image, beyond_cap, cards, drift, undecided,
)  # fmt: skip
