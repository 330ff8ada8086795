"""Estimates over draws are unbiased and their standard errors are what repeating the experiment shows."""

import numpy as np
import pytest

from candax.diagnostics import statistics

REPEATS, DRAWS, EXAMPLES = 2000, 40, 5


def draws(seed):
    """Draws that the examples of a batch share (variance 4) beside some of their own (1), of mean 3."""
    rng = np.random.default_rng(seed)
    shared = 2 * rng.standard_normal((REPEATS, DRAWS, 1))
    return 3 + shared + rng.standard_normal((REPEATS, DRAWS, EXAMPLES))


def check(measures, truth, *, rel=0.1):
    """Repeated measures have mean ``truth`` and a spread that their standard errors state."""
    values = np.array([measure.value for measure in measures])
    errors = np.array([measure.standard_error for measure in measures])
    spread = values.std(ddof=1)
    assert abs(values.mean() - truth) < 5 * spread / np.sqrt(len(values))
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(spread, rel=rel)


def test_mean_counts_draws_and_not_examples():
    x = draws(0)
    check([statistics.mean(one.mean(axis=1)) for one in x], 3)
    # As if the examples were independent, the error would be too small by about 2: the test would see it.
    naive = np.sqrt(np.mean([one.var(ddof=1) / one.size for one in x]))
    assert naive < 0.55 * np.std([one.mean() for one in x])


def test_variance_is_unbiased():
    check([statistics.variance(one) for one in draws(1)], 5)


def test_root_mean_square():
    measures = [statistics.root(statistics.mean(np.mean(one**2, axis=1))) for one in draws(2)]
    # The root of a mean is biased by a little: -(standard error)^2 / (2 value).
    bias = np.mean([m.standard_error**2 / (2 * m.value) for m in measures])
    check([m._replace(value=m.value + bias) for m in measures], np.sqrt(9 + 5))


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_squared_bias_is_not_fooled_by_noise(bias):
    rng = np.random.default_rng(3)
    dim, half = 30, 50
    measures, plugged_in = [], []
    for _ in range(REPEATS):
        deviations = bias / np.sqrt(dim) + rng.standard_normal((2 * half, dim))
        measures.append(statistics.squared_bias(deviations[half:] @ deviations[:half].mean(axis=0)))
        plugged_in.append(np.sum(deviations.mean(axis=0) ** 2))
    values = np.array([m.value for m in measures])
    errors = np.array([m.standard_error for m in measures])
    assert abs(values.mean() - bias**2) < 5 * values.std() / np.sqrt(REPEATS)
    assert np.mean(plugged_in) > bias**2 + 0.25
    # Too large without a bias, by sqrt 2 as the docstring says; never too small.
    assert 0.95 < np.sqrt(np.mean(errors**2)) / values.std() < 1.5


def test_equal_draws_have_no_spread():
    same = np.full((7, 3), 0.1)
    assert statistics.variance(same).value == 0
    assert statistics.mean(same[:, 0]).standard_error == 0


def test_clipped_root():
    negative = statistics.clipped_root(statistics.Measure(np.array(-4.0), np.array(1.0)))
    assert (negative.value, negative.standard_error) == (0, 0)
    far = statistics.clipped_root(statistics.Measure(np.array(4.0), np.array(0.01)))
    assert far.value == 2
    assert far.standard_error == pytest.approx(0.0025, rel=1e-3)


def test_mean_where_no_example_counts():
    assert np.isnan(statistics.mean_where(np.ones((3, 2)), np.zeros(2, bool)).value)
    assert statistics.mean_where(np.array([[1.0, 5.0], [1.0, 7.0]]), np.array([False, True])).value == 6
