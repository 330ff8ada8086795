"""Stochastic rounding: right on average, exact where nothing is to be rounded, the same for the same row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.rows.rounding import stochastic_round, to_nearest
from candax.testing.statistics import check_mean

# Shares of the way from one bfloat16 number to the next, away from zero.
SHARES = np.array([0.125, 0.5, 0.8, 0.95], np.float32)
LOWER = np.array([1.0, -3.0, 2.0**-20, -1e30], np.float32)
ROWS = 64


def neighbours():
    """The bfloat16 numbers next to ``LOWER`` away from zero, and the exact lower ones."""
    bits = np.asarray(jax.lax.bitcast_convert_type(jnp.asarray(LOWER), jnp.uint32)) & np.uint32(0xFFFF0000)
    as_floats = lambda words: np.asarray(jax.lax.bitcast_convert_type(jnp.asarray(words), jnp.float32))  # noqa: E731
    return as_floats(bits), as_floats(bits + np.uint32(1 << 16))


def shares_taken(rounding):
    lower, upper = neighbours()
    values = jnp.asarray(lower + SHARES * (upper - lower), jnp.float32)

    def taken(key):
        rounded = rounding(key, jnp.broadcast_to(values, (ROWS, 4)), jnp.arange(ROWS)).astype(jnp.float32)
        return jnp.mean((rounded - lower) / (upper - lower), axis=0)

    exact = (np.asarray(values, np.float64) - lower) / (upper - lower.astype(np.float64))
    return taken, exact


def test_the_mean_is_the_value():
    taken, exact = shares_taken(stochastic_round)
    check_mean(taken, exact, delta=0.01, seed=0)


@pytest.mark.parametrize(
    "fault",
    [
        lambda key, values, ids: values.astype(jnp.bfloat16),
        lambda key, values, ids: stochastic_round(key, values * (1 + 2.0**-13), ids),
    ],
    ids=["to the nearest", "a little too far"],
)
def test_a_bias_would_be_seen(fault):
    taken, exact = shares_taken(fault)
    with pytest.raises(AssertionError):
        check_mean(taken, exact, delta=0.01, seed=0)


def test_the_result_is_one_of_the_two_neighbours():
    values = jnp.asarray(np.random.default_rng(0).normal(size=(500, 3)) * 10.0 ** np.arange(-30, 30, 20), jnp.float32)
    rounded = np.asarray(stochastic_round(jax.random.key(0), values, jnp.arange(500)), np.float32)
    bits = np.asarray(values).view(np.uint32) & np.uint32(0xFFFF0000)
    below, above = bits.view(np.float32), (bits + np.uint32(1 << 16)).view(np.float32)
    assert np.all((rounded == below) | (rounded == above))
    assert np.any(rounded == below)
    assert np.any(rounded == above)


def test_what_bfloat16_has_stays_bit_for_bit():
    some = np.random.default_rng(1).normal(size=200)
    special = [0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, 3.3895314e38, -3.3895314e38, 2.0**-126]
    exact = jnp.asarray(np.concatenate([some, special]), jnp.bfloat16)
    for seed in range(3):
        rounded = stochastic_round(jax.random.key(seed), exact.astype(jnp.float32)[:, None], jnp.arange(exact.size))
        np.testing.assert_array_equal(
            jax.lax.bitcast_convert_type(rounded[:, 0], jnp.uint16), jax.lax.bitcast_convert_type(exact, jnp.uint16)
        )


def test_nan_stays_nan():
    """Also one whose bits a carry would turn into a number."""
    bits = jnp.asarray(np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32))
    values = jax.lax.bitcast_convert_type(bits, jnp.float32)
    for seed in range(20):
        rounded = stochastic_round(jax.random.key(seed), values[:, None], jnp.arange(4))
        assert bool(jnp.isnan(rounded).all())


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 5), (40, 2, 3)])
def test_a_row_is_rounded_by_its_id_wherever_it_is(shape):
    values = jnp.asarray(np.random.default_rng(2).normal(size=shape), jnp.float32)
    key, ids = jax.random.key(3), jnp.arange(100, 140)
    whole = np.asarray(stochastic_round(key, values, ids), np.float32)
    assert whole.shape == shape
    part = np.random.default_rng(3).permutation(40)[:15]
    np.testing.assert_array_equal(np.asarray(stochastic_round(key, values[part], ids[part]), np.float32), whole[part])
    assert np.any(np.asarray(stochastic_round(jax.random.key(4), values, ids), np.float32) != whole)


def test_coordinates_are_rounded_independently():
    values = jnp.full((20_000, 4), 1 + 2.0**-8)
    up = np.asarray(stochastic_round(jax.random.key(5), values, jnp.arange(20_000)) > 1, np.float64)
    correlation = np.corrcoef(np.concatenate([up, np.roll(up, 1, axis=0)], axis=1).T)
    assert np.abs(correlation - np.eye(8)).max() < 5 / np.sqrt(20_000)


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="float32 values"):
        stochastic_round(jax.random.key(0), jnp.ones((2, 2), jnp.bfloat16), jnp.arange(2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_to_nearest_is_what_the_type_stores_also_of_subnormal_numbers(dtype):
    values = np.random.default_rng(0).normal(size=300).astype(np.float32) * np.logspace(-9, 3, 300, dtype=np.float32)
    stored = jnp.asarray(values, dtype).astype(jnp.float32)
    np.testing.assert_array_equal(jax.jit(to_nearest, static_argnums=1)(values, dtype), stored)
