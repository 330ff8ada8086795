"""Bernoulli: probabilities, independence, buffers that are too small, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Candidates, Classes, Query, Sampler
from candax.samplers import bernoulli
from candax.samplers.bernoulli import poisson_thresholds
from candax.samplers.common.thresholds import log_bin_probability
from candax.testing.statistics import check_mean

COUNTS = np.array([50.0, 3, 0, 12, 1, 7, 9, 30, 2, 4, 99])
NUM_VALID = 10


def make(counts: np.ndarray = COUNTS, num_valid: int = NUM_VALID) -> Classes:
    return cx.Classes(jnp.zeros((len(counts), 2)), None, jnp.asarray(counts, jnp.float32), jnp.int32(num_valid))


def ask(classes: Classes) -> Query:
    return cx.Query(jnp.zeros((2, 2)), jnp.zeros((2, 1), jnp.int32), classes)


def stated(sampler: Sampler, classes: Classes) -> np.ndarray:
    """The inclusion probabilities, before what an overflow takes away."""
    whole = Candidates(*(jnp.zeros((1, 1), kind) for kind in (jnp.int32, jnp.float32, bool)), draw=jnp.zeros(1))
    ids = jnp.arange(classes.num_classes, dtype=jnp.int32)[None]
    state = sampler.init(jax.random.key(0), classes)
    return np.exp(np.asarray(sampler.log_expected_count(state, whole, ids, ask(classes)), np.float64))[0]


def weights_of(sampler: Sampler, classes: Classes, truth: np.ndarray) -> None:
    """The one law at 1 %."""
    state, query = sampler.init(jax.random.key(0), classes), ask(classes)

    def weights(key: jax.Array) -> jax.Array:
        found = sampler.sample(state, key, query)
        weight = jnp.where(found.mask, jnp.exp(-found.log_expected_count), 0.0)
        return jnp.sum(jnp.where(found.ids[..., None] == jnp.arange(len(truth)), weight[..., None], 0.0), axis=(0, 1))

    check_mean(weights, truth, delta=0.01, seed=3)


def test_frequency_to_a_power() -> None:
    frequency = np.where(np.arange(11) < NUM_VALID, COUNTS, 0) / COUNTS[:NUM_VALID].sum()
    np.testing.assert_allclose(stated(bernoulli(num_slots=9), make()), frequency**0.54, rtol=1e-4)


@pytest.mark.parametrize("expected", [0.5, 3.0, 6.5])
def test_expected_number(expected: float) -> None:
    b = stated(bernoulli(expected, power=1.0), make())
    np.testing.assert_allclose(b.sum(), expected, rtol=0.01)
    free = (b > 0) & (b < 1)
    np.testing.assert_allclose(b[free] / COUNTS[free], (b[free] / COUNTS[free])[0], rtol=1e-4)
    assert np.all(b[COUNTS == 0] == 0)
    assert b[NUM_VALID] == 0


def test_more_expected_than_classes_takes_all() -> None:
    b = stated(bernoulli(50.0, smoothing=1.0), make())
    np.testing.assert_array_equal(b, np.arange(11) < NUM_VALID)


def test_given_probabilities() -> None:
    given = np.array([1.0, 0.995, 0.5, 0.25, 1e-3, 0, 0, 0, 0, 0.9, 1])
    b = stated(bernoulli(probability=lambda classes: jnp.asarray(given.tolist()), num_slots=8), make())
    np.testing.assert_allclose(b, [1.0, 1.0, 0.5, 0.25, 1e-3, 0, 0, 0, 0, 0.9, 0], rtol=1e-5)


def test_classes_are_included_independently_with_the_stated_probability() -> None:
    """Pairs as well: the table of pairwise inclusions is b b^T off the diagonal."""
    classes = make()
    sampler = bernoulli(6.0, power=0.3)
    b = stated(sampler, classes)
    state, query = sampler.init(jax.random.key(0), classes), ask(classes)
    keep = np.flatnonzero(b > 0)

    def pairs(key: jax.Array) -> jax.Array:
        found = sampler.sample(state, key, query)
        included = jnp.any((found.ids[0][:, None] == keep) & found.mask[0][:, None], axis=0).astype(jnp.float32)
        return included[:, None] * included[None, :]

    truth = np.outer(b, b)
    np.fill_diagonal(truth, b)
    check_mean(pairs, truth[np.ix_(keep, keep)], delta=0.05, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [2, 4])
def test_one_law_with_slots_for_too_few(num_slots: int) -> None:
    truth = (COUNTS > 0) & (np.arange(11) < NUM_VALID)
    weights_of(bernoulli(5.0, power=0.2, num_slots=num_slots), make(), truth)


@pytest.mark.slow
def test_one_law_where_arrivals_would_overflow_their_buffer() -> None:
    """Probabilities that sum to 9 with room for two: rates are scaled down, certain classes beyond the head too."""
    sampler = bernoulli(probability=lambda classes: jnp.full(11, 0.95).at[:4].set(1.0), num_slots=2)
    b = stated(sampler, make())
    assert np.all(b[:2] == 1)
    assert np.all((b[2:NUM_VALID] > 0.3) & (b[2:NUM_VALID] < 0.94))
    weights_of(sampler, make(), np.arange(11) < NUM_VALID)


@pytest.mark.slow
def test_the_law_sees_an_overflow_that_is_not_reported() -> None:
    """Planted fault: surplus classes dropped, counts left as they were."""
    good = bernoulli(5.0, power=0.2, num_slots=3)

    def sample(state: object, key: jax.Array, query: Query) -> Candidates:
        found = good.sample(state, key, query)
        return Candidates(found.ids, found.log_expected_count - found.draw[:, None], found.mask, found.draw)

    with pytest.raises(AssertionError, match="biased"):
        weights_of(good._replace(sample=sample), make(), (COUNTS > 0) & (np.arange(11) < NUM_VALID))


def test_a_long_tail_is_drawn_as_stated() -> None:
    """10^5 classes: the number of distinct classes has the mean and variance of independent coins."""
    counts = 1e6 / (1 + np.arange(100_000)) ** 1.2
    classes = make(counts, 100_000)
    sampler = bernoulli(200.0)
    b = stated(sampler, classes)
    np.testing.assert_allclose(b.sum(), 200, rtol=0.01)
    state, query = sampler.init(jax.random.key(0), classes), ask(classes)
    sample = jax.jit(jax.vmap(lambda key: jnp.sum(sampler.sample(state, key, query).mask)))
    number = np.asarray(sample(jax.random.split(jax.random.key(5), 2000)))
    spread = np.sqrt(np.sum(b * (1 - b)))
    assert abs(number.mean() - b.sum()) < 5 * spread / np.sqrt(2000)
    assert 0.9 < number.std() / spread < 1.1


@pytest.mark.parametrize("rate", [0.0, 0.3, 7.5, 900.0])
def test_poisson(rate: float) -> None:
    n = np.arange(1300)
    probability = np.exp(np.asarray(log_bin_probability(poisson_thresholds(jnp.float32(rate), 1300), jnp.arange(1300))))
    np.testing.assert_allclose(probability @ n, rate, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(probability @ n**2 - (probability @ n) ** 2, rate, rtol=1e-2, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expected": 0.0}, "expected=0.0"),
        ({"expected": float("nan")}, "a finite number or None, got nan"),
        ({"expected": 2.0, "probability": lambda classes: classes.counts}, "got both"),
        ({}, "num_slots has a default only with expected"),
        ({"expected": 2.0, "power": 0.0}, "power"),
        ({"expected": 2.0, "smoothing": -1.0}, "smoothing"),
        ({"expected": 2.0, "num_slots": 0}, "num_slots to be an integer >= 1"),
        ({"expected": 2.0, "num_groups": 0}, "num_groups to be an integer >= 1"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bernoulli(**arguments)


def test_bad_probabilities() -> None:
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\]"):
        bernoulli(probability=lambda classes: classes.counts, num_slots=3).init.__wrapped__(jax.random.key(0), make())
    with pytest.raises(ValueError, match=r"a probability for each of \d+ rows .* got the shape \(\)"):
        bernoulli(probability=lambda classes: 0.5, num_slots=3).init.__wrapped__(jax.random.key(0), make())


def test_frequencies_in_a_shard_are_those_among_all_classes() -> None:
    classes = cx.Classes(jnp.zeros((4, 2)), None, jnp.array([8.0, 1, 0.5, 0.5]))
    query = cx.Query(jnp.zeros((1, 2)), jnp.zeros((1, 1), jnp.int32), classes)
    sampler = cx.samplers.sharded(bernoulli(num_slots=4, power=1.0), 2)
    state = sampler.init(jax.random.key(0), classes)
    drawn = sampler.sample(state, jax.random.key(1), query)
    counts = jnp.exp(sampler.log_expected_count(state, drawn, jnp.arange(4)[None], query))
    np.testing.assert_allclose(counts[0], [0.8, 0.1, 0.05, 0.05], rtol=1e-4)


def test_smoothing_in_a_shard_is_that_of_all_classes() -> None:
    """Where smoothing dominates, a total with the smoothing of one shard alone would be eight times too small."""
    counts = jnp.zeros(80).at[0].set(8.0)
    classes = cx.Classes(jnp.zeros((80, 2)), None, counts)
    query = cx.Query(jnp.zeros((1, 2)), jnp.zeros((1, 1), jnp.int32), classes)
    found = []
    for num_shards in (1, 8):
        sampler = cx.samplers.sharded(bernoulli(num_slots=80, power=0.5, smoothing=1.0), num_shards)
        state = sampler.init(jax.random.key(0), classes)
        drawn = sampler.sample(state, jax.random.key(1), query)
        found.append(jnp.exp(sampler.log_expected_count(state, drawn, jnp.arange(80)[None], query))[0])
    np.testing.assert_allclose(found[0], np.sqrt((np.asarray(counts) + 1) / 88), rtol=1e-4)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
