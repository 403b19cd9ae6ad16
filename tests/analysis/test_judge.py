from math import log

import pytest

from kit.analysis.judge import MARGIN, MOST_SEEDS, Estimate, judge, more_seeds
from kit.analysis.noise import Variance


def estimate(gain: float, error: float = 0.001, df: float = 100, why_not: str | None = None) -> Estimate:
    return Estimate(log(gain), Variance(error**2, df), why_not)


@pytest.mark.parametrize(
    ("gain", "error", "state"),
    [
        (1.2, 0.01, "faster"),
        (0.8, 0.01, "slower"),
        (1.0, 0.001, "equal"),
        (0.97, 0.01, "no gain"),
        (1.0, 0.1, "undecided"),
        (1.05, 0.02, "undecided"),
        (1.02, 0.001, "equal"),
    ],
)
def test_states(gain: float, error: float, state: str) -> None:
    found = judge([estimate(gain, error)])[0]
    assert found is not None and found.state == state


def test_a_missing_difference_is_not_equality() -> None:
    found = judge([estimate(1.0, 0.05)])[0]
    assert found is not None and found.state == "undecided"


def test_holm_steps_down_from_the_clearest_and_stops() -> None:
    found = judge([estimate(1.5), estimate(1.2), estimate(1.03, 0.01), estimate(1.031, 0.01)])
    levels = [j.level for j in found if j is not None]
    assert levels[:2] == pytest.approx([0.05 / 4, 0.05 / 3])
    assert levels[2:] == pytest.approx([0.05 / 2, 0.05 / 2])
    assert [j.state for j in found if j] == ["faster", "faster", "undecided", "undecided"]


def test_a_state_is_decided_exactly_when_p_is_under_its_level() -> None:
    for j in judge([estimate(1 + 0.01 * i, 0.01, df=5) for i in range(-6, 12)]):
        assert j is not None and (j.state != "undecided") == (j.p <= j.level)


def test_what_cannot_be_judged_takes_no_part_in_holm() -> None:
    found = judge([estimate(1.5), Estimate(0.1, None), estimate(1.5, why_not="the client lagged")])
    assert found[1:] == [None, None]
    assert found[0] is not None and found[0].level == 0.05


def test_no_spread_at_all_is_decided() -> None:
    found = judge([Estimate(0.2, Variance(0.0, 2)), Estimate(0.0, Variance(0.0, 2))])
    assert [j.state for j in found if j] == ["faster", "equal"]


def test_more_seeds_are_few_when_nearly_decided_and_capped_at_the_margin() -> None:
    near, far = estimate(1.08, 0.03, df=8), Estimate(MARGIN, Variance(0.0009, 8))
    assert 0 < (more_seeds(near, 0.05, 3) or 0) < 10
    assert more_seeds(far, 0.05, 3) == MOST_SEEDS
    assert more_seeds(Estimate(0.1, None), 0.05, 3) is None
