"""What is said of the cards of a trial, from samples made by hand."""

from typing import Any

import pytest

from kit.analysis import gpu
from kit.measurements import GpuSample, LockRecord

LOCKED = LockRecord(asked="required", asked_mhz=900, set_mhz=900, state="locked")
REFUSED = LockRecord(asked="preferred", asked_mhz=900, state="refused", detail="Insufficient Permissions")
WINDOW = (100.0, 110.0)


def trace(index: int = 0, start_s: float = 99.0, end_s: float = 111.0, **fields: Any) -> list[GpuSample]:
    """Ten samples a second; a field may be a function of the time."""
    times = [start_s + n / 10 for n in range(round((end_s - start_s) * 10) + 1)]
    defaults = {"sm_clock_mhz": 900, "reasons": 0, "utilisation": 1.0, "power_w": 70.0, "temperature_c": 60}
    made = []
    for at_s in times:
        values = {k: v(at_s) if callable(v) else v for k, v in (defaults | fields).items()}
        made.append(GpuSample(monotonic_s=at_s, index=index, **values))
    return made


def summarize(samples: list[GpuSample], lock: LockRecord = LOCKED, tokens: int | None = 1000) -> gpu.GpuSummary:
    summary = gpu.summarize(samples, lock, WINDOW, tokens)
    assert summary is not None
    return summary


def test_no_samples_is_no_summary() -> None:
    assert gpu.summarize([], LOCKED, WINDOW, 1000) is None


def test_a_held_clock_has_no_faults() -> None:
    summary = summarize(trace(sm_clock_mhz=lambda t: 885 if int(t * 10) % 2 else 915))
    assert summary.held_share == 1.0
    assert (summary.target_mhz, summary.duration_s, summary.temperature_max_c) == (900, 10.0, 60)
    assert gpu.faults(summary, LOCKED) == []


def test_a_drifting_clock_is_a_fault_with_its_share() -> None:
    summary = summarize(trace(sm_clock_mhz=lambda t: 900 if t < 109 else 780))
    (fault,) = gpu.faults(summary, LOCKED)
    assert (fault.kind, fault.limit) == ("lock-not-held", 0.05)
    assert fault.number == pytest.approx(0.1, abs=0.01)
    assert fault.text == "share of loaded samples not within 15 MHz of the lock at 900 MHz"


def test_case_70_an_idle_clock_is_no_fault() -> None:
    def waits(at_s: float) -> bool:
        return 103 <= at_s < 108

    by_reason = trace(sm_clock_mhz=lambda t: 120 if waits(t) else 900, reasons=lambda t: 1 if waits(t) else 0)
    by_load = trace(
        sm_clock_mhz=lambda t: 120 if waits(t) else 900, reasons=None, utilisation=lambda t: 0.0 if waits(t) else 1.0
    )
    for samples in (by_reason, by_load):
        summary = summarize(samples)
        assert summary.held_share == 1.0
        assert gpu.faults(summary, LOCKED) == []


def test_case_66_no_loaded_sample_is_not_available_and_not_held() -> None:
    summary = summarize(trace(sm_clock_mhz=120, reasons=1))
    assert summary.held_share is None
    assert summary.sm_clock_mhz is None


def test_case_70_seconds_per_throttle_reason() -> None:
    summary = summarize(trace(reasons=lambda t: 0x24 if t >= 105.95 else 0x4 if t >= 103.95 else 0))
    assert summary.reasons_s is not None
    assert summary.reasons_s["sw_power_cap"] == pytest.approx(6.0)
    assert summary.reasons_s["sw_thermal_slowdown"] == pytest.approx(4.0)
    kinds = {fault.kind: fault.number for fault in gpu.faults(summary, LOCKED)}
    assert kinds == {"power-throttled": pytest.approx(0.6), "thermal-throttled": pytest.approx(0.4)}


def test_reasons_by_name_and_an_unknown_bit_by_number() -> None:
    assert gpu.reason_names(0x0C1) == ["gpu_idle", "hw_thermal_slowdown", "hw_power_brake_slowdown"]
    assert gpu.reason_names(0x400) == ["reason_0x400"]
    assert gpu.reason_names(0) == []


