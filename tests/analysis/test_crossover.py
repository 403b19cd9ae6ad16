from collections.abc import Sequence
from itertools import product
from typing import get_args

import pytest

from kit.analysis.crossover import State, crossover
from kit.analysis.search import next_concurrency

AXIS = (1, 2, 4, 8, 16, 32, 64)
WORDS: dict[str, State] = {"F": "faster", "S": "slower", "E": "equal", "N": "no gain", "U": "undecided"}


def states(letters: str, axis: Sequence[int] = AXIS) -> dict[int, State]:
    return {c: WORDS[x] for c, x in zip(axis, letters, strict=True)}


@pytest.mark.parametrize(
    ("letters", "kind", "up_to", "from_on"),
    [
        ("FFFFNNN", "bracket", 8, 16),
        ("FFFUUNS", "bracket", 4, 32),
        ("FFFFFFF", "always", 64, None),
        ("NESSSSS", "none", None, 1),
        ("FFFUUUU", "cannot tell", 4, None),
        ("UUUUUSS", "cannot tell", None, 32),
        ("UUUUUUU", "cannot tell", None, None),
        ("UFFFFNN", "cannot tell", None, 32),
        ("FFFFNUN", "cannot tell", 8, None),
        ("NNFFFFF", "not monotone", None, None),
        ("FFNFFNN", "not monotone", None, None),
        ("SUUUUUF", "not monotone", None, None),
    ],
)
def test_seven_point_truths(letters: str, kind: str, up_to: int | None, from_on: int | None) -> None:
    found = crossover(states(letters))
    assert (found.kind, found.wins_up_to, found.no_win_from) == (kind, up_to, from_on)
    assert found.undecided == [c for c, s in states(letters).items() if s == "undecided"]


def test_nothing_compared_cannot_tell() -> None:
    assert crossover({}).kind == "cannot tell"


def test_every_outcome_of_four_loads_is_worded() -> None:
    for letters in product("FSENU", repeat=4):
        found = crossover(states("".join(letters), AXIS[:4]))
        assert found.text
        assert found.wins_up_to is None or found.wins_up_to in AXIS
        assert (found.kind == "always") == (set(letters) == {"F"})


def test_every_state_is_known_to_the_search() -> None:
    for state in get_args(State):
        assert next_concurrency({1: state, 4: state, 64: state}, (1, 4, 64)) is None


# ---- the search -----------------------------------------------------------------------------------------------------


def searched(truth: dict[int, State]) -> dict[int, State]:
    """What a search measures of a truth, in order."""
    measured: dict[int, State] = {}
    while (following := next_concurrency(measured, list(truth))) is not None:
        assert following not in measured
        measured[following] = truth[following]
    return measured


@pytest.mark.parametrize(("wins", "undecided"), [(w, u) for w in range(8) for u in range(8 - w)])
def test_the_search_reaches_the_answer_of_the_full_grid(wins: int, undecided: int) -> None:
    truth = states("F" * wins + "U" * undecided + "N" * (7 - wins - undecided))
    measured = searched(truth)
    full, short = crossover(truth), crossover(measured)
    assert (short.kind, short.wins_up_to, short.no_win_from) == (full.kind, full.wins_up_to, full.no_win_from)


def test_the_search_measures_fewer_loads() -> None:
    assert all(len(searched(states("F" * n + "N" * (7 - n)))) <= 5 for n in range(8))


def test_the_search_measures_both_ends_first() -> None:
    assert next_concurrency({}, AXIS) == 1
    assert next_concurrency({1: "faster"}, AXIS) == 64


def test_data_seen_to_be_non_monotone_falls_back_to_the_grid() -> None:
    for letters in ("NNNNNFF", "FFFNFFF", "UUFFFNN", "NFFFFFN"):
        assert searched(states(letters)) == states(letters)


def test_one_load_is_measured_and_done() -> None:
    assert next_concurrency({}, [8]) == 8
    assert next_concurrency({8: "faster"}, [8]) is None
