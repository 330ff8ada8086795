"""Integer thresholds: what is reported is exactly what is drawn."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax import samplers
from candax.base import Classes, Query
from candax.samplers.common.thresholds import (
    _high_product,
    check_counts,
    draw_bins,
    integer_thresholds,
    log_bin_probability,
    random_below,
)
from candax.testing.statistics import check_mean


def units(thresholds: jax.Array) -> np.ndarray:
    return np.diff(np.asarray(thresholds).astype(np.int64), prepend=0)


def test_probabilities_are_the_weights_to_float_precision() -> None:
    weights = np.random.default_rng(0).gamma(0.3, size=5000).astype(np.float32)
    thresholds = integer_thresholds(jnp.asarray(weights))
    share = units(thresholds) / float(thresholds[-1])
    wanted = weights / weights.sum(dtype=np.float64)
    # Rounding to a unit of about 2^-32, and the float32 that rounds it.
    assert np.all(np.abs(share - wanted) < 1.5 * 2**-32 + 1e-6 * wanted)


def test_zero_weights_get_nothing_and_tiny_ones_a_unit() -> None:
    weights = jnp.array([0.0, 1e-30, 1.0, 0.0, 1e10, 0.0])
    got = units(integer_thresholds(weights))
    assert got[[0, 3, 5]].tolist() == [0, 0, 0]
    assert got[[1, 2]].tolist() == [1, 1]
    log_prob = log_bin_probability(integer_thresholds(weights), jnp.arange(6))
    assert np.isneginf(np.asarray(log_prob)[[0, 3, 5]]).all()
    assert np.isfinite(np.asarray(log_prob)[[1, 2, 4]]).all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scale_of_the_weights_does_not_matter(scale: float) -> None:
    weights = jnp.array([1.0, 2.0, 3.0], jnp.float32)
    share = units(integer_thresholds(weights * scale)) / units(integer_thresholds(weights * scale)).sum()
    np.testing.assert_allclose(share, [1 / 6, 2 / 6, 3 / 6], rtol=1e-6)


@pytest.mark.parametrize("kind", ["equal", "zipf", "one large"])
def test_ten_million_classes_fit_into_32_bits(kind: str) -> None:
    n = 10**7
    rank = jnp.arange(n, dtype=jnp.float32)
    weights = {"equal": jnp.ones(n), "zipf": 1 / (rank + 1), "one large": jnp.where(rank == 5, 1e9, 1e-3)}[kind]
    got = units(integer_thresholds(weights))
    assert got.min() >= 1
    assert got.sum() < 2**32
    assert got.sum() > 2**31
    share, wanted = got / got.sum(), np.asarray(weights, np.float64) / np.asarray(weights, np.float64).sum()
    large = wanted > 1e-6
    np.testing.assert_allclose(share[large], wanted[large], rtol=5e-3)


def test_reported_probability_is_that_of_the_units() -> None:
    thresholds = integer_thresholds(jnp.asarray(np.random.default_rng(1).gamma(0.3, size=300), jnp.float32))
    reported = np.exp(np.asarray(log_bin_probability(thresholds, jnp.arange(300)), np.float64))
    np.testing.assert_allclose(reported, units(thresholds) / float(thresholds[-1]), rtol=4e-6)


def test_draws_at_the_ends_of_the_range() -> None:
    """Every value of the integer below the last threshold belongs to the bin that owns it."""
    thresholds = jnp.array([2, 2, 5], jnp.uint32)
    drawn = draw_bins(thresholds, jax.random.key(0), (1000,))
    assert set(np.unique(drawn).tolist()) == {0, 2}
    assert drawn.dtype == jnp.int32


def test_high_product_equals_python_integers() -> None:
    rng = np.random.default_rng(2)
    edges = [0, 1, 2, 0xFFFF, 0x10000, 0x10001, 2**31, 2**32 - 2, 2**32 - 1]
    a = np.concatenate([np.repeat(edges, len(edges)), rng.integers(0, 2**32, 5000)])
    b = np.concatenate([np.tile(edges, len(edges)), rng.integers(0, 2**32, 5000)])
    got = _high_product(jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32))
    assert np.asarray(got).tolist() == [(int(x) * int(y)) >> 32 for x, y in zip(a, b, strict=True)]


def test_random_below_is_the_top_of_a_96_bit_product() -> None:
    key, bound = jax.random.key(3), 10**8 + 7
    high, low = (np.asarray(part).astype(object) for part in jax.random.bits(key, (2, 200), jnp.uint32))
    wanted = [((int(h) << 32 | int(x)) * bound) >> 64 for h, x in zip(high, low, strict=True)]
    assert np.asarray(random_below(key, (200,), jnp.int32(bound))).tolist() == wanted


def test_random_below_stays_below_any_bound() -> None:
    for bound in (1, 2, 3, 2**16, 2**31, 2**32 - 1):
        drawn = np.asarray(random_below(jax.random.key(4), (10_000,), jnp.uint32(bound)))
        assert drawn.max() < bound
        assert drawn.dtype == np.uint32
    bounds = jnp.array([1, 5, 7], jnp.int32)
    assert np.all(np.asarray(random_below(jax.random.key(4), (1000, 3), bounds)) < np.array([1, 5, 7]))


# The part of the range that 32 random bits modulo the bound misstate: 42 of 43 values, or 1 of 2.
BIASED = [(10**8, 2**32 % 10**8), (3 * 2**30, 2**30)]


def mean_above(draw: Callable[[jax.Array, int], jax.Array], bound: int, split: int) -> None:
    def one(key: jax.Array) -> jax.Array:
        drawn = draw(key, bound)
        return jnp.mean((drawn >= jnp.uint32(split)).astype(jnp.float32))

    check_mean(one, np.array((bound - split) / bound), delta=0.01, seed=5)


@pytest.mark.parametrize(("bound", "split"), BIASED)
def test_random_below_is_unbiased_where_a_modulo_is_not(bound: int, split: int) -> None:
    mean_above(lambda key, bound: random_below(key, (128,), jnp.uint32(bound)), bound, split)


@pytest.mark.parametrize(("bound", "split"), BIASED)
def test_a_modulo_would_be_seen(bound: int, split: int) -> None:
    """``jax.random.randint`` is the planted fault."""
    with pytest.raises(AssertionError, match="biased"):
        mean_above(lambda key, bound: jax.random.randint(key, (128,), 0, jnp.uint32(bound), jnp.uint32), bound, split)


def test_a_float32_cumulative_distribution_would_be_seen() -> None:
    """The tail of 10^6 classes: thresholds give it what it should have, float32 cumulative sums do not."""
    weights = 1 / (np.arange(10**6, dtype=np.float32) + 1)
    wanted = weights[-1000:] / weights.sum(dtype=np.float64)
    share = units(integer_thresholds(jnp.asarray(weights)))[-1000:] / 2**32
    np.testing.assert_allclose(share, wanted, rtol=0.02)
    cumulative = np.cumsum(weights / weights.sum(), dtype=np.float32)
    assert np.max(np.abs(np.diff(cumulative)[-999:] / wanted[1:] - 1)) > 0.1


def test_check_counts_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"needs label frequencies.*Pass counts"):
        check_counts(None, "unigram")
    with pytest.raises(ValueError, match="finite counts >= 0"):
        check_counts(jnp.array([1.0, -1.0]), "unigram")
    with pytest.raises(ValueError, match="finite counts >= 0"):
        check_counts(jnp.array([1.0, jnp.nan]), "unigram")
    with pytest.raises(ValueError, match="finite counts >= 0"):
        check_counts(jnp.array([1.0, jnp.inf]), "unigram")
    with pytest.raises(ValueError, match="all counts are 0"):
        check_counts(jnp.zeros(3), "unigram")
    counts = check_counts(jnp.array([1, 2]), "unigram")
    assert counts.dtype == jnp.float32
    assert jax.jit(lambda x: check_counts(x, "unigram"))(jnp.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.unigram(2, smoothing=1.0),
        samplers.bernoulli(2.0, smoothing=1.0),
        samplers.learned_clusters(2, num_clusters=2),
        samplers.log_uniform(2),
    ],
)
def test_counts_of_0_do_where_something_is_added_or_only_their_order_matters(sampler) -> None:
    classes = Classes(jnp.ones((4, 2)), None, jnp.zeros(4), jnp.int32(4))
    state = sampler.init(jax.random.key(0), classes)
    query = Query(jnp.ones((1, 2)), jnp.zeros((1, 1), jnp.int32), classes)
    drawn = sampler.sample(state, jax.random.key(1), query)
    counts = sampler.log_expected_count(state, drawn, jnp.arange(4, dtype=jnp.int32)[None], query)
    assert jnp.isfinite(counts).all()
