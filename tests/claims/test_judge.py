"""Claims against measurements with a known truth."""

from typing import Any

import msgspec
import pytest

from kit.claims import judge
from kit.claims.found import Run
from kit.errors import UnusableInput
from kit.measurements import LockRecord, Measurements
from kit.scenario import Claim, Dataset, Scenario
from tests.claims.folder import on_card, run_of
from tests.synthetic import ArmTruth, Truth, build, edited

REAL = on_card(build(Truth(noise=0.004, restart=0.004)), "NVIDIA L4")
"""EAGLE-3 1.5 times faster, accept length 2.7, plain pool 24,094."""
RATIO: dict[str, Any] = {
    "id": "r",
    "text": "t",
    "kind": "ratio",
    "metric": "tpot_p50_ms",
    "arm": "plain",
    "against": "eagle3",
}


RUNS: dict[int, tuple[Measurements, Run]] = {}
"""Summaries are dear and do not depend on claims: one for each measurements object."""


def scenario_of(m: Measurements) -> Scenario:
    return msgspec.convert(m.run.scenario, Scenario)


def outcome(m: Measurements, **fields: Any) -> judge.Judged:
    if id(m) not in RUNS:
        RUNS[id(m)] = (m, run_of(m))
    return judge.judge_one(Claim(**fields), RUNS[id(m)][1])


# ---- ratios, orders, absolutes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "tolerance", "expected"),
    [(1.5, 0.05, "holds"), (2.0, 0.05, "fails"), (1.0, 0.05, "fails"), (1.5, 0.0, "cannot tell")],
)
def test_a_ratio_holds_inside_fails_outside_and_is_open_between(
    published: float, tolerance: float, expected: str
) -> None:
    reason = "test" if tolerance else ""
    found = outcome(REAL, **RATIO, value=published, tolerance=tolerance, reason=reason)
    assert found.outcome == expected
    assert len(found.places) == 3 and all(1.4 < (p.found.value or 0) < 1.6 for p in found.places)


def test_a_range_takes_its_tolerance_on_both_sides() -> None:
    found = outcome(REAL, **RATIO, low=1.52, high=1.9, tolerance=0.05, reason="test")
    assert found.outcome == "holds"
    assert (found.low, found.high) == (pytest.approx(1.444), pytest.approx(1.995))


def test_a_ratio_may_be_written_either_way_round() -> None:
    turned = {**RATIO, "arm": "eagle3", "against": "plain"}
    one = outcome(REAL, **RATIO, value=1.5).places[0].found
    other = outcome(REAL, **turned, value=1 / 1.5).places[0].found
    assert one.value is not None and one.low is not None and other.high is not None
    assert other.value == pytest.approx(1 / one.value) and other.high == pytest.approx(1 / one.low)


@pytest.mark.parametrize(
    ("metric", "relation", "expected"),
    [
        ("output_throughput_tok_s", "above", "holds"),
        ("output_throughput_tok_s", "not above", "fails"),
        ("output_throughput_tok_s", "below", "fails"),
        ("tpot_p50_ms", "below", "holds"),
        ("tpot_p50_ms", "not below", "fails"),
    ],
)
def test_orders(metric: str, relation: Any, expected: str) -> None:
    fields = {**RATIO, "kind": "order", "metric": metric, "arm": "eagle3", "against": "plain"}
    assert outcome(REAL, **fields, relation=relation, concurrency=[1, 8]).outcome == expected


def test_no_gain_within_the_margin_is_not_above_and_fails_above() -> None:
    equal = on_card(
        build(Truth(arms={"plain": ArmTruth(), "eagle3": ArmTruth()}, noise=0.002, restart=0.002)), "NVIDIA L4"
    )
    fields = {**RATIO, "kind": "order", "metric": "output_throughput_tok_s", "arm": "eagle3", "against": "plain"}
    assert outcome(equal, **fields, relation="not above").outcome == "holds"
    assert outcome(equal, **fields, relation="above").outcome == "fails"


def test_an_absolute_is_taken_over_seeds() -> None:
    fields: dict[str, Any] = {"id": "a", "text": "t", "kind": "absolute", "metric": "accept_length", "arm": "eagle3"}
    assert outcome(REAL, **fields, low=2.6, high=2.75).outcome == "holds"
    assert outcome(REAL, **fields, value=2.2).outcome == "fails"


