"""Random projection: the slimmed model trains through the ordinary seams, and the full classifier is recovered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.models import Classifier, RandomProjection, SparseMLP, recover
from tests.training import problems

NUM_CLASSES, DIM, PROJECTED, WEIGHT_DECAY = 6, 96, 48, 0.05


class AsTheyAre(nnx.Module):
    """Embeddings are what the batch holds: nothing to train."""

    def __call__(self, batch):
        return jnp.asarray(batch.feature_values)


def batches(number=4, batch_size=64, rank=3):
    """Embeddings of low rank, labels by a linear teacher; some examples have two labels, some none."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(DIM, rank)))[0].T
    teacher = rng.normal(size=(NUM_CLASSES, DIM))
    made = []
    for _ in range(number):
        embeddings = 2 * rng.normal(size=(batch_size, rank)) @ basis + 0.01 * rng.normal(size=(batch_size, DIM))
        labels = np.argsort(-embeddings @ teacher.T, axis=1)[:, :2]
        labels[:, 1] = np.where(rng.random(batch_size) < 0.8, -1, labels[:, 1])
        labels[:3] = -1
        ids = np.zeros(embeddings.shape, np.int32)
        made.append(cx.data.Batch(ids, embeddings.astype(np.float32), labels.astype(np.int32)))
    return made


def together(parts):
    return cx.data.Batch(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def trained(encoder, dim):
    """To the minimum, by gradient descent on all examples."""
    model = Classifier(encoder, cx.Head(NUM_CLASSES, dim, rngs=nnx.Rngs(2)))
    batch = together(batches())
    training = problems.Training(model, optax.chain(optax.add_decayed_weights(WEIGHT_DECAY), optax.sgd(0.5)))
    for _ in range(400):
        training.step(batch)
    return model


@functools.cache
def slim():
    return trained(RandomProjection(AsTheyAre(), DIM, PROJECTED, rngs=nnx.Rngs(1)), PROJECTED)


def vectors_of(model):
    return np.asarray(model.head.vectors[...])[:NUM_CLASSES]


def test_recovered_class_vectors_are_the_trained_ones_when_projected():
    """The optimality condition of the slimmed model, and a check that every example counted once."""
    recovered = recover(slim(), batches(), weight_decay=WEIGHT_DECAY)
    projection = np.asarray(slim().encoder.projection[...])
    wanted = vectors_of(slim())
    np.testing.assert_allclose(vectors_of(recovered) @ projection, wanted, atol=1e-3 * np.abs(wanted).max())
    np.testing.assert_array_equal(recovered.head.biases[...][:NUM_CLASSES], slim().head.biases[...][:NUM_CLASSES])
    assert recovered.head.vectors.shape == (NUM_CLASSES, DIM)
    in_blocks = recover(slim(), batches(2, 128), weight_decay=WEIGHT_DECAY, block_size=4)
    assert in_blocks.head.vectors.shape == (NUM_CLASSES, DIM)


def test_recovered_class_vectors_are_near_those_of_the_full_problem():
    full, recovered, plain = (
        trained(AsTheyAre(), DIM),
        recover(slim(), batches(), weight_decay=WEIGHT_DECAY),
        recover(slim()),
    )
    away = [np.linalg.norm(vectors_of(model) - vectors_of(full)) for model in (recovered, plain)]
    length = np.linalg.norm(vectors_of(full))
    assert away[0] < 0.35 * length
    assert away[0] < 0.5 * away[1]


def test_without_weight_decay_the_logits_are_those_of_the_slimmed_model():
    batch, plain = batches(1)[0], recover(slim())
    logits = [model(batch) @ model.head.vectors[...].T + model.head.biases[...] for model in (slim(), plain)]
    np.testing.assert_allclose(*logits, atol=1e-4)
    assert plain.encoder is slim().encoder.encoder


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


def test_what_cannot_be_recovered_is_said():
    with pytest.raises(ValueError, match="RandomProjection as its encoder"):
        recover(problems.model())
    with pytest.raises(ValueError, match="got batches alone"):
        recover(slim(), batches(1))
    with pytest.raises(ValueError, match="got none"):
        recover(slim(), [], weight_decay=0.1)
    with pytest.raises(ValueError, match="weight_decay > 0"):
        recover(slim(), batches(1), weight_decay=0.0)
    encoder = RandomProjection(AsTheyAre(), 8, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="normalized=False"):
        recover(Classifier(encoder, cx.Head(5, 4, normalized=True, rngs=nnx.Rngs(0))))
    with pytest.raises(ValueError, match="num_projected <= dim"):
        RandomProjection(AsTheyAre(), 8, 9, rngs=nnx.Rngs(0))
    assert jax.tree.leaves(nnx.split(encoder, nnx.Param, ...)[1]) == []
