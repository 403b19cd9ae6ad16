import numpy as np
import pytest

from kit.analysis import noise
from kit.analysis.noise import Variance


def test_the_plain_pair_has_the_variance_of_the_mean_log_ratio() -> None:
    """The identity in the module's docstring, with restarts and runs both at work."""
    rng = np.random.default_rng(0)
    restart, run, seeds, draws = 0.02, 0.03, 3, 40_000
    legs = rng.normal(0, restart, (draws, 3)) + rng.normal(0, run / seeds**0.5, (draws, 3))
    ratio = legs[:, 1] - (legs[:, 0] + legs[:, 2]) / 2
    pair = noise.ABA * (legs[:, 2] - legs[:, 0])
    assert np.var(ratio) == pytest.approx(1.5 * restart**2 + 1.5 * run**2 / seeds, rel=0.03)
    assert np.mean(pair**2) == pytest.approx(np.var(ratio), rel=0.03)


def test_contrasts_are_squared_about_zero_so_a_drift_counts() -> None:
    found = noise.restart_variance([[0.02, 0.02, 0.02]])
    assert found is not None and found.value == pytest.approx(0.0004)


def test_points_that_move_together_count_as_one_pair() -> None:
    together, apart = noise.restart_variance([[0.02, 0.021, 0.019]]), noise.restart_variance([[0.02, -0.021, 0.001]])
    assert together is not None and together.df < 1.1
    assert apart is not None and apart.df == 3


def test_further_blocks_add_degrees_of_freedom() -> None:
    one, two = noise.restart_variance([[0.02, 0.02]]), noise.restart_variance([[0.02, 0.02], [-0.02, -0.02]])
    assert one is not None and two is not None and two.df == pytest.approx(2 * one.df)


def test_no_pair_of_starts_gives_no_variance() -> None:
    assert noise.restart_variance([]) is None
    assert noise.restart_variance([[]]) is None


def test_helmert_contrasts_keep_the_variance_and_are_independent() -> None:
    rng = np.random.default_rng(1)
    found = np.array([noise.helmert(list(x)) for x in rng.normal(0, 2, (20_000, 4))])
    assert np.cov(found.T) == pytest.approx(4 * np.eye(3), abs=0.15)
    assert noise.helmert([1.0]) == []


def test_alike_variances_share_their_degrees_of_freedom() -> None:
    alike: list[Variance | None] = [Variance(1.0, 2), Variance(1.1, 2), Variance(0.9, 2)]
    drawn = noise.moderate(alike)
    assert all(v is not None and v.value == pytest.approx(1.0) for v in drawn)


def test_unlike_variances_stay_apart() -> None:
    drawn = noise.moderate([Variance(v, 20) for v in (1e-6, 1e-3, 1.0)])
    assert drawn[0] is not None and drawn[2] is not None
    assert drawn[0].value < 1e-4 and drawn[2].value > 0.5


def test_a_missing_variance_stays_missing_and_a_single_one_stays_itself() -> None:
    assert noise.moderate([None, Variance(1.0, 2)]) == [None, Variance(1.0, 2)]


def test_moderated_t_intervals_keep_their_level() -> None:
    """Seven points of three seeds: the drawn-together variance misses in 5 %, as an interval of 5 % should."""
    rng, missed, draws = np.random.default_rng(2), 0, 3_000
    for values in rng.normal(0, 1, (draws, 7, 3)):
        first = noise.moderate([noise.seed_variance(list(v)) for v in values])[0]
        assert first is not None
        half = noise.t_quantile(min(first.df, 14), 0.05) * (first.value / 3) ** 0.5
        missed += abs(values[0].mean()) > half
    assert 0.03 * draws < missed < 0.07 * draws


def test_satterthwaite() -> None:
    both = noise.added(Variance(1.0, 4), Variance(1.0, 4))
    assert (both.value, both.df) == (2.0, 8.0)
    assert noise.added(Variance(0.0, 2), Variance(0.0, 5)) == Variance(0.0, 2)


def test_three_seeds_have_a_t_of_4_30() -> None:
    assert noise.t_quantile(2, 0.05) == pytest.approx(4.303, abs=0.001)
    assert noise.t_probability(2, 4.303) == pytest.approx(0.05, abs=0.0001)
