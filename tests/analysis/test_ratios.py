"""From measurements with a known truth to ratios: pairing, blocks, looks and what is shown but not judged."""

from collections import defaultdict
from math import log
from statistics import fmean

import msgspec
import pytest

from kit.analysis import noise, sheet
from kit.analysis.doubt import Doubt
from kit.analysis.judge import judge
from kit.analysis.metrics import BY_TAG, METRICS
from kit.analysis.pairing import estimate_all
from kit.analysis.ratios import Ratio
from kit.analysis.summary import Summary, undecided
from kit.measurements import ClientWatch, Measurements, TrialData
from kit.plan import Point
from tests.analysis.shared import summarise
from tests.synthetic import ArmTruth, Truth, build, edited, with_record

OUTPUT = "output_throughput_tok_s"


def ratio(summary: Summary, metric: str = OUTPUT, concurrency: int = 8, arm: str = "eagle3") -> Ratio:
    return next(r for r in summary.ratios if (r.metric, r.point.concurrency, r.arm) == (metric, concurrency, arm))


def without(m: Measurements, **fields: object) -> Measurements:
    """The measurements without the trials whose record has all of these fields."""

    def keep(t: TrialData) -> TrialData | None:
        return None if all(getattr(t.record, k) == v for k, v in fields.items()) else t

    return edited(m, keep)


def test_a_known_ratio_is_found_in_both_directions() -> None:
    found = summarise(build(Truth(noise=0.005)))
    tpot = ratio(found, "tpot_p50_ms")
    assert tpot.ratio == pytest.approx(1 / 1.5, rel=0.02)
    assert tpot.gain == pytest.approx(1 / tpot.ratio)
    assert tpot.low is not None and tpot.high is not None and tpot.low < 1 / 1.5 < tpot.high < 1
    assert (tpot.state, tpot.seeds, tpot.blocks) == ("faster", 3, 1)
    assert ratio(found).ratio > 1.3


def test_a_steady_drift_cancels() -> None:
    found = ratio(summarise(build(Truth(drift=0.05))), "tpot_p50_ms")
    assert found.ratio == pytest.approx(1 / 1.5, rel=1e-6)


def test_a_drift_widens_the_interval_and_is_told() -> None:
    steady, drifting = (summarise(build(Truth(drift=d, noise=0.002))) for d in (0.0, 0.03))
    for s in (steady, drifting):
        assert ratio(s).seeds == 3
    assert (ratio(drifting).high or 0) / (ratio(drifting).low or 1) > (ratio(steady).high or 0) / (
        ratio(steady).low or 1
    )
    floor = next(n for n in drifting.noise if n.metric == "tpot_p50_ms")
    assert floor.drift == pytest.approx(1.06, abs=0.01)
    assert "drift" in {d.tag for d in drifting.doubts}


def test_the_seed_interval_is_the_t_interval_over_three_seeds() -> None:
    found = ratio(summarise(build(Truth(noise=0.02))))
    logs = [log(s.ratio) for s in found.per_seed]
    mean = sum(logs) / 3
    error = (sum((x - mean) ** 2 for x in logs) / 2 / 3) ** 0.5
    assert found.seed_high is not None and log(found.seed_high) == pytest.approx(mean + 4.3027 * error, rel=1e-4)
    assert log(found.ratio) == pytest.approx(mean)


def test_case_75_restart_noise_is_in_the_interval_though_seeds_do_not_see_it() -> None:
    """All three seeds agree to the last digit, and still two starts of the plain server differ."""
    found = ratio(summarise(build(Truth(restart=0.02))), "tpot_p50_ms")
    assert found.seed_low == pytest.approx(found.seed_high)
    assert found.low is not None and found.high is not None and found.high / found.low > 1.02


def test_without_the_last_plain_run_nothing_is_judged() -> None:
    m = without(build(Truth(noise=0.01)), leg="b1-3-plain")
    found = summarise(m)
    assert ratio(found).ratio > 1.2
    assert (ratio(found).state, ratio(found).low, ratio(found).more_seeds) == ("undecided", None, None)
    assert "no second plain run" in (ratio(found).note or "")
    assert "no-last-plain" in {d.tag for d in found.doubts}
    assert undecided(found) == []


