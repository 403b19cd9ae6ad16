"""Doubts about drafts: counters that are missing or disagree, and drafts that depend on what else ran."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from kit.analysis.doubt import Case, Check, Doubt
from kit.analysis.metrics import succeeded
from kit.analysis.sheet import Entry
from kit.analysis.table import load_text
from kit.measurements import RequestRecord

COUNTS_OFF = 0.05
MOVED = 0.05
"""A method that drafts each request from itself alone takes the same steps to the same answer, whenever it comes."""
FEWEST_REPEATS = 10


class _Repeats(msgspec.Struct):
    """Requests of a load that the arm had answered before, and alike: their tokens, and the verify steps both times."""

    before: Entry
    now: Entry
    requests: int = 0
    tokens: int = 0
    steps_before: int = 0
    steps_now: int = 0

    @property
    def lengths(self) -> tuple[float, float]:
        """Accept length the first time and now."""
        return self.tokens / self.steps_before, self.tokens / self.steps_now


def accept_counters(case: Case) -> Iterable[Doubt]:
    """Speculative arms without counters, and the server's own accept length when it says something else."""
    for condition in (c for c in case.conditions if c.algorithm):
        own = [e for e in case.sheet if e.arm == condition.arm]
        if own and not any("accept_length" in e.values for e in own):
            yield Doubt(
                tag="no-accept-length", subject=condition.arm, text="the server reports no verify steps per request",
                number=None, limit=None, severity="note",
                advice="Its accept length is not available, which is not an accept length of 1.",
            )  # fmt: skip
        pairs = [
            (e.values["accept_length"], e.values["accept_length_server"])
            for e in own
            if "accept_length" in e.values and "accept_length_server" in e.values
        ]
        off = fmean(s for _, s in pairs) / fmean(a for a, _ in pairs) - 1 if pairs else 0.0
        if abs(off) > COUNTS_OFF:
            yield Doubt(
                tag="accept-length-differs", subject=condition.arm,
                text=f"avg_spec_accept_length is {100 * off:+.0f} % off what the requests' own counters give",
                number=abs(off), limit=COUNTS_OFF, severity="note",
                advice="Trust the requests' counters: the server's misses the tail of short runs, counts drafts past "
                "the end of answers, and may be another rank's.",
            )  # fmt: skip


def moved_drafts(case: Case) -> Iterable[Doubt]:
    """The same requests with the same answers at another accept length: the worst load of each arm and data set."""
    free = [c.arm for c in case.conditions if c.algorithm and c.forced_accept_length is None]
    for arm in free:
        for dataset in case.scenario.datasets:
            found = _repeats([e for e in case.sheet if (e.arm, e.point.dataset) == (arm, dataset)])
            moved = [x for x in found if x.requests >= FEWEST_REPEATS and _moved(x) > MOVED]
            if moved:
                yield _moved_doubt(max(moved, key=_moved), f"{arm} on {dataset}")


def _moved_doubt(x: _Repeats, subject: str) -> Doubt:
    before, now = x.lengths
    again = "again " if x.before.point == x.now.point else ""
    return Doubt(
        tag="drafts-moved", subject=subject, number=_moved(x), limit=MOVED, severity="warning",
        text=f"{x.requests} requests with the same answers gave {before:.2f} tokens per step first (at "
        f"{load_text(x.before.point)}) and {now:.2f} later ({again}at {load_text(x.now.point)}): drafts depend on "
        "what ran before or beside them",
        advice="Repeat the same order after a flush, on a fresh start, and compare; read this arm's accept length as "
        "one of this order of trials.",
    )  # fmt: skip


def _moved(x: _Repeats) -> float:
    return abs(x.lengths[1] / x.lengths[0] - 1)


def _repeats(entries: Sequence[Entry]) -> list[_Repeats]:
    """Each load's requests beside their first run, seeds together; loads that were measured again stand apart."""
    first: dict[tuple[object, ...], tuple[Entry, RequestRecord]] = {}
    found: dict[tuple[object, ...], _Repeats] = {}
    for entry in sorted(entries, key=lambda e: e.trial.record.started_unix_s):
        for r in succeeded(entry.trial):
            steps = r.spec.verify_steps if r.spec else None
            if not steps or not r.completion_tokens or r.output_sha256 is None or r.retractions:
                continue
            key = (entry.trial.record.workload_sha256, r.index, r.output_sha256, r.completion_tokens)
            before, earlier = first.setdefault(key, (entry, r))
            if before is not entry and earlier.spec:
                pair = found.setdefault((before.point, entry.point, entry.start.aba), _Repeats(before, entry))
                pair.requests += 1
                pair.tokens += r.completion_tokens - 1
                pair.steps_before += earlier.spec.verify_steps or 0
                pair.steps_now += steps
    return list(found.values())


CHECKS: tuple[Check, ...] = (accept_counters, moved_drafts)