def test_case_67_a_refused_lock_is_a_fault_and_the_clock_is_still_compared() -> None:
    summary = summarize(trace(), REFUSED)
    assert summary.held_share == 1.0
    (fault,) = gpu.faults(summary, REFUSED)
    assert (fault.kind, fault.text) == ("no-lock", "the clock lock was refused: Insufficient Permissions")
    assert summarize(trace(), LockRecord()).held_share is None


def test_joules_per_token_come_from_the_counter() -> None:
    summary = summarize(trace(energy_j=lambda t: 5000 + 80 * (t - 99), power_w=70.0))
    assert summary.energy_j == pytest.approx(800.0)
    assert summary.joules_per_output_token == pytest.approx(0.8)
    assert summary.cards[0].energy_from == "counter"
    assert summary.mean_power_w == pytest.approx(70.0)


def test_without_a_counter_energy_is_power_times_time() -> None:
    summary = summarize(trace(power_w=lambda t: 60 if t < 105 else 80))
    assert summary.energy_j == pytest.approx(700.0, abs=2)
    assert summary.cards[0].energy_from == "power"


def test_a_counter_that_goes_back_is_not_used() -> None:
    summary = summarize(trace(energy_j=lambda t: 5000 + 80 * t if t < 105 else 10.0))
    assert summary.cards[0].energy_from == "power"


def test_energy_is_not_available_when_samples_miss_a_part_of_the_trial() -> None:
    for samples in (trace(end_s=105), trace(end_s=103) + trace(start_s=106)):
        assert summarize(samples).energy_j is None
        assert summarize(samples).mean_power_w is None
    assert summarize(trace(energy_j=lambda t: 80 * t, start_s=104)).energy_j is None


def test_no_tokens_is_no_energy_per_token() -> None:
    for tokens in (None, 0):
        assert summarize(trace(), tokens=tokens).joules_per_output_token is None


def test_two_cards_sum_energy_and_show_the_worse_clock() -> None:
    samples = trace(0) + trace(1, sm_clock_mhz=600, temperature_c=83, power_w=30.0, reasons=4)
    summary = summarize(samples)
    assert (summary.held_share, summary.sm_clock_mhz, summary.temperature_max_c) == (0.0, 600, 83)
    assert summary.mean_power_w == pytest.approx(100.0)
    assert summary.energy_j == pytest.approx(1000.0)
    assert summary.reasons_s == {"sw_power_cap": pytest.approx(10.0)}
    assert [card.held_share for card in summary.cards] == [1.0, 0.0]


def test_energy_of_two_cards_is_not_available_when_one_is_silent() -> None:
    summary = summarize(trace(0) + trace(1, power_w=None))
    assert summary.energy_j is None
    assert summary.cards[0].energy_j == pytest.approx(700.0)


def test_case_70_an_unknown_error_in_the_trial_is_a_fault() -> None:
    broken = [GpuSample(monotonic_s=105.05, index=0, error="Unknown Error")] * 2
    summary = summarize(trace() + broken)
    assert summary.errors == ["card 0: Unknown Error"]
    (fault,) = gpu.faults(summary, LOCKED)
    assert (fault.kind, fault.number) == ("card-failed", 1)
    late = [GpuSample(monotonic_s=115.0, index=0, error="Unknown Error")]
    assert summarize(trace() + late).errors == []


def test_a_process_that_comes_onto_the_card_is_a_fault() -> None:
    summary = summarize(trace(processes=lambda t: None if round(t * 10) % 10 else [50] if t < 104 else [50, 77]))
    assert summary.appeared_processes == [77]
    (fault,) = gpu.faults(summary, LOCKED)
    assert (fault.kind, fault.text) == ("foreign-process", "processes that came onto the card during the trial: 77")


def test_a_card_that_reports_nothing_gives_none_everywhere() -> None:
    nothing = {"sm_clock_mhz": None, "reasons": None, "utilisation": None, "power_w": None, "temperature_c": None}
    summary = summarize(trace(**nothing))
    values = [getattr(summary, name) for name in ("held_share", "reasons_s", "energy_j", "mean_power_w")]
    assert values == [None] * 4
    assert summary.temperature_max_c is None
    assert gpu.faults(summary, LOCKED) == []