def test_the_worst_load_counts_and_is_named() -> None:
    falling = Truth(
        arms={
            "plain": ArmTruth(),
            "eagle3": ArmTruth(speed=lambda users: 2.0 if users < 32 else 1.0, accept_length=2.7),
        },
        noise=0.004,
        restart=0.004,
    )
    found = outcome(build(falling), **RATIO, value=2.0, tolerance=0.1, reason="test")
    assert found.outcome == "fails" and "at 32 users" in found.reason


# ---- what cannot be told --------------------------------------------------------------------------------------------


def test_a_missing_seed_cannot_be_told_even_when_the_rest_holds() -> None:
    gone = edited(REAL, lambda t: None if (t.record.arm, t.record.seed) == ("eagle3", 3) else t)
    found = outcome(gone, **RATIO, value=1.5, tolerance=0.05, reason="test")
    assert found.outcome == "cannot tell" and "seed 3 not measured in full" in found.reason


def test_one_seed_has_no_interval() -> None:
    single = build(Truth(seeds=(1,)))
    assert outcome(single, **RATIO, value=1.5, tolerance=0.05, reason="test").outcome == "cannot tell"
    fields: dict[str, Any] = {"id": "a", "text": "t", "kind": "absolute", "metric": "accept_length", "arm": "eagle3"}
    assert outcome(single, **fields, value=2.7).reason == "one seed has no spread"


def test_a_load_that_was_not_measured_is_named() -> None:
    found = outcome(REAL, **RATIO, value=1.5, concurrency=[64])
    assert found.outcome == "cannot tell" and found.reason == "not measured on own at 64 users"


def test_a_condition_that_the_run_does_not_meet_is_no_failure() -> None:
    fields: dict[str, Any] = {"id": "c", "text": "t", "kind": "condition", "metric": "seeds", "forced": True}
    assert outcome(REAL, **fields, value=3).outcome == "holds"
    assert outcome(REAL, **fields, value=5).outcome == "cannot tell"


def test_case_37_a_number_that_no_server_states_is_missing_and_not_zero() -> None:
    fields: dict[str, Any] = {"id": "d", "text": "t", "kind": "condition", "metric": "draft_tokens", "arm": "plain"}
    found = outcome(REAL, **fields, value=4)
    assert found.outcome == "cannot tell" and found.places[0].found.value is None


# ---- what is not comparable -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", ["NVIDIA L40S", "NVIDIA H200", None])
def test_a_claim_of_another_card_is_shown_and_not_judged(card: str | None) -> None:
    m = build(Truth(noise=0.004, restart=0.004))
    found = outcome(
        m if card is None else on_card(m, card), **RATIO, value=1.5, tolerance=0.05, reason="t", card="NVIDIA L4"
    )
    assert found.outcome == "not comparable" and not found.counted
    assert (card or "no GPU") in found.reason
    assert found.local == "holds" and found.places[0].found.value


def test_a_claim_of_any_card_is_judged_on_every_card() -> None:
    assert outcome(on_card(REAL, "NVIDIA H200"), **RATIO, value=1.5, tolerance=0.05, reason="t").outcome == "holds"


def test_random_weights_and_forced_acceptance_are_not_compared_unless_the_claim_says_so() -> None:
    forced = build(Truth(arms={"plain": ArmTruth(), "eagle3": ArmTruth(accept_length=2.73, forced_accept_length=2.73)}))
    dummy = build(Truth(load_format="dummy"))
    fields: dict[str, Any] = {
        "id": "a",
        "text": "t",
        "kind": "absolute",
        "metric": "accept_length",
        "arm": "eagle3",
        "value": 2.7,
        "tolerance": 0.05,
        "reason": "t",
    }
    assert outcome(forced, **fields).reason == "the accept length was forced here"
    assert outcome(dummy, **fields).reason == "the weights are random here"
    assert outcome(forced, **fields, forced=True).outcome == "holds"


def test_a_pool_set_by_hand_is_not_the_servers_own() -> None:
    fields: dict[str, Any] = {
        "id": "p",
        "text": "t",
        "kind": "pool",
        "metric": "pool_tokens",
        "arm": "plain",
        "value": 24094,
    }
    m = edited(REAL, lambda t: t)
    servers = [
        (n, msgspec.structs.replace(s, facts=msgspec.structs.replace(s.facts, max_total_tokens_asked=24094)))
        for n, s in m.servers
    ]
    assert outcome(REAL, **fields).outcome == "holds"
    assert outcome(msgspec.structs.replace(m, servers=servers), **fields).reason == "the pool was set by hand here"
    assert outcome(msgspec.structs.replace(m, servers=servers), **fields, forced=True).outcome == "holds"