def test_a_missing_seed_leaves_the_others() -> None:
    m = without(build(Truth(noise=0.01)), seed=2, arm="eagle3")
    assert [s.seed for s in ratio(summarise(m)).per_seed] == [1, 3]


def test_one_seed_has_no_spread_and_is_not_judged() -> None:
    found = ratio(summarise(build(Truth(seeds=(1,), noise=0.01))))
    assert (found.state, found.seed_low, found.note) == ("undecided", None, "one seed has no spread")


def test_an_arm_alone_has_no_ratios() -> None:
    m = build(Truth(arms={"plain": ArmTruth()}))
    found = summarise(m)
    assert (found.ratios, found.crossovers, found.noise) == ([], [], [])
    assert len(found.rows) == 3


def test_blocks_combine_and_sample_restarts() -> None:
    one, four = (summarise(build(Truth(blocks=n, noise=0.01, restart=0.01, draw=3))) for n in (1, 4))
    assert (ratio(one).blocks, ratio(four).blocks, four.blocks) == (1, 4, 4)
    assert (ratio(four).high or 0) / (ratio(four).low or 1) < (ratio(one).high or 0) / (ratio(one).low or 1)


def test_sittings_combine_as_whole_blocks() -> None:
    m = build(Truth(sittings=2, noise=0.01))
    half = edited(m, lambda t: None if t.sitting == 1 and t.record.leg == "b1-3-plain" else t)
    assert ratio(summarise(m)).blocks == 2
    broken = ratio(summarise(half))
    assert (broken.blocks, [len(s.blocks) for s in broken.per_seed]) == (1, [1, 1, 1])


def test_case_24_a_point_whose_client_fell_behind_is_shown_and_not_judged() -> None:
    def lagging(t: TrialData) -> TrialData:
        slow = t.record.arm == "eagle3" and t.record.concurrency == 8
        return with_record(t, watch=ClientWatch(in_flight_share=0.9)) if slow else t

    found = summarise(edited(build(Truth(noise=0.005)), lagging))
    assert ratio(found).state == "undecided" and ratio(found).ratio > 1.2
    assert "90 %" in (ratio(found).note or "")
    assert ratio(found, concurrency=32).state == "faster"
    assert ratio(found, concurrency=32).level == pytest.approx(0.05 / 1, rel=1) and "concurrency-not-reached" in {
        d.tag for d in found.doubts
    }


# Chunk gaps are 35 ms and 20 ms in this truth, the first token takes 50 ms, an answer 0.5 s and a trial seconds.
@pytest.mark.parametrize(
    ("lag_p99_s", "judged"),
    [
        (0.0009, {"gap", "first token", "answer", "trial"}),
        (0.0015, {"first token", "answer", "trial"}),
        (0.01, {"answer", "trial"}),
        (0.1, {"trial"}),
        (9.0, set()),
    ],
)
def test_case_24_a_lag_leaves_what_it_is_a_small_part_of(lag_p99_s: float, judged: set[str]) -> None:
    m = edited(build(Truth(noise=0.005)), lambda t: with_record(t, watch=ClientWatch(lag_p99_s=lag_p99_s)))
    found = summarise(m)
    assert {BY_TAG[r.metric].times for r in found.ratios if r.level is not None} == judged
    assert all("P99 lag" in (r.note or "") for r in found.ratios if BY_TAG[r.metric].times not in judged)


def test_case_24_a_doubt_names_what_is_not_leaned_on() -> None:
    def lag(seconds: float) -> Doubt:
        m = edited(build(Truth(noise=0.005)), lambda t: with_record(t, watch=ClientWatch(lag_p99_s=seconds)))
        return next(d for d in summarise(m).doubts if (d.tag, d.subject) == ("client-lag", "plain on own"))

    assert lag(0.0015).severity == "warning"
    assert lag(0.0015).text == (
        "the client's P99 lag was up to 8 % of the median chunk gap at 1, 8, 32 users; not judged where it is over 5 % "
        "of what they time: ITL p99 (SGLang), Longest gap p50, Longest gap p99"
    )
    assert lag(0.01).severity == "severe" and "TTFT p99" in lag(0.01).text and "Output" not in lag(0.01).text
    assert "Output" in lag(9.0).text


