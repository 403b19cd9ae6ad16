"""What is measured next: more seeds where a verdict is open, or the loads that a bisection asks for."""

import msgspec
import pytest

from kit import adaptive, plan
from kit.measurements import Measurements
from tests.synthetic import ArmTruth, Truth, build, edited, scenario_of

AXIS = (1, 2, 8, 16, 32)


def arms(speed: object) -> dict[str, ArmTruth]:
    return {"plain": ArmTruth(), "eagle3": ArmTruth(speed=speed, accept_length=2.7, draft=True)}


def only(m: Measurements, points: set[plan.Point]) -> Measurements:
    """What a run that measured these points alone would hold."""
    loads = {p.concurrency for p in points}
    return edited(m, lambda t: t if t.record.concurrency in loads else None)


def searched(truth: Truth) -> tuple[set[int], Measurements]:
    """The loads that the search measured until it had no more to ask."""
    whole = build(truth)
    search = adaptive.Search()
    blocks = search.first(scenario_of(truth))
    while True:
        points = {t.point for b in blocks for leg in b.legs for t in leg.trials}
        seen = only(whole, points)
        more = search.then(seen, blocks)
        if more is None:
            return {p.concurrency for p in points}, seen
        assert {leg.arm for leg in more.legs} == {"plain", "eagle3"}
        assert more.legs[0].arm == more.legs[-1].arm == "plain"
        blocks = (*blocks, more)


def crossover_of(m: Measurements, metric: str) -> object:
    from kit.analysis.summary import summarise

    (found,) = [c.found for c in summarise(m).crossovers if c.metric == metric]
    return found.kind, found.wins_up_to, found.no_win_from


def test_search_reaches_the_answer_of_the_full_grid_with_fewer_loads() -> None:
    truth = Truth(arms=arms(lambda users: 1.5 if users <= 8 else 0.8), concurrency=AXIS, noise=0.005)
    loads, seen = searched(truth)
    assert {1, 32} <= loads < set(AXIS)
    for metric in ("output_throughput_tok_s", "tpot_p50_ms"):
        assert crossover_of(seen, metric)[1:] == crossover_of(build(truth), metric)[1:]


def test_search_falls_back_to_the_grid_when_gains_come_back() -> None:
    speeds = {1: 0.8, 2: 0.8, 8: 1.5, 16: 1.5, 32: 1.5}
    loads, _ = searched(Truth(arms=arms(lambda users: speeds[users]), concurrency=AXIS, noise=0.005))
    assert loads == set(AXIS)


def test_nothing_is_added_where_all_is_decided() -> None:
    truth = Truth(arms=arms(1.5), noise=0.005, concurrency=AXIS)
    m = build(truth)
    assert adaptive.UntilDecided().then(m, plan.blocks(scenario_of(truth))) is None


def test_open_points_get_new_seeds_and_their_own_plain_servers() -> None:
    truth = Truth(arms=arms(lambda users: 1.5 if users < 32 else 1.03), noise=0.02, concurrency=AXIS)
    blocks = plan.blocks(scenario_of(truth))
    more = adaptive.UntilDecided().then(build(truth), blocks)
    assert more is not None
    trials = [t for leg in more.legs for t in leg.trials]
    assert {t.seed for t in trials} == {4, 5, 6}
    assert 32 in {t.point.concurrency for t in trials}
    assert (more.number, more.look) == (2, 2)
    assert [leg.arm for leg in more.legs] == ["plain", "eagle3", "plain"]


def test_looks_are_bounded() -> None:
    truth = Truth(arms=arms(1.03), noise=0.02, concurrency=AXIS)
    blocks = plan.blocks(scenario_of(truth))
    last = tuple(msgspec.structs.replace(b, look=adaptive.LOOKS) for b in blocks)
    assert adaptive.UntilDecided().then(build(truth), last) is None


@pytest.mark.parametrize("strategy", [adaptive.UntilDecided(), adaptive.Search()])
def test_a_strategy_begins_with_the_ends_of_the_loads(strategy: adaptive.UntilDecided | adaptive.Search) -> None:
    points = {t.point.concurrency for b in strategy.first(scenario_of(Truth())) for leg in b.legs for t in leg.trials}
    assert {1, 32} <= points
