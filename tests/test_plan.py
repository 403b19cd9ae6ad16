"""A plan is a pure product of the axes, the baseline first and again last."""

import msgspec

from kit import plan
from kit.scenario import Arm, Dataset, Model, Scenario, Sweep

SCENARIO = Scenario(
    title="t",
    question="q",
    engine="process",
    name="case",
    model=Model(path="m"),
    arms={"plain": Arm(), "fast": Arm(), "other": Arm()},
    datasets={"a": Dataset(source="random"), "b": Dataset(source="random")},
    sweep=Sweep(concurrency=[1, 8], seeds=[3, 4], requests_per_user=4, min_requests=16),
)


def test_the_baseline_runs_first_and_again_last() -> None:
    (block,) = plan.blocks(SCENARIO)
    assert [leg.id for leg in block.legs] == ["b1-1-plain", "b1-2-fast", "b1-3-other", "b1-4-plain"]
    assert len({len(leg.trials) for leg in block.legs}) == 1


def test_every_arm_replays_the_same_points_and_seeds_in_the_same_order() -> None:
    (block,) = plan.blocks(SCENARIO)
    orders = {tuple(t.name for t in leg.trials) for leg in block.legs}
    assert len(orders) == 1
    assert len(set(*orders)) == 2 * 2 * 2


def test_requests_grow_with_users_above_the_minimum() -> None:
    at = {p.concurrency: plan.requests_at(SCENARIO, p) for p in plan.points(SCENARIO)}
    assert at == {1: 16, 8: 32}


def test_trial_ids_are_stable_and_unique() -> None:
    ids = [t.id for leg in plan.block(SCENARIO).legs for t in leg.trials]
    assert len(ids) == len(set(ids))
    assert ids == [t.id for leg in plan.block(SCENARIO).legs for t in leg.trials]
    assert ids[0] == "b1-1-plain/a-c0001-s3"


def test_seeds_per_block_starts_the_servers_anew() -> None:
    sweep = msgspec.structs.replace(SCENARIO.sweep, seeds_per_block=1)
    blocks = plan.blocks(msgspec.structs.replace(SCENARIO, sweep=sweep))
    assert [b.number for b in blocks] == [1, 2]
    assert {t.seed for leg in blocks[1].legs for t in leg.trials} == {4}


def test_a_single_arm_is_not_run_twice() -> None:
    alone = msgspec.structs.replace(SCENARIO, arms={"plain": Arm()})
    assert [leg.arm for leg in plan.block(alone).legs] == ["plain"]


def test_open_loop_points_stand_beside_the_fixed_ones() -> None:
    sweep = msgspec.structs.replace(SCENARIO.sweep, rates=[2.5])
    points = plan.points(msgspec.structs.replace(SCENARIO, sweep=sweep))
    assert plan.Point("a", 0, 2.5) in points
    assert plan.Point("a", 0, 2.5).label == "a-r2.5"
