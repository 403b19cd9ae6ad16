"""The product of a scenario's axes as an ordered list of trials. Pure: knows nothing of how a trial is run.

A plan is made of blocks. In a block the baseline server runs first and again last (A B A), so that drift and restart
noise can be told from a difference between arms. One start of a server within a block is a leg.
"""

from collections.abc import Iterator

import msgspec

from kit.scenario import Scenario


class Point(msgspec.Struct, frozen=True, order=True):
    """Where arms are compared: a data set at a load. `rate_per_s` set means open loop, and concurrency is 0."""

    dataset: str
    concurrency: int
    rate_per_s: float | None = None

    @property
    def label(self) -> str:
        """The point's part of a trial id, in an order that sorts."""
        load = f"c{self.concurrency:04d}" if self.rate_per_s is None else f"r{self.rate_per_s:g}"
        return f"{self.dataset}-{load}"


class Trial(msgspec.Struct, frozen=True):
    """One workload driven at one point on one leg."""

    leg: str
    arm: str
    point: Point
    seed: int
    requests: int
    warmup_requests: int

    @property
    def name(self) -> str:
        """The trial's folder below its leg."""
        return f"{self.point.label}-s{self.seed}"

    @property
    def id(self) -> str:
        """Stable within a sitting: leg and name."""
        return f"{self.leg}/{self.name}"


class Leg(msgspec.Struct, frozen=True):
    """One start of one arm's server and the trials on it, in order."""

    id: str
    arm: str
    trials: tuple[Trial, ...]


class Block(msgspec.Struct, frozen=True):
    """A complete A B A: baseline, every other arm, baseline again.

    `look` counts the times that a verdict is taken on growing data (`run --until-decided`): 1 for what was planned.
    """

    number: int
    legs: tuple[Leg, ...]
    look: int = 1


def points(scenario: Scenario) -> tuple[Point, ...]:
    """Every point of the sweep, data sets in the file's order, loads ascending as written."""
    sweep = scenario.sweep
    closed = (Point(d, c) for d in scenario.datasets for c in sweep.concurrency)
    opened = (Point(d, 0, r) for d in scenario.datasets for r in sweep.rates)
    return (*closed, *opened)


def block(
    scenario: Scenario, number: int = 1, at: tuple[Point, ...] | None = None, seeds: tuple[int, ...] | None = None
) -> Block:
    """The A B A block `number` over the given points and seeds (default: the whole sweep)."""
    arms = [scenario.baseline, *(a for a in scenario.arms if a != scenario.baseline), scenario.baseline]
    if len(scenario.arms) == 1:
        arms = [scenario.baseline]
    chosen = at or points(scenario)
    legs = tuple(
        Leg(leg_id, arm, tuple(_trials(scenario, leg_id, arm, chosen, seeds or tuple(scenario.sweep.seeds))))
        for leg_id, arm in ((f"b{number}-{n}-{arm}", arm) for n, arm in enumerate(arms, 1))
    )
    return Block(number, legs)


def blocks(scenario: Scenario) -> tuple[Block, ...]:
    """The whole sweep as blocks: all seeds in one, or `seeds_per_block` in each (its servers start anew)."""
    seeds = scenario.sweep.seeds
    size = scenario.sweep.seeds_per_block or len(seeds)
    parts = [tuple(seeds[i : i + size]) for i in range(0, len(seeds), size)]
    return tuple(block(scenario, number, seeds=part) for number, part in enumerate(parts, 1))


def requests_at(scenario: Scenario, point: Point) -> int:
    """How many requests the point asks for; an open-loop point takes the largest fixed concurrency's number."""
    users = point.concurrency or max(scenario.sweep.concurrency)
    return max(scenario.sweep.min_requests, scenario.sweep.requests_per_user * users)


def _trials(
    scenario: Scenario, leg_id: str, arm: str, at: tuple[Point, ...], seeds: tuple[int, ...]
) -> Iterator[Trial]:
    for point in at:
        users = point.concurrency or max(scenario.sweep.concurrency)
        for seed in seeds:
            yield Trial(leg_id, arm, point, seed, requests_at(scenario, point), scenario.sweep.warmup_per_user * users)


def estimate_s(scenario: Scenario, plan: Block, seconds_per_trial: float = 15.0, start_s: float = 60.0) -> float:
    """A first guess of the block's length in seconds, before anything was measured on this machine."""
    return sum(start_s + seconds_per_trial * len(leg.trials) for leg in plan.legs)