def test_a_cited_figure_is_never_judged() -> None:
    found = outcome(REAL, **{**RATIO, "kind": "cited"}, value=1.3)
    assert found.outcome == "cited" and not found.counted and found.local == "fails"


# ---- facts ----------------------------------------------------------------------------------------------------------

POOLS = build(
    Truth(
        arms={
            "plain": ArmTruth(),
            "eagle3": ArmTruth(speed=1.5, accept_length=2.7, pool_tokens=9951, max_running=48, draft=True),
        },
        datasets={"random": Dataset(source="random", input_len=512, output_len=128)},
        concurrency=(8, 32, 64),
        requests=96,
    )
)


@pytest.mark.parametrize(
    ("metric", "fields", "value"),
    [
        ("pool_tokens", {"arm": "eagle3"}, 9951),
        ("pool_share_taken", {"arm": "eagle3", "against": "plain"}, 0.587),
        ("requests_that_fit", {"arm": "eagle3"}, 15),
        ("requests_that_fit", {"arm": "plain"}, 37),
        ("request_tokens", {}, 640),
        ("max_running_requests", {"arm": "eagle3"}, 48),
        ("max_running", {"arm": "eagle3", "concurrency": [32]}, 15),
        ("waiting", {"arm": "eagle3", "concurrency": [32]}, 17),
        ("draft_tokens", {"arm": "eagle3"}, 4),
        ("best_draft_steps", {"concurrency": [8]}, 3),
        ("best_draft_steps", {"concurrency": [64]}, 0),
        ("prompt_tokens", {"arm": "plain", "concurrency": [8]}, 600),
        ("completion_tokens", {"arm": "eagle3", "concurrency": [8]}, 40),
        ("seeds", {}, 3),
        ("datasets", {}, 1),
    ],
)
def test_facts(metric: str, fields: dict[str, Any], value: float) -> None:
    found = outcome(
        POOLS, id="f", text="t", kind="condition", metric=metric, value=value, tolerance=0.001, reason="t", **fields
    )
    assert [p.found.value for p in found.places] == [pytest.approx(value, rel=1e-3)]
    assert found.outcome == "holds"


def test_a_limit_set_by_hand_says_nothing_of_the_servers_own() -> None:
    asked = build(Truth(arms={"plain": ArmTruth(), "eagle3": ArmTruth(max_running=48, max_running_asked=48)}))
    found = outcome(asked, id="cap", text="t", kind="pool", metric="max_running_requests", arm="eagle3", value=48)
    assert found.outcome == "cannot tell" and found.reason == "set by hand to 48"


def test_the_clock_counts_only_when_it_was_locked() -> None:
    fields: dict[str, Any] = {"id": "l", "text": "t", "kind": "condition", "metric": "lock_mhz", "value": 900}
    lock = LockRecord(asked="required", asked_mhz=900, set_mhz=900, state="locked")
    locked = msgspec.structs.replace(REAL, sittings=[msgspec.structs.replace(s, lock=lock) for s in REAL.sittings])
    assert outcome(locked, **fields).outcome == "holds"
    assert outcome(REAL, **fields).reason == "not locked: off"


# ---- claims that nobody could judge ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**RATIO, "metric": "speed"}, "claims.r: no metric is called 'speed'"),
        ({**RATIO, "metric": "accept_length"}, "metric accept_length is not compared"),
        ({**RATIO, "arm": "eagle3"}, "a ratio is to or from the baseline 'plain'"),
        ({"id": "a", "text": "t", "kind": "absolute", "metric": "accept_length"}, "metric accept_length needs an arm"),
    ],
)
def test_an_impossible_expression_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnusableInput, match=message):
        outcome(REAL, **fields, value=1.0)


def test_a_number_that_is_the_published_one_needs_no_tolerance() -> None:
    """Means over seeds go through logarithms and come back a last digit off."""
    fields: dict[str, Any] = {"id": "i", "text": "t", "kind": "condition", "metric": "prompt_tokens", "arm": "plain"}
    assert outcome(POOLS, **fields, value=600).outcome == "holds"


def test_a_run_of_another_model_is_not_held_against_the_source() -> None:
    fields: dict[str, Any] = {"id": "cap", "text": "t", "metric": "max_running_requests", "arm": "eagle3", "value": 48}
    for changed, expected in ((["model"], "not comparable"), (["sweep.seeds", "server.port"], "holds")):
        run = msgspec.structs.replace(
            run_of(POOLS), scenario=msgspec.structs.replace(scenario_of(POOLS), changed=changed)
        )
        assert judge.judge_one(Claim(**fields, kind="pool", forced=True), run).outcome == expected
