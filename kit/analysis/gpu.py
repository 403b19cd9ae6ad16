"""What the cards did during a trial: was the clock held, was it throttled, what energy went into a token. Pure.

Knows nothing of NVML: it reads the samples that were recorded. Power, energy and reasons are those of whole cards.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal, TypeAlias

import msgspec

from kit.measurements import GpuSample, LockRecord

HELD_WITHIN_MHZ = 15
NOT_HELD_SHARE_LIMIT = 0.05
THROTTLED_SHARE_LIMIT = 0.01
GAP_S = 1.0  # a sample stands for the time to the next one, but for no longer than this
COVERED_SHARE = 0.95

# The bits of nvmlClocksEventReasons in nvml.h, by the names that nvidia-smi gives them.
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
IDLE = 0x001
POWER_REASONS = ("sw_power_cap", "hw_power_brake_slowdown")
THERMAL_REASONS = ("sw_thermal_slowdown", "hw_thermal_slowdown")
SLOWDOWN_REASONS = ("hw_slowdown",)

Window: TypeAlias = tuple[float, float]
Kind: TypeAlias = Literal[
    "lock-not-held", "no-lock", "power-throttled", "thermal-throttled", "hw-slowdown", "foreign-process", "card-failed"
]


class CardSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One card over one trial. Shares are 0 to 1 of loaded samples; `reasons_s` are seconds per reason that was set."""

    index: int
    samples: int
    loaded_samples: int
    held_share: float | None = None
    sm_clock_mhz: float | None = None
    reasons_s: dict[str, float] | None = None
    energy_j: float | None = None
    energy_from: Literal["counter", "power"] | None = None
    mean_power_w: float | None = None
    temperature_max_c: int | None = None
    memory_max_bytes: int | None = None
    appeared_processes: list[int] = []
    errors: list[str] = []


class GpuSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All cards over one trial: energy and power are sums, share, seconds and temperature those of the worst card.

    A field is None when a card does not report what it needs. `target_mhz` is the clock that was locked, or the one
    asked for where the kit could not lock it (somebody else may have). `sm_clock_mhz` is the lowest card's median.
    """

    duration_s: float
    target_mhz: int | None = None
    held_share: float | None = None
    sm_clock_mhz: float | None = None
    reasons_s: dict[str, float] | None = None
    energy_j: float | None = None
    joules_per_output_token: float | None = None
    mean_power_w: float | None = None
    temperature_max_c: int | None = None
    appeared_processes: list[int] = []
    errors: list[str] = []
    cards: list[CardSummary] = []


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that casts doubt on a trial: a number against the limit that it passed, both as `text` names them."""

    kind: Kind
    number: float
    limit: float
    text: str


def summarize(
    samples: Iterable[GpuSample], lock: LockRecord, window: Window, output_tokens: int | None = None
) -> GpuSummary | None:
    """The cards over `window` (start and end, seconds of CLOCK_MONOTONIC); None where no card was sampled.

    Samples from outside the window are welcome: they let energy be read at its very ends.
    """
    target = None if lock.state == "off" else lock.set_mhz or lock.asked_mhz
    cards = [_summarize_card(index, own, target, window) for index, own in _by_card(samples).items()]
    if not cards:
        return None
    energy_j = _all(cards, lambda c: c.energy_j, sum)
    return GpuSummary(
        duration_s=window[1] - window[0],
        target_mhz=target,
        held_share=_all(cards, lambda c: c.held_share, min),
        sm_clock_mhz=_all(cards, lambda c: c.sm_clock_mhz, min),
        reasons_s=_longest(cards),
        energy_j=energy_j,
        joules_per_output_token=energy_j / output_tokens if energy_j is not None and output_tokens else None,
        mean_power_w=_all(cards, lambda c: c.mean_power_w, sum),
        temperature_max_c=_highest(c.temperature_max_c for c in cards),
        appeared_processes=sorted({pid for c in cards for pid in c.appeared_processes}),
        errors=[f"card {c.index}: {error}" for c in cards for error in c.errors],
        cards=cards,
    )


