"""Learned clusters: draws that agree with the counts at every step, and a generator that learns where labels lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Sampler
from candax.samplers import learned_clusters
from candax.samplers.learned_clusters import Generator
from candax.testing.statistics import check_mean
from tests.samplers.stated import expected_counts

NUM_CLASSES, PADDING, DIM = 20, 2, 3
RNG = np.random.default_rng(0)
# Four directions, five classes each; padding rows are no numbers.
CENTERS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, 0]])
VECTORS = np.repeat(CENTERS, 5, axis=0) + 0.05 * RNG.normal(size=(NUM_CLASSES, DIM))
VECTORS = np.concatenate([VECTORS, np.full((PADDING, DIM), np.nan)]).astype(np.float32)
COUNTS = np.concatenate([RNG.integers(0, 9, NUM_CLASSES), [50, 50]]).astype(np.float32)
CLASSES = cx.Classes(jnp.asarray(VECTORS), None, jnp.asarray(COUNTS), jnp.int32(NUM_CLASSES))
FREQUENCY = np.where(np.arange(22) < NUM_CLASSES, (COUNTS + 1) ** 0.75, 0)
FREQUENCY /= FREQUENCY.sum()


def ask(embeddings: object, labels: object) -> cx.Query:
    return cx.Query(jnp.asarray(embeddings, jnp.float32), jnp.asarray(labels, jnp.int32), CLASSES)


# Embeddings of two kinds whose labels lie in the second and in the fourth direction; some have no label here.
QUERY = ask([[1, 0, 0], [1, 0.1, 0], [0, 0, 1], [0.1, 0, 1]], [[5, 8], [-1, -1], [16, -1], [99, -1]])


def learn(sampler: Sampler, number: int, classes: cx.Classes = CLASSES) -> Generator:
    state = sampler.init(jax.random.key(0), classes)
    update = jax.jit(sampler.update)
    for i in range(number):
        state = update(state, jax.random.key(i), QUERY, jnp.arange(1), jnp.zeros((1, DIM)))
    return state


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 40])
def test_counts_are_of_what_is_drawn(number: int) -> None:
    sampler = learned_clusters(4, num_clusters=4, static_share=0.3, learning_rate=0.1, num_groups=2)
    state = learn(sampler, number)

    def weights(key: jax.Array) -> jax.Array:
        found = sampler.sample(state, key, QUERY)
        weight = jnp.where(found.mask, jnp.exp(-found.log_expected_count), 0.0)
        return jnp.sum(jnp.where(found.ids[..., None] == jnp.arange(22), weight[..., None], 0.0), axis=1)

    check_mean(weights, np.broadcast_to(np.arange(22) < NUM_CLASSES, (2, 22)), delta=0.02, seed=4)


def test_the_generator_learns_where_labels_lie_and_a_share_stays_by_frequency() -> None:
    sampler = learned_clusters(8, num_clusters=4, static_share=0.2, learning_rate=0.1, num_groups=2)
    counts = expected_counts(sampler, QUERY, learn(sampler, 200))
    np.testing.assert_allclose(counts.sum(axis=1), 8, rtol=1e-5)
    second, fourth = slice(5, 10), slice(15, 20)
    for group, labels in ((0, second), (1, fourth)):
        # All of the learned share goes there, and within a cluster frequency decides.
        wanted = 8 * 0.2 * FREQUENCY
        wanted[labels] += 8 * 0.8 * FREQUENCY[labels] / FREQUENCY[labels].sum()
        np.testing.assert_allclose(counts[group], wanted, rtol=0.1, atol=0.05)


def test_without_vectors_or_training_draws_are_by_frequency() -> None:
    zeros = cx.Classes(jnp.zeros_like(CLASSES.vectors), None, CLASSES.counts, CLASSES.num_valid)
    sampler = learned_clusters(8, num_clusters=4)
    state = sampler.init(jax.random.key(0), zeros)
    np.testing.assert_allclose(expected_counts(sampler, QUERY, state)[0], 8 * FREQUENCY, rtol=1e-5)
    alike = cx.Classes(CLASSES.vectors, None, None, CLASSES.num_valid)
    only = learned_clusters(8, num_clusters=4, static_share=1.0)
    counts = expected_counts(only, QUERY, only.init(jax.random.key(0), alike))[0]
    np.testing.assert_allclose(counts, np.where(np.arange(22) < NUM_CLASSES, 8 / NUM_CLASSES, 0), rtol=1e-5)


def test_refresh_finds_the_clusters_of_the_vectors_and_starts_anew() -> None:
    zeros = cx.Classes(jnp.zeros_like(CLASSES.vectors), None, CLASSES.counts, CLASSES.num_valid)
    sampler = learned_clusters(8, num_clusters=4, schedule=7)
    assert [step for step in range(20) if sampler.schedule(step)] == [7, 14]
    state = sampler.refresh(learn(sampler, 3, zeros), jax.random.key(2), CLASSES)
    assigned = np.asarray(state.clusters.assigned)[:NUM_CLASSES].reshape(4, 5)
    assert (assigned == assigned[:, :1]).all()
    assert len(set(assigned[:, 0])) == 4
    means = VECTORS[:NUM_CLASSES].reshape(4, 5, DIM).mean(axis=1)
    np.testing.assert_allclose(np.asarray(state.params[0]).T[assigned[:, 0]], means, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_sampled": 0}, "num_sampled to be an integer >= 1"),
        ({"num_sampled": 2, "num_clusters": 0}, "num_clusters to be an integer >= 1"),
        ({"num_sampled": 2, "power": -1.0}, "finite power >= 0"),
        ({"num_sampled": 2, "smoothing": 0.0}, "finite smoothing > 0"),
        ({"num_sampled": 2, "learning_rate": float("inf")}, "a finite number, got inf"),
        ({"num_sampled": 2, "static_share": 0.0}, "static_share"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learned_clusters(**arguments)


def test_counts_that_are_no_numbers_are_an_error() -> None:
    broken = cx.Classes(CLASSES.vectors, None, CLASSES.counts.at[3].set(-1.0), CLASSES.num_valid)
    with pytest.raises(ValueError, match="learned_clusters: expected finite counts >= 0"):
        learned_clusters(2).init.__wrapped__(jax.random.key(0), broken)


def test_a_batch_that_is_not_finite_or_has_no_labels_teaches_nothing() -> None:
    sampler = learned_clusters(4, num_clusters=4)
    state = learn(sampler, 2)
    for query in (
        ask(np.full((4, DIM), np.nan), QUERY.labels),
        ask(QUERY.embeddings, np.full((4, 2), -1)),
    ):
        after = sampler.update(state, jax.random.key(0), query, jnp.arange(1), jnp.zeros((1, DIM)))
        jax.tree.map(np.testing.assert_array_equal, after, state)