def test_every_compared_metric_says_what_it_times() -> None:
    assert [x.tag for x in METRICS if x.compared and x.times is None] == []


def test_case_53_a_trial_without_a_success_is_left_out() -> None:
    def failing(t: TrialData) -> TrialData:
        return msgspec.structs.replace(t, requests=[]) if t.record.arm == "eagle3" and t.record.seed == 1 else t

    found = summarise(edited(build(Truth(noise=0.01)), failing))
    assert [s.seed for s in ratio(found).per_seed] == [2, 3]
    assert [d.tag for d in found.doubts].count("void-trial") == 3


def test_only_the_last_attempt_of_a_repeated_trial_counts() -> None:
    m = build(Truth(noise=0.01))
    first = with_record(m.trials[0], void="the card failed: gone", attempt=1)
    again = with_record(m.trials[0], attempt=2)
    both = msgspec.structs.replace(m, trials=[first, *m.trials[1:], again])
    assert msgspec.structs.replace(summarise(both), doubts=[]) == msgspec.structs.replace(summarise(m), doubts=[])


def looked(m: Measurements, planned: int) -> Measurements:
    """The same blocks, each added by one more look of --until-decided."""
    blocks = [{**b, "look": b["number"]} for b in m.run.blocks]
    return msgspec.structs.replace(m, run=msgspec.structs.replace(m.run, blocks=blocks, looks_planned=planned))


def test_looks_share_the_level_and_what_was_decided_stays() -> None:
    m = build(Truth(blocks=2, noise=0.005))
    first = summarise(looked(msgspec.structs.replace(m, trials=[t for t in m.trials if "b1" in t.record.leg]), 2))
    both = summarise(looked(m, 2))
    assert (ratio(first).state, ratio(both).state, ratio(both).look) == ("faster", "faster", 1)
    assert ratio(first).p is not None and (ratio(first).level or 1) < 0.05
    assert ratio(both).blocks == 2


def test_undecided_points_are_those_a_verdict_waits_for() -> None:
    truth = Truth(
        arms={"plain": ArmTruth(), "eagle3": ArmTruth(speed=lambda c: 1.5 if c < 32 else 1.04, accept_length=2.7)},
        noise=0.01,
    )
    found = summarise(build(truth))
    assert {p.concurrency for p in undecided(found)} >= {32}
    decided = summarise(build(Truth(noise=0.0)))
    assert undecided(decided) == []


def test_a_leg_of_another_naming_is_one_block() -> None:
    trial = with_record(build(Truth()).trials[0], leg="plain")
    assert sheet.start_of(trial).aba == (1, 1)


def test_the_records_come_to_the_rule_whose_error_rates_are_tested() -> None:
    """Two blocks of own seeds, put together by hand: the same p as the summary's, to the last digit but a few."""
    m, loads, blocks = build(Truth(blocks=2, new_seeds=True, noise=0.02, restart=0.01)), (1, 8, 32), (1, 2)
    runs: dict[tuple[int, int, int], list[float]] = defaultdict(list)  # block, load, place in the block: seeds
    for e in sheet.entries(m):
        runs[e.start.block, e.point.concurrency, e.start.position].append(log(e.values[OUTPUT]))
    gains = {
        (b, c): [s - (f + z) / 2 for f, s, z in zip(*(runs[b, c, p] for p in (1, 2, 3)), strict=True)]
        for b in blocks
        for c in loads
    }
    plain = [[noise.ABA * (fmean(runs[b, c, 3]) - fmean(runs[b, c, 1])) for c in loads] for b in blocks]
    moved = [noise.helmert([fmean(gains[b, c]) for b in blocks])[0] for c in loads]
    points = [Point("own", c) for c in loads]
    estimates = estimate_all(
        {p: gains[1, p.concurrency] + gains[2, p.concurrency] for p in points},
        [*plain, moved],
        dict.fromkeys(points, 0.5),
        dict.fromkeys(points),
    )
    by_hand = [j.p for j in judge(list(estimates.values())) if j is not None]
    assert [ratio(summarise(m), concurrency=c).p for c in loads] == pytest.approx(by_hand)