def faults(summary: GpuSummary, lock: LockRecord) -> list[Fault]:
    """What a reader has to know of the cards of one trial; an idle clock is none of it."""
    found = []
    if lock.state in ("refused", "unsupported"):
        found.append(Fault(kind="no-lock", number=0, limit=1, text=f"the clock lock was {lock.state}: {lock.detail}"))
    if lock.state == "locked" and summary.held_share is not None:
        lost = 1 - summary.held_share
        text = f"share of loaded samples not within {HELD_WITHIN_MHZ} MHz of the lock at {summary.target_mhz} MHz"
        found += _over("lock-not-held", lost, NOT_HELD_SHARE_LIMIT, text)
    found += _throttled("power-throttled", summary, POWER_REASONS)
    found += _throttled("thermal-throttled", summary, THERMAL_REASONS)
    found += _throttled("hw-slowdown", summary, SLOWDOWN_REASONS)
    if summary.appeared_processes:
        pids = ", ".join(map(str, summary.appeared_processes))
        count = len(summary.appeared_processes)
        found += _over("foreign-process", count, 0, f"processes that came onto the card during the trial: {pids}")
    return found + _over("card-failed", len(summary.errors), 0, f"card in trouble: {'; '.join(summary.errors)}")


def _throttled(kind: Kind, summary: GpuSummary, reasons: Sequence[str]) -> list[Fault]:
    if not summary.reasons_s or summary.duration_s <= 0:
        return []
    held_back = {name: summary.reasons_s[name] for name in reasons if name in summary.reasons_s}
    share = max(held_back.values(), default=0.0) / summary.duration_s
    return _over(kind, share, THROTTLED_SHARE_LIMIT, f"share of the trial with {' or '.join(held_back)}")


def _over(kind: Kind, number: float, limit: float, text: str) -> list[Fault]:
    return [Fault(kind=kind, number=number, limit=limit, text=text)] if number > limit else []


# ---- one card -------------------------------------------------------------------------------------------------------


def _by_card(samples: Iterable[GpuSample]) -> dict[int, list[GpuSample]]:
    cards: dict[int, list[GpuSample]] = {}
    for sample in sorted(samples, key=lambda s: (s.index, s.monotonic_s)):
        cards.setdefault(sample.index, []).append(sample)
    return cards


def _summarize_card(index: int, samples: list[GpuSample], target_mhz: int | None, window: Window) -> CardSummary:
    inside = [s for s in samples if window[0] <= s.monotonic_s <= window[1]]
    read = [s for s in samples if s.error is None]
    loaded = [s.sm_clock_mhz for s in inside if s.error is None and is_loaded(s) and s.sm_clock_mhz is not None]
    energy_j, energy_from = _energy_j(read, window)
    return CardSummary(
        index=index,
        samples=sum(s.error is None for s in inside),
        loaded_samples=len(loaded),
        held_share=_held_share(loaded, target_mhz),
        sm_clock_mhz=median(loaded) if loaded else None,
        reasons_s=_reasons_s(read, window),
        energy_j=energy_j,
        energy_from=energy_from,
        mean_power_w=_mean_power_w(read, window),
        temperature_max_c=_highest(s.temperature_c for s in inside),
        memory_max_bytes=_highest(s.memory_used_bytes for s in inside),
        appeared_processes=_appeared(inside),
        errors=list(dict.fromkeys(s.error for s in inside if s.error)),
    )


def is_loaded(sample: GpuSample) -> bool:
    """False only when the card says that it idles: an idle clock falls and is no fault.

    A card that reports neither reasons nor utilisation counts as loaded, since the trial is running on it.
    """
    says_idle = sample.reasons is not None and bool(sample.reasons & IDLE)
    return not says_idle and sample.utilisation != 0


def _held_share(clocks_mhz: list[int], target_mhz: int | None) -> float | None:
    if target_mhz is None or not clocks_mhz:
        return None
    return sum(abs(clock - target_mhz) <= HELD_WITHIN_MHZ for clock in clocks_mhz) / len(clocks_mhz)


def reason_names(reasons: int) -> list[str]:
    """The names of the bits that are set; one that this kit does not know is called by its number."""
    bits = (1 << n for n in range(reasons.bit_length()) if reasons >> n & 1)
    return [REASONS.get(bit, f"reason_{bit:#x}") for bit in bits]


