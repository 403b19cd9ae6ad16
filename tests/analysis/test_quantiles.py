import numpy as np
import pytest

from kit.analysis.quantiles import fewest_for_upper_bound, linear, quantile


def test_a_p99_needs_299_requests_for_an_upper_bound() -> None:
    assert fewest_for_upper_bound(0.99) == 299
    few, enough = quantile(range(298), 0.99), quantile(range(299), 0.99)
    assert few is not None and few.indicative and few.high is None and few.low is not None
    assert enough is not None and not enough.indicative and enough.high == 298


@pytest.mark.parametrize("n", [1, 2, 7, 100])
@pytest.mark.parametrize("q", [0.0, 0.5, 0.99, 1.0])
def test_the_estimate_is_numpys_linear_one(n: int, q: float) -> None:
    values = np.random.default_rng(n).uniform(size=n).tolist()
    found = quantile(values, q) if 0 < q < 1 else None
    assert linear(sorted(values), q) == pytest.approx(np.quantile(values, q))
    assert found is None or found.value == linear(sorted(values), q)


def test_nothing_has_no_quantile() -> None:
    assert quantile([], 0.5) is None


def test_one_value_has_no_bounds() -> None:
    only = quantile([3.0], 0.5)
    assert only is not None and (only.value, only.low, only.high, only.indicative) == (3.0, None, None, True)


@pytest.mark.parametrize(("n", "q"), [(30, 0.5), (400, 0.99), (1000, 0.99)])
def test_the_interval_covers_the_true_quantile_at_least_95_percent_of_the_time(n: int, q: float) -> None:
    rng, covered, draws = np.random.default_rng(n), 0, 1_000
    for values in rng.uniform(size=(draws, n)).tolist():
        found = quantile(values, q)
        assert found is not None and found.low is not None and found.high is not None
        covered += found.low <= q <= found.high
    assert covered >= 0.94 * draws


def test_a_p99_of_few_still_has_its_lower_bound() -> None:
    rng, right, draws = np.random.default_rng(7), 0, 2_000
    for values in rng.uniform(size=(draws, 100)).tolist():
        found = quantile(values, 0.99)
        right += found is not None and found.low is not None and found.low <= 0.99
    assert right >= 0.94 * draws
