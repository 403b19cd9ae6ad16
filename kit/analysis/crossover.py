"""Up to how many users speculation wins, from the states at the tested loads. Never between them: no interpolation."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["faster", "slower", "equal", "no gain", "undecided"]
NO_WIN = ("slower", "equal", "no gain")
Kind: TypeAlias = Literal["bracket", "always", "none", "not monotone", "cannot tell"]


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gain ends. It was shown at every tested load to `wins_up_to`, and its absence from `no_win_from` on.

    kind      wins_up_to and no_win_from
    bracket       both: the crossover lies between them, wherever between them
    always        only the first: a gain at every tested load
    none          only the second: no gain at any tested load
    not monotone  a gain is shown above a load where none is: there is no single crossover
    cannot tell   too much is undecided; what is known of both ends is given
    """

    kind: Kind
    wins_up_to: int | None = None
    no_win_from: int | None = None
    undecided: list[int] = []
    text: str


def crossover(states: Mapping[int, State]) -> Crossover:
    """The crossover over concurrencies, each with the state of speculation there."""
    loads = sorted(states)
    wins = [c for c in loads if states[c] == "faster"]
    none = [c for c in loads if states[c] in NO_WIN]
    undecided = [c for c in loads if states[c] == "undecided"]
    if wins and none and none[0] < wins[-1]:
        return Crossover(
            kind="not monotone",
            undecided=undecided,
            text=f"not monotone: no gain at {_names(none)}, but a gain at {_names(wins)}",
        )
    return _monotone(loads, wins, none, undecided)


def _monotone(loads: list[int], wins: list[int], none: list[int], undecided: list[int]) -> Crossover:
    """All gains lie below all loads without gain; what is undecided may lie anywhere."""
    up_to = _last_of_run(loads, wins)
    down_from = none[0] if none and not [c for c in undecided if c > none[0]] else None
    kind, text = _worded(loads, wins, none, undecided, up_to, down_from)
    return Crossover(kind=kind, wins_up_to=up_to, no_win_from=down_from, undecided=undecided, text=text)


def _worded(
    loads: list[int], wins: list[int], none: list[int], undecided: list[int], up_to: int | None, down_from: int | None
) -> tuple[Kind, str]:
    if not loads:
        return "cannot tell", "cannot tell: no load was compared"
    if len(wins) == len(loads):
        return "always", f"at every tested load, {loads[0]} to {loads[-1]}"
    if len(none) == len(loads):
        return "none", f"at no tested load, {loads[0]} to {loads[-1]}"
    if up_to is not None and down_from is not None:
        between = f" (undecided at {_names(undecided)})" if undecided else ""
        return "bracket", f"up to {up_to}, no more from {down_from} on{between}"
    shown = f"; a gain is shown up to {up_to}" if up_to is not None else ""
    ended = f"; none from {down_from} on" if down_from is not None else ""
    return "cannot tell", f"cannot tell: undecided at {_names(undecided)}{shown}{ended}"


def _last_of_run(loads: list[int], wins: list[int]) -> int | None:
    """The last load of the unbroken run of gains that starts at the lowest load."""
    last = None
    for load in loads:
        if load not in wins:
            break
        last = load
    return last


def _names(loads: list[int]) -> str:
    return ", ".join(str(c) for c in loads)
