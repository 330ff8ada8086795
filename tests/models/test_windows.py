"""Windows over runs, against plain loops; and training by runs against training by gathered labels."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from tests.training import problems


@pytest.mark.parametrize(("length", "window"), [(70, 3), (5, 4), (40, 20)])
def test_window_products_are_those_of_a_loop(length, window):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 2, length, 4)).astype(np.float32)
    weights = rng.normal(size=(2, length, 2 * window)).astype(np.float32)
    logits, sums = np.zeros((2, length, 2 * window)), np.zeros((2, length, 4))
    for i in range(length):
        for slot, offset in enumerate([*range(-window, 0), *range(1, window + 1)]):
            if 0 <= i + offset < length:
                logits[:, i, slot] = np.sum(left[:, i] * right[:, i + offset], axis=1)
                sums[:, i] += weights[:, i, slot, None] * right[:, i + offset]
    left, right, weights = map(jnp.asarray, (left, right, weights))
    np.testing.assert_allclose(cx.models.window_logits(left, right, window), logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(cx.models.window_sums(weights, right, window), sums, rtol=1e-5, atol=1e-5)


class ByLabels(NamedTuple):
    """A batch that does not say that its labels are neighbours."""

    words: Any
    labels: Any


@pytest.mark.parametrize("use_biases", [False, True])
def test_a_step_by_runs_is_the_step_by_labels(use_biases):
    """Same tables, same candidates: that labels are neighbours changes how rows are read, and nothing else."""
    text = cx.data.words_of("x", [[f"w{i * j % 23}" for j in range(1, 40)] for i in range(30)], min_count=1)
    batch = cx.data.WindowBatches(text, 64, 0, window=3, run_length=32)[0, 0]

    def training():
        encoder = cx.models.SkipGram(text.num_words, 6, rngs=nnx.Rngs(0))
        sampler, loss = cx.samplers.uniform(8, num_groups=2), cx.recipes.words.word2vec_loss(5)
        head = cx.Head(text.num_words, 6, biases=use_biases, sampler=sampler, loss=loss, rngs=nnx.Rngs(1))
        return problems.Training(cx.models.Classifier(encoder, head), optax.sgd(0.5))

    by_runs, by_labels, start = training(), training(), training().tables
    losses = [by_runs.step(batch), by_labels.step(ByLabels(batch.words, batch.labels))]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for name, table in by_runs.tables.items():
        assert float(jnp.max(jnp.abs(table - start[name]))) > 1e-3
        np.testing.assert_allclose(table, by_labels.tables[name], rtol=1e-4, atol=1e-6)


def test_cbow_averages_the_neighbours():
    encoder = cx.models.CBOW(9, 4, rngs=nnx.Rngs(0))
    model = cx.models.Classifier(encoder, cx.Head(9, 4, biases=False, rngs=nnx.Rngs(1)))
    neighbours = np.array([[[False, True], [True, True], [False, False]]])
    batch = SimpleNamespace(words=np.array([[3, 4, 5]]), neighbours=neighbours)
    words = np.asarray(encoder.words[...])
    expected = [words[4], (words[3] + words[5]) / 2, np.zeros(4)]
    np.testing.assert_allclose(model(batch), expected, atol=1e-6)


def test_neighbours_stand_on_both_sides():
    vectors = jnp.ones((1, 3, 1))
    for number, window in ((3, 1), (2, 2), (4, 1)):
        with pytest.raises(ValueError, match=rf"expected weights \[R, L, {2 * window}\]"):
            cx.models.window_sums(jnp.ones((1, 3, number)), vectors, window)
    batch = SimpleNamespace(words=jnp.array([[1, 2, 3]]), neighbours=jnp.ones((1, 3, 3), bool))
    with pytest.raises(ValueError, match=r"expected neighbours bool\[R, L, 2 w\]"):
        cx.models.CBOW(10, 2, rngs=nnx.Rngs(0))(batch)
    assert cx.models.window_sums(jnp.ones((0, 3, 2)), vectors[:0], 1).shape == (0, 3, 1)
    assert cx.models.window_sums(jnp.ones((1, 0, 2)), vectors[:, :0], 1).shape == (1, 0, 1)


@pytest.mark.parametrize(
    ("words", "embeddings", "labels"),
    [((1, 3), (3, 4), (3, 3)), ((1, 3), (3, 4), (3,)), ((1, 3), (4, 4), (4, 2)), ((3,), (3, 4), (3, 2))],
)
def test_runs_of_other_shapes_are_refused(words, embeddings, labels):
    head = cx.Head(9, 4, sampler=cx.samplers.uniform(2), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"expected runs \[R, L\]"):
        head.loss(jnp.ones(embeddings), jnp.ones(labels, jnp.int32), runs=jnp.ones(words, jnp.int32))


def test_sizes_below_one_are_refused():
    for kind in (cx.models.CBOW, cx.models.SkipGram):
        with pytest.raises(ValueError, match="expected num_words to be"):
            kind(0, 4, rngs=nnx.Rngs(0))