def _spans(samples: list[GpuSample], window: Window) -> list[tuple[GpuSample, GpuSample, float]]:
    """Neighbouring samples and how long both lie within the window; a gap in the sampling is no span."""
    spans = []
    for left, right in pairwise(samples):
        overlap_s = min(right.monotonic_s, window[1]) - max(left.monotonic_s, window[0])
        if overlap_s > 0 and right.monotonic_s - left.monotonic_s <= GAP_S:
            spans.append((left, right, overlap_s))
    return spans


def _reasons_s(samples: list[GpuSample], window: Window) -> dict[str, float] | None:
    """Seconds per reason, each sample standing for the time to the next; None when the card reports no reasons."""
    spans = [(left.reasons, seconds) for left, _, seconds in _spans(samples, window) if left.reasons is not None]
    if not spans:
        return None
    total: dict[str, float] = {}
    for reasons, seconds in spans:
        for name in reason_names(reasons):
            total[name] = total.get(name, 0.0) + seconds
    return total


def _mean_power_w(samples: list[GpuSample], window: Window) -> float | None:
    """The trapezoidal mean over the window; None when samples cover too little of it."""
    spans = [
        ((left.power_w + right.power_w) / 2, seconds)
        for left, right, seconds in _spans(samples, window)
        if left.power_w is not None and right.power_w is not None
    ]
    covered_s = sum(seconds for _, seconds in spans)
    if covered_s <= 0 or covered_s < COVERED_SHARE * (window[1] - window[0]):
        return None
    return sum(power_w * seconds for power_w, seconds in spans) / covered_s


def _energy_j(samples: list[GpuSample], window: Window) -> tuple[float | None, Literal["counter", "power"] | None]:
    """From the card's counter where it has one, else from its power."""
    counted = _counted_energy_j(samples, window)
    if counted is not None:
        return counted, "counter"
    power_w = _mean_power_w(samples, window)
    return (None, None) if power_w is None else (power_w * (window[1] - window[0]), "power")


def _counted_energy_j(samples: list[GpuSample], window: Window) -> float | None:
    """The counter's growth over the window, interpolated at its ends; None when it went back or covers too little."""
    points = [(s.monotonic_s, s.energy_j) for s in samples if s.energy_j is not None]
    if len(points) < 2 or any(later[1] < earlier[1] for earlier, later in pairwise(points)):
        return None
    start_s, end_s = max(window[0], points[0][0]), min(window[1], points[-1][0])
    duration_s = window[1] - window[0]
    if end_s <= start_s or end_s - start_s < COVERED_SHARE * duration_s:
        return None
    return (_at(points, end_s) - _at(points, start_s)) * duration_s / (end_s - start_s)


def _at(points: list[tuple[float, float]], at_s: float) -> float:
    """Linear between points; `at_s` lies between the first and the last."""
    for (left_s, left), (right_s, right) in pairwise(points):
        if left_s <= at_s <= right_s:
            share = (at_s - left_s) / (right_s - left_s) if right_s > left_s else 0.0
            return left + share * (right - left)
    return points[-1][1]


def _appeared(inside: list[GpuSample]) -> list[int]:
    """Processes seen later in the trial but not when it began: the server's own are there from the start."""
    lists = [set(s.processes) for s in inside if s.processes is not None]
    return sorted(set().union(*lists[1:]) - lists[0]) if lists else []


# ---- over cards -----------------------------------------------------------------------------------------------------


def _all(
    cards: list[CardSummary], field: Callable[[CardSummary], float | None], join: Callable[[list[float]], float]
) -> float | None:
    """Joins one field over the cards; None as soon as one card lacks it, since a sum over the others would mislead."""
    values = [value for value in map(field, cards) if value is not None]
    return join(values) if len(values) == len(cards) else None


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _longest(cards: list[CardSummary]) -> dict[str, float] | None:
    """Per reason the seconds of the card that had it longest."""
    known = [card.reasons_s for card in cards if card.reasons_s is not None]
    if not known:
        return None
    return {name: max(r.get(name, 0.0) for r in known) for name in sorted({n for r in known for n in r})}
