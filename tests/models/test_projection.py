"""Random projection: the slimmed model trains like any other, and its projection stays as it was drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.models import Classifier, RandomProjection, SparseMLP
from tests.training import problems


class AsTheyAre(nnx.Module):
    """Embeddings are what the batch holds: nothing to train."""

    def __call__(self, batch):
        return jnp.asarray(batch.feature_values)


def test_training_reaches_the_tables_of_the_inner_encoder_and_leaves_the_projection():
    inner = SparseMLP(problems.NUM_FEATURES, 16, rngs=nnx.Rngs(0))
    encoder = RandomProjection(inner, 16, problems.DIM, rngs=nnx.Rngs(3))
    model = Classifier(encoder, cx.Head(problems.NUM_CLASSES, problems.DIM, rngs=nnx.Rngs(1)))
    training = problems.Training(model, optax.adam(3e-2))
    bag, projection = np.array(inner.bag[...]), np.array(encoder.projection[...])
    source = problems.Source(batch_size=64, num_labels=1)
    values = [float(training.step(source[0, i % 10])) for i in range(60)]
    assert np.mean(values[-5:]) < 0.8 * np.mean(values[:5])
    assert np.any(np.asarray(inner.bag[...]) != bag)
    np.testing.assert_array_equal(encoder.projection[...], projection)
    batch = problems.Source()[0, 0]
    np.testing.assert_allclose(
        cx.training.embed(model, batch), encoder.project(Classifier(inner, model.head)(batch)), atol=1e-5
    )


def test_projection_keeps_inner_products_on_average():
    rng = np.random.default_rng(0)
    a, b = jnp.asarray(rng.normal(size=(2, 1, 40)), jnp.float32)
    projected = []
    for seed in range(300):
        encoder = RandomProjection(AsTheyAre(), 40, 10, rngs=nnx.Rngs(seed))
        projected.append(float((encoder.project(a) @ encoder.project(a).T - a @ a.T)[0, 0]))
    error = np.std(projected) / np.sqrt(len(projected))
    assert abs(np.mean(projected)) < 4 * error < 0.2 * float((a @ a.T)[0, 0])
    assert b.shape == (1, 40)


def test_a_full_classifier_with_projected_back_vectors_has_the_same_logits():
    encoder = RandomProjection(AsTheyAre(), 12, 5, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    embeddings, vectors = rng.normal(size=(3, 12)).astype(np.float32), rng.normal(size=(7, 5)).astype(np.float32)
    full = vectors @ np.asarray(encoder.projection[...]).T
    np.testing.assert_allclose(encoder.project(jnp.asarray(embeddings)) @ vectors.T, embeddings @ full.T, atol=1e-4)


def test_the_projection_is_narrower_than_its_encoder_and_is_no_parameter():
    with pytest.raises(ValueError, match="num_projected <= dim"):
        RandomProjection(AsTheyAre(), 8, 9, rngs=nnx.Rngs(0))
    encoder = RandomProjection(AsTheyAre(), 8, 4, rngs=nnx.Rngs(0))
    assert jax.tree.leaves(nnx.split(encoder, nnx.Param, ...)[1]) == []
