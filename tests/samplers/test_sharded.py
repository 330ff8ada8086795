"""Samplers of shards: whose classes have no counts, and outside a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx

COUNTS = jnp.array([1.0, 2, 3, 4, 0, 0, 0, 0])
CLASSES = cx.Classes(jnp.zeros((8, 2)), None, COUNTS, jnp.int32(8))
QUERY = cx.Query(jnp.zeros((2, 2)), jnp.array([[1], [6]]), CLASSES)


def weights_and_counts(sampler, draws=400):
    """The mean over draws of 1 / count of the candidates, by class; and the counts of all classes, of each draw."""
    sampler = cx.samplers.sharded(sampler, 2)
    state = sampler.init(jax.random.key(0), CLASSES)

    @jax.jit
    @jax.vmap
    def draw(key):
        drawn = sampler.sample(state, key, QUERY)
        counts = sampler.log_expected_count(state, drawn, jnp.arange(8)[None], QUERY)
        weights = jnp.where(drawn.mask, jnp.exp(-drawn.log_expected_count), 0)
        return jnp.zeros(8).at[drawn.ids].add(weights), counts[0]

    weights, counts = draw(jax.random.split(jax.random.key(1), draws))
    return np.mean(weights, axis=0), counts


@pytest.mark.parametrize("part", [cx.samplers.unigram(8), cx.samplers.in_batch()], ids=["unigram", "in_batch"])
def test_a_mixture_covers_a_shard_without_counts(part):
    weights, counts = weights_and_counts(cx.samplers.mixture([cx.samplers.uniform(16), part]))
    assert np.isfinite(counts).all()
    np.testing.assert_allclose(weights[4:], 1, atol=0.1)


@pytest.mark.parametrize("replacement", [True, False])
def test_classes_of_a_shard_without_counts_cannot_be_drawn(replacement):
    weights, counts = weights_and_counts(cx.samplers.unigram(4, replacement=replacement))
    assert np.isneginf(counts[:, 4:]).all()
    assert (weights[4:] == 0).all()


def test_outside_a_program_it_is_compiled_once():
    traced = []
    of_shard = cx.samplers.uniform(4).share(2)

    def sample(*arguments):
        traced.append(1)
        return of_shard.sample(*arguments)

    made = cx.samplers.uniform(4)._replace(share=lambda number: of_shard._replace(sample=sample))
    for _ in range(3):
        sampler = cx.samplers.sharded(made, 2)
        drawn = sampler.sample(sampler.init(jax.random.key(0), CLASSES), jax.random.key(1), QUERY)
    assert drawn.ids.shape == (1, 4)
    assert len(traced) == 1


@pytest.mark.parametrize("beside", [(), (cx.samplers.uniform(16),)], ids=["in_batch", "mixture"])
def test_labels_of_all_shards_count_for_each(beside):
    """The one law over batches: also where a shard often has no label."""
    frequencies = np.arange(1, 17.0) ** -2 / np.sum(np.arange(1, 17.0) ** -2)
    classes = cx.Classes(np.zeros((16, 2), np.float32), None, jnp.asarray(1e6 * frequencies, jnp.float32))
    parts = cx.samplers.mixture([cx.samplers.in_batch(), *beside]) if beside else cx.samplers.in_batch()
    sampler = cx.samplers.sharded(parts, 4)
    state = sampler.init(jax.random.key(0), classes)

    @jax.jit
    @jax.vmap
    def weights(key):
        labels = jax.random.choice(key, 16, (16, 1), p=jnp.asarray(frequencies))
        drawn = sampler.sample(state, key, cx.Query(jnp.zeros((16, 2)), labels, classes))
        return jnp.zeros(16).at[drawn.ids].add(jnp.where(drawn.mask, jnp.exp(-drawn.log_expected_count), 0))

    found = np.asarray(weights(jax.random.split(jax.random.key(1), 20_000)), np.float64)
    error = found.std(axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - 1) < 5 * error)
    assert np.all(error < 0.06)


def test_a_batch_without_labels_has_no_part_in_a_mixture():
    sampler = cx.samplers.mixture([cx.samplers.in_batch(), cx.samplers.uniform(8)])
    state = sampler.init(jax.random.key(0), CLASSES)
    query = cx.Query(jnp.zeros((2, 2)), jnp.full((2, 1), -1), CLASSES)
    drawn = sampler.sample(state, jax.random.key(1), query)
    np.testing.assert_allclose(drawn.log_expected_count[drawn.mask], 0, atol=1e-6)


def test_a_mesh_without_the_axis_is_refused():
    with pytest.raises(ValueError, match="expected a mesh with the axis 'classes', got one with 'x'"):
        cx.samplers.sharded(cx.samplers.uniform(4), 2, mesh=jax.make_mesh((1,), ("x",)))
