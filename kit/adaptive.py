"""Which blocks to measure next: more seeds where a verdict is open, or a bisection of the loads.

Knows how a summary answers and what a plan can ask; knows nothing of how blocks are measured.
"""

import msgspec

from kit import plan
from kit.analysis.search import next_concurrency
from kit.analysis.summary import Summary, summarise, undecided
from kit.measurements import Measurements
from kit.scenario import Scenario

LOOKS = 3
"""Looks that `--until-decided` plans: the sweep itself and at most two blocks with as many new seeds each."""


class UntilDecided:
    """The whole sweep, then blocks of new seeds where a verdict is open; the error is spent over the planned looks."""

    looks = LOOKS
    extends = True

    def first(self, scenario: Scenario) -> tuple[plan.Block, ...]:
        """All points and seeds."""
        return plan.blocks(scenario)

    def then(self, m: Measurements, blocks: tuple[plan.Block, ...]) -> plan.Block | None:
        """As many new seeds as the sweep has, at the open points; None when none is open or the looks are spent."""
        look = 1 + max(b.look for b in blocks)
        open_ = undecided(summarise(m))
        if look > self.looks or not open_:
            return None
        scenario = msgspec.convert(m.run.scenario, Scenario)
        number = 1 + max(b.number for b in blocks)
        more = plan.block(scenario, number, tuple(open_), _new_seeds(scenario, blocks))
        return msgspec.structs.replace(more, look=look)


class Search:
    """Both ends and the middle of the loads, then halves: the same crossover with fewer trials where gains only end.

    Each added load is a block of its own, with its own plain servers before and after. Data that is not monotone asks
    for the full grid.
    """

    looks = 1
    extends = False

    def first(self, scenario: Scenario) -> tuple[plan.Block, ...]:
        """The lowest, the highest and the middle load of every data set, all seeds."""
        axis = sorted(scenario.sweep.concurrency)
        loads = {axis[0], axis[-1], axis[len(axis) // 2]}
        at = tuple(p for p in plan.points(scenario) if p.concurrency in loads or p.rate_per_s is not None)
        return (plan.block(scenario, 1, at),)

    def then(self, m: Measurements, blocks: tuple[plan.Block, ...]) -> plan.Block | None:
        """The loads that any arm and metric asks for next; None when all crossovers are known."""
        scenario = msgspec.convert(m.run.scenario, Scenario)
        planned = {t.point for b in blocks for leg in b.legs for t in leg.trials}
        wanted = sorted(_asked(summarise(m), scenario.sweep.concurrency) - planned)
        if not wanted:
            return None
        return plan.block(scenario, 1 + max(b.number for b in blocks), tuple(wanted))


def _asked(summary: Summary, axis: list[int]) -> set[plan.Point]:
    found = set()
    for c in summary.crossovers:
        users = next_concurrency({int(k): v for k, v in c.states.items()}, axis)
        if users is not None:
            found.add(plan.Point(c.dataset, users))
    return found


def _new_seeds(scenario: Scenario, blocks: tuple[plan.Block, ...]) -> tuple[int, ...]:
    """As many seeds as the sweep has, counted on from the highest that was used."""
    used = max(t.seed for b in blocks for leg in b.legs for t in leg.trials)
    return tuple(range(used + 1, used + 1 + len(scenario.sweep.seeds)))
