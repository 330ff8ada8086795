"""Race and stream against enumerated successive sampling without replacement."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.samplers.common.distinct import Distinct, exponentials, log_inclusion, race, stream
from candax.samplers.common.thresholds import draw_bins, integer_thresholds
from candax.testing.statistics import check_mean

PROB = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
SKEWED = np.array([0.97, 0.01, 0.01, 0.005, 0.005])


def raced(prob: np.ndarray, num_sampled: int) -> Callable[[jax.Array], Distinct]:
    log_prob = jnp.log(jnp.asarray(prob, jnp.float32))
    return lambda key: race(key, jnp.arange(len(prob), dtype=jnp.int32), log_prob, num_sampled)


def streamed(prob: np.ndarray, num_sampled: int) -> Callable[[jax.Array], Distinct]:
    thresholds = integer_thresholds(jnp.asarray(prob, jnp.float32))
    return lambda key: stream(key, lambda key, shape: draw_bins(thresholds, key, shape), num_sampled, True)


def probability_of_orders(prob: np.ndarray, num_sampled: int) -> np.ndarray:
    """P(first id, second id, ...) of drawing one after the other, each from those that are left."""
    table = np.zeros((len(prob),) * num_sampled)
    for order in itertools.permutations(range(len(prob)), num_sampled):
        left, likelihood = 1.0, 1.0
        for c in order:
            likelihood *= prob[c] / left
            left -= prob[c]
        table[order] = likelihood
    return table


def frequency(sample: Callable[[jax.Array], Distinct], n: int) -> Callable[[jax.Array], jax.Array]:
    def one(key: jax.Array) -> jax.Array:
        first, second = sample(key).ids
        return (jnp.arange(n * n) == first * n + second).reshape(n, n).astype(jnp.float32)

    return one


def test_exponentials_are_as_fine_near_0_as_floats_are() -> None:
    """Multiples of 2^-23, as ``jax.random.exponential`` has, would let a class of probability 1e-9 arrive at once."""
    found = np.asarray(jax.jit(exponentials, static_argnums=1)(jax.random.key(0), (1 << 22,)), np.float64)
    assert np.all((found > 0) & np.isfinite(found))
    for below in (1e-5, 1e-3, 0.1, 1.0, 5.0, 11.0):
        for chance, number in ((-np.expm1(-below), np.sum(found < below)), (np.exp(-below), np.sum(found > below))):
            assert abs(number - chance * found.size) < 5 * np.sqrt(chance * (1 - chance) * found.size)
    small = found[found < 1e-3]
    assert len(np.unique(small)) > 0.99 * len(small)


def test_a_class_that_is_all_but_impossible_is_drawn_as_often_as_stated() -> None:
    """20 classes of nearly all the mass, and thousands that would arrive where an exponential came out as 0."""
    log_prob = jnp.log(jnp.concatenate([jnp.full(20, 0.05), jnp.full(1 << 14, 1e-16)]))
    ids = jnp.arange(len(log_prob), dtype=jnp.int32)
    keys = jax.random.split(jax.random.key(5), 1 << 10)
    found = jax.jit(lambda keys: jax.lax.map(lambda key: race(key, ids, log_prob, 8).ids, keys))(keys)
    # 2^24 exponentials, for which one expected count is 2e-8 in all.
    assert np.all(np.asarray(found) < 20)


@pytest.mark.parametrize("make", [raced, streamed])
def test_order_of_two_from_five_is_successive_sampling(make: Callable[..., Callable]) -> None:
    """Every ordered pair has its enumerated probability."""
    check_mean(frequency(make(PROB, 2), 5), probability_of_orders(PROB, 2), delta=0.05, seed=0)


@pytest.mark.parametrize("make", [raced, streamed])
def test_another_distribution_would_be_seen(make: Callable[..., Callable]) -> None:
    other = PROB + np.array([0, 0, 0, -0.01, 0.01])
    with pytest.raises(AssertionError, match="biased"):
        check_mean(frequency(make(other, 2), 5), probability_of_orders(PROB, 2), delta=0.05, seed=0)


@pytest.mark.parametrize("make", [raced, streamed])
def test_mean_arrival_of_the_class_after_is_that_of_the_enumeration(make: Callable[..., Callable]) -> None:
    """E[tau]: after an order was drawn, the next class takes 1 / (mass that is left) on average."""
    expected = 0.0
    for order in itertools.permutations(range(5), 2):
        likelihood, left, waited = 1.0, 1.0, 1.0
        for c in order:
            likelihood *= PROB[c] / left
            left -= PROB[c]
            waited += 1 / left
        expected += likelihood * waited
    check_mean(lambda key: make(PROB, 2)(key).tau, np.array(expected), delta=0.01, seed=1)


@pytest.mark.parametrize("prob", [PROB, SKEWED])
def test_stream_returns_distinct_ids_and_ordered_times(prob: np.ndarray) -> None:
    """With 97 % on one class one block of draws seldom holds enough distinct ones: it must go on."""
    found = jax.jit(jax.vmap(streamed(prob, 4)))(jax.random.split(jax.random.key(2), 2000))
    ids = np.sort(np.asarray(found.ids), axis=1)
    assert np.all(np.diff(ids, axis=1) > 0)
    assert np.all(found.mask)
    assert np.all(np.asarray(found.tau) > 0)
    if prob is SKEWED:
        # 24 arrivals are one block: later arrivals mean that it looped.
        assert np.mean(np.asarray(found.tau) > 60) > 0.5


@pytest.mark.slow
def test_stream_keeps_every_slot_of_an_unfinished_block() -> None:
    """Skewed draws across blocks have the enumerated law as well: nothing found in one block is lost in the next."""
    second = frequency(streamed(SKEWED, 2), 5)
    truth = probability_of_orders(SKEWED, 2).sum(axis=0)
    check_mean(lambda key: second(key).sum(axis=0), truth, delta=0.03, seed=3)


def test_race_with_fewer_possible_classes_than_slots_masks_the_rest() -> None:
    log_prob = jnp.array([-jnp.inf, 0.0, -1.0, -jnp.inf])
    found = race(jax.random.key(4), jnp.array([7, 8, 9, 10], jnp.int32), log_prob, 3)
    assert found.mask.tolist() == [True, True, False]
    assert set(found.ids[:2].tolist()) == {8, 9}
    assert found.ids[2] == 0
    assert found.tau == jnp.inf
    longer = race(jax.random.key(4), jnp.array([7, 8, 9, 10], jnp.int32), log_prob, 6)
    assert longer.mask.tolist() == [True, True, False, False, False, False]


def test_race_of_exactly_as_many_classes_as_slots_keeps_all_for_sure() -> None:
    found = race(jax.random.key(4), jnp.array([3, 5], jnp.int32), jnp.log(jnp.array([0.9, 0.1])), 2)
    assert set(found.ids.tolist()) == {3, 5}
    assert log_inclusion(jnp.log(jnp.array([0.9, 0.1])), found.tau).tolist() == [0.0, 0.0]


def test_log_inclusion_against_float64() -> None:
    log_prob = jnp.array([-1.0, -10.0, -20.0, -jnp.inf])
    for tau in (1e-3, 1.0, 1e4):
        wanted = np.log(-np.expm1(-np.exp(np.array([-1.0, -10.0, -20.0])) * tau))
        got = np.asarray(log_inclusion(log_prob, jnp.float32(tau)))
        np.testing.assert_allclose(got[:3], wanted, rtol=2e-6, atol=2e-6)
        assert got[3] == -np.inf
