import pytest

from kit.analysis.looks import ALPHA, look_level


@pytest.mark.parametrize("looks", [1, 2, 5, 20])
def test_the_levels_of_all_looks_sum_to_the_whole(looks: int) -> None:
    assert sum(look_level(k, looks) for k in range(1, looks + 1)) == pytest.approx(ALPHA)


def test_one_look_spends_all_and_the_first_of_many_most() -> None:
    assert look_level(1, 1) == pytest.approx(0.05)
    levels = [look_level(k, 4) for k in range(1, 5)]
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize(("look", "looks"), [(0, 3), (4, 3)])
def test_a_look_that_was_not_planned_has_no_level(look: int, looks: int) -> None:
    with pytest.raises(ValueError, match=f"look {look} of {looks}"):
        look_level(look, looks)
