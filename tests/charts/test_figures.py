import xml.etree.ElementTree as ET
from functools import cache

import msgspec
import pytest

from kit import figures
from kit.analysis.summary import summarise
from kit.measurements import GpuFacts, GpuSample, LockRecord, Measurements, TrialData
from tests.analysis.test_conditions import said
from tests.synthetic import ArmTruth, Truth, build, edited

CROSSING = Truth(
    arms={
        "plain": ArmTruth(),
        "eagle3": ArmTruth(speed=lambda c: 1.5 if c <= 8 else 0.7, accept_length=2.7, draft=True, pool_tokens=9_951),
    },
    concurrency=(1, 4, 8, 32),
    noise=0.005,
)


def charts_of(m: Measurements) -> dict[str, figures.Chart]:
    return {c.file: c for c in figures.of_run(summarise(m), m)}


@cache
def crossing() -> dict[str, figures.Chart]:
    return charts_of(build(CROSSING))


@cache
def drawn() -> dict[str, str]:
    """Drawn once for all tests: the same records give the same charts."""
    return {file: chart.draw() for file, chart in crossing().items()}


def with_card(m: Measurements, lock: LockRecord) -> Measurements:
    def sampled(trial: TrialData) -> TrialData:
        start = trial.record.zero_monotonic_s
        gpu = [
            GpuSample(monotonic_s=start + n / 2, index=0, sm_clock_mhz=900, power_w=60.0, utilisation=1.0)
            for n in range(20)
        ]
        return msgspec.structs.replace(trial, gpu=gpu)

    sittings = [msgspec.structs.replace(s, lock=lock, gpus=[GpuFacts(index=0, power_limit_w=72.0)]) for s in m.sittings]
    return msgspec.structs.replace(edited(m, sampled), sittings=sittings)


def test_a_run_gets_its_charts_and_each_is_svg() -> None:
    found = crossing()
    assert list(found) == [
        "charts/pools.svg",
        "charts/output-own.svg",
        "charts/ttft-own.svg",
        "charts/tpot-own.svg",
        "charts/gaps-own.svg",
    ]
    for file, chart in found.items():
        assert ET.fromstring(drawn()[file]).tag.endswith("svg")
        assert not set('&<>"') & set(chart.title), "a title stands in an alt text as it is"


def test_the_crossover_is_said_and_shaded() -> None:
    chart = crossing()["charts/output-own.svg"]
    assert chart.title == "eagle3 has more output up to 8 users and not from 32 on"
    assert "#f0e6c8" in drawn()[chart.file]


def test_a_gain_everywhere_shades_nothing() -> None:
    chart = charts_of(build(Truth(noise=0.005)))["charts/output-own.svg"]
    assert chart.title == "eagle3 has more output at every tested load, up to 32 users"
    assert "#f0e6c8" not in chart.draw()


def test_where_a_gain_has_no_single_end_the_title_names_the_loads() -> None:
    comes_and_goes = ArmTruth(speed=lambda c: 0.7 if c == 8 else 1.5)
    truth = Truth(arms={"plain": ArmTruth(), "ngram": comes_and_goes}, concurrency=(1, 8, 32), noise=0.005)
    title = charts_of(build(truth))["charts/output-own.svg"].title
    assert title == "ngram has more output at 1 and 32 users, less output at 8 users"


def test_what_is_true_of_several_arms_is_said_once() -> None:
    fast = ArmTruth(speed=1.5)
    truth = Truth(arms={"plain": ArmTruth(), "a": fast, "b": fast, "c": fast}, noise=0.005)
    title = charts_of(build(truth))["charts/output-own.svg"].title
    assert title == "a, b and c have more output at every tested load, up to 32 users"


def test_a_noisy_run_claims_neither_gain_nor_loss() -> None:
    truth = Truth(arms={"plain": ArmTruth(), "ngram": ArmTruth(speed=1.01)}, noise=0.3)
    title = charts_of(build(truth))["charts/output-own.svg"].title
    assert title == "ngram has no decided gain or loss in output at any load"


def test_a_pool_that_was_set_says_so() -> None:
    m = said(build(CROSSING), "eagle3", max_total_tokens_asked=9_951)
    title = charts_of(m)["charts/pools.svg"].title
    assert title == "Pools set by --max-total-tokens: plain fits 37 requests, eagle3 fits 15 requests"


def test_the_pool_chart_says_what_the_draft_took() -> None:
    title = crossing()["charts/pools.svg"].title
    assert title.startswith("eagle3 has 59 % less pool than plain: 15 requests of 640 tokens fit instead of 37")


def test_the_gaps_are_those_of_the_load_where_the_gain_ends() -> None:
    assert "at 32 users" in crossing()["charts/gaps-own.svg"].title


def test_a_rehearsal_says_so_on_every_chart() -> None:
    m = build(msgspec.structs.replace(CROSSING, load_format="dummy"))
    for chart in charts_of(m).values():
        svg = chart.draw()
        assert "Rehearsal, no measurement of a model: " in svg
        assert "the weights are random" in svg


def test_a_real_run_has_no_such_words() -> None:
    assert all("Rehearsal" not in svg for svg in drawn().values())


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        (
            LockRecord(asked="required", asked_mhz=900, set_mhz=900, state="locked"),
            "locked at 900 MHz and held in 100.0 %",
        ),
        (LockRecord(), "not locked: 900 to 900 MHz under load"),
    ],
)
def test_the_card_is_drawn_where_it_was_sampled(lock: LockRecord, said: str) -> None:
    chart = charts_of(with_card(build(CROSSING), lock))["charts/card.svg"]
    assert said in chart.title
    assert said in chart.draw()


def test_without_trials_only_the_pools_are_left() -> None:
    m = build(CROSSING)
    assert list(charts_of(edited(m, lambda _: None))) == ["charts/pools.svg"]


def test_one_arm_alone_is_drawn_without_a_comparison() -> None:
    chart = charts_of(build(Truth(arms={"plain": ArmTruth()})))["charts/output-own.svg"]
    assert chart.title == "No arm to compare with: values only"
    assert chart.title in chart.draw()


def test_the_same_records_give_the_same_charts() -> None:
    again = charts_of(build(CROSSING))
    assert {file: chart.title for file, chart in again.items()} == {f: c.title for f, c in crossing().items()}
    assert {file: chart.draw() for file, chart in again.items()} == drawn()
