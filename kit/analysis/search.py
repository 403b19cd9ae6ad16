"""Which concurrency to measure next when only the crossover is asked for. Pure: knows states, not how they came."""

from collections.abc import Mapping, Sequence

from kit.analysis.crossover import State

_RANK: dict[State, int] = {"faster": 0, "undecided": 1, "equal": 2, "no gain": 2, "slower": 2}


def next_concurrency(measured: Mapping[int, State], axis: Sequence[int]) -> int | None:
    """The next concurrency of the axis to measure, or None when the crossover over the whole axis is known.

    End points first, then the middle, then halves between neighbours that differ: on data that only ever goes from gain
    to no gain this ends with the very bracket of the full grid. Data seen to go the other way asks for the full grid;
    what hides between two equal neighbours is not seen, which is the price of measuring less.
    """
    loads = sorted(set(axis))
    open_ = [c for c in loads if c not in measured]
    if not open_:
        return None
    for end in (loads[0], loads[-1], loads[len(loads) // 2]):
        if end not in measured:
            return end
    known = [c for c in loads if c in measured]
    ranks = [_RANK[measured[c]] for c in known]
    if ranks != sorted(ranks):
        return open_[0]
    for low, high in zip(known, known[1:], strict=False):
        between = [c for c in open_ if low < c < high]
        if between and _RANK[measured[low]] != _RANK[measured[high]]:
            return between[len(between) // 2]
    return None
