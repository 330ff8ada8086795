"""Class vectors extended by bias and length, so that hashing finds classes by their logit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax import samplers
from tests.samplers.lsh.test_sampler import DIM, NUM_CLASSES, clustered, drawn, query_near


@pytest.mark.slow
def test_near_the_logit_finds_long_vectors_and_large_biases():
    """The best classes by logit, where lengths and biases decide and directions say little."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(size=(NUM_CLASSES, 1)))
    vectors = jnp.asarray(lengths * rng.normal(size=(NUM_CLASSES, DIM)), jnp.float32)
    classes = cx.Classes(vectors, jnp.asarray(3 * rng.normal(size=NUM_CLASSES), jnp.float32), None, jnp.int32(190))
    embeddings = jnp.asarray(rng.normal(size=(40, DIM)), jnp.float32)
    query = cx.Query(embeddings, jnp.zeros((40, 1), jnp.int32), classes)
    _, best, _ = cx.blocks.streaming_evaluate(embeddings, classes, 5)

    def recall_and_size(near):
        sampler = samplers.lsh(hash=samplers.simhash(), near=near, num_tables=12, num_hashes=6, capacity=None)
        _, found = drawn(sampler, query)
        share = np.mean([len(ids & set(wanted.tolist())) / 5 for ids, wanted in zip(found, best, strict=True)])
        return share, np.mean([len(ids) for ids in found])

    share, size = recall_and_size("logit")
    other_share, other_size = recall_and_size("vector")
    assert share > 0.4
    assert share / size > 1.2 * other_share / other_size


def test_a_row_that_changes_keeps_its_bias_and_moves():
    classes = dataclasses.replace(clustered(), biases=jnp.linspace(-1.0, 1.0, NUM_CLASSES))
    sampler = samplers.lsh(hash=samplers.simhash(), near="logit", num_tables=4, num_hashes=4, capacity=NUM_CLASSES)
    state = sampler.init(jax.random.key(0), classes)
    ids = jnp.array([5, 9, NUM_CLASSES], jnp.int32)
    rows = jnp.concatenate([0.5 * classes.vectors[jnp.array([70, 150])], jnp.zeros((1, DIM))])
    query = query_near(classes, [3])
    moved = jax.jit(sampler.update)(state, jax.random.key(1), query, ids, rows)
    # The same hash functions over the changed classes: what a build of them would have made.
    changed = dataclasses.replace(classes, vectors=classes.vectors.at[ids[:2]].set(rows[:2]))
    anew = sampler.update(state, jax.random.key(2), query, jnp.arange(NUM_CLASSES, dtype=jnp.int32), changed.vectors)
    np.testing.assert_array_equal(moved.tables.codes, anew.tables.codes)
    assert np.any(np.asarray(moved.tables.codes) != np.asarray(state.tables.codes))
    unchanged = sampler.update(
        state, jax.random.key(2), query, jnp.arange(NUM_CLASSES, dtype=jnp.int32), classes.vectors
    )
    np.testing.assert_array_equal(unchanged.tables.codes, state.tables.codes)
