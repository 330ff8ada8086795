"""Class vectors in bfloat16: what rounding to the nearest loses, stochastic rounding keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.losses import css, full_softmax
from tests.models.test_projection import AsTheyAre
from tests.training import problems

NUM_CLASSES, DIM, BATCH, STEPS = 40, 16, 64, 1500


def batch_of(index):
    rng = np.random.default_rng((7, index))
    teacher = np.random.default_rng(8).normal(size=(NUM_CLASSES, DIM))
    embeddings = rng.normal(size=(BATCH, DIM)).astype(np.float32)
    labels = np.argmax(embeddings @ teacher.T + rng.gumbel(size=(BATCH, NUM_CLASSES)), axis=1)
    return cx.data.Batch(np.zeros((BATCH, 1), np.int32), embeddings, labels[:, None].astype(np.int32))


def training(dtype, sampler, loss, rounding="nearest", optimizer=None, seed=0):
    head = cx.Head(NUM_CLASSES, DIM, sampler=sampler, loss=loss, dtype=dtype, rngs=nnx.Rngs(1))
    # A start that is far off, with numbers so large that a step is small beside them.
    start = 0.5 * np.random.default_rng(9).normal(size=(NUM_CLASSES, DIM))
    head.vectors[...] = jnp.asarray(start, jnp.bfloat16).astype(dtype)
    model = cx.models.Classifier(AsTheyAre(), head)
    return problems.Training(model, optax.sgd(1e-2) if optimizer is None else optimizer, rounding=rounding, seed=seed)


def loss_on_others(model):
    _, embeddings, labels = (np.concatenate(part) for part in zip(*(batch_of(1000 + i) for i in range(8)), strict=True))
    return float(jnp.mean(full_softmax(jnp.asarray(embeddings), jnp.asarray(labels), model.head.classes())))


@functools.cache
def after_training(dtype, full, rounding):
    """The loss before and after, on other examples."""
    sampler, loss = (None, full_softmax) if full else (cx.samplers.uniform(10), css)
    trained = training(dtype, sampler, loss, rounding)
    before = loss_on_others(trained.model)
    for i in range(STEPS):
        trained.step(batch_of(i % 200))
    assert trained.model.head.vectors.dtype == dtype
    return before, loss_on_others(trained.model)


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sampled", "full"])
def test_stochastic_rounding_trains_like_float32_where_rounding_to_the_nearest_stands_still(full):
    """Within 3 % of what float32 gains; to the nearest gains less than half of it."""
    before, wide = after_training(jnp.float32, full, "nearest")
    gain = before - wide
    assert gain > 0.3
    _, stochastic = after_training(jnp.bfloat16, full, "stochastic")
    _, nearest = after_training(jnp.bfloat16, full, "nearest")
    assert abs(stochastic - wide) < 0.03 * gain
    assert before - nearest < 0.5 * gain


def moments_of(trained):
    leaves = jax.tree.leaves(trained.optimizer.table_states.get_value())
    return [leaf for leaf in leaves if leaf.shape == (NUM_CLASSES, DIM)]


def test_rows_that_a_step_does_not_use_stay_bit_identical():
    trained = training(jnp.bfloat16, cx.samplers.uniform(3), css, "stochastic", optax.adam(1e-2))
    start = np.array(trained.model.head.vectors[...])
    batch = jax.tree.map(lambda array: array[:4], batch_of(0))
    assert [moment.dtype for moment in moments_of(trained)] == [jnp.float32] * 2
    trained.step(batch)
    changed = np.any(np.asarray(trained.model.head.vectors[...]) != start, axis=1)
    assert set(batch.labels.ravel()) <= set(np.flatnonzero(changed))
    assert changed.sum() <= 7
    touched = np.any(np.asarray(moments_of(trained)[0]) != 0, axis=1)
    np.testing.assert_array_equal(touched | changed, touched)


def test_the_same_seed_rounds_alike_and_another_does_not():
    def trained(seed):
        made = training(jnp.bfloat16, cx.samplers.top_k(5), css, "stochastic", seed=seed)  # nothing else is random
        for i in range(3):
            made.step(batch_of(i))
        return np.asarray(made.model.head.vectors[...], np.float32)

    np.testing.assert_array_equal(trained(0), trained(0))
    assert np.any(trained(0) != trained(1))


def test_another_word_is_refused():
    with pytest.raises(Exception, match="rounding"):
        training(jnp.bfloat16, None, full_softmax, "up")
