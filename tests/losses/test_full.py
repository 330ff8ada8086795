"""Full softmax, plain and in blocks, against float64 formulas written out by hand."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Classes
from candax.losses import css, ranking, sampled_softmax, subset_softmax
from candax.losses.full import full_softmax, over_all_classes

FORMS = [None, 128, 5000]
BATCH, DIM = 6, 12


def make(num_classes=700, num_valid=None, *, scale=1.0, biases=True, dtype=jnp.float32):
    rng = np.random.default_rng(7)
    num_valid = num_classes if num_valid is None else num_valid
    vectors = rng.normal(size=(num_classes, DIM))
    bias = rng.normal(size=num_classes)
    vectors[num_valid:] = np.nan
    bias[num_valid:] = np.nan
    labels = np.stack([rng.choice(num_valid, size=4, replace=False) for _ in range(BATCH)])
    labels[:, 0] = 3  # a class that every example shares: its gradients add up
    labels[1, 2:] = -1
    labels[2, [0, 2]] = -1  # padding anywhere in the row
    labels[3] = -1
    labels[4, 1:] = -1
    embeddings = jnp.asarray(rng.normal(size=(BATCH, DIM)) * scale, jnp.float32)
    classes = Classes(
        jnp.asarray(vectors, dtype), jnp.asarray(bias, jnp.float32) if biases else None, None, jnp.array(num_valid)
    )
    return embeddings, classes, jnp.asarray(labels, jnp.int32)


def reference(embeddings, classes, labels, weights):
    """Losses, and the gradients of their weighted sum, in float64."""
    n = int(classes.num_valid)
    e = np.asarray(embeddings, np.float64)
    v = np.asarray(classes.vectors, np.float64)[:n]
    logits = e @ v.T + (0 if classes.biases is None else np.asarray(classes.biases, np.float64)[:n])
    target = np.zeros_like(logits)
    for row, row_labels in enumerate(np.asarray(labels)):
        real = row_labels[row_labels >= 0]
        target[row, real] = 1 / max(len(real), 1)
    labelled = target.sum(axis=1) > 0
    largest = logits.max(axis=1, keepdims=True)
    log_normalizer = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
    losses = np.where(labelled, log_normalizer - (target * logits).sum(axis=1), 0)
    d_logits = (np.exp(logits - log_normalizer[:, None]) - target) * (weights * labelled)[:, None]
    padding = classes.num_classes - n
    d_vectors = np.pad(d_logits.T @ e, ((0, padding), (0, 0)))
    return losses, d_logits @ v, d_vectors, np.pad(d_logits.sum(axis=0), (0, padding))


def losses_and_gradients(embeddings, classes, labels, weights, block_size):
    def weighted(embeddings, vectors, biases):
        losses = full_softmax(
            embeddings, labels, Classes(vectors, biases, None, classes.num_valid), block_size=block_size
        )
        return jnp.sum(losses * weights), losses

    argnums = (0, 1) if classes.biases is None else (0, 1, 2)
    gradients, losses = jax.jit(jax.grad(weighted, argnums, has_aux=True))(embeddings, classes.vectors, classes.biases)
    return losses, *gradients


CASES = {
    "float32": {},
    "padding rows with NaN": {"num_valid": 650},
    "mostly padding": {"num_valid": 90},
    "no biases": {"biases": False, "num_valid": 650},
    "large logits": {"scale": 80 / DIM**0.5},
    "bfloat16 vectors": {"dtype": jnp.bfloat16, "num_valid": 650},
}


@pytest.mark.parametrize("block_size", FORMS)
@pytest.mark.parametrize("make_kwargs", CASES.values(), ids=CASES.keys())
def test_equals_float64_reference(make_kwargs, block_size):
    embeddings, classes, labels = make(**make_kwargs)
    weights = np.random.default_rng(1).normal(size=BATCH)
    actual = losses_and_gradients(embeddings, classes, labels, jnp.asarray(weights, jnp.float32), block_size)
    expected = reference(embeddings, classes, labels, weights)
    assert float(actual[0][3]) == 0  # no labels, no loss
    assert actual[0].dtype == jnp.float32
    for ours, exact in zip(actual, expected, strict=False):
        tolerance = 2e-2 if ours.dtype == jnp.bfloat16 else 2e-5
        scale = np.abs(exact).max()
        np.testing.assert_allclose(np.asarray(ours, np.float64), exact, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("block_size", [None, 128])
def test_gradient_of_logits_sums_to_zero(block_size):
    """Biases' gradients add up to nothing: what one class gains the others lose."""
    embeddings, classes, labels = make(num_valid=650)
    _, _, _, d_biases = losses_and_gradients(embeddings, classes, labels, jnp.ones(BATCH), block_size)
    assert abs(float(d_biases.sum())) < 1e-5
    assert (np.asarray(d_biases[650:]) == 0).all()


@pytest.mark.parametrize("block_size", [None, 128])
def test_extreme_logits_are_finite(block_size):
    vectors = jnp.concatenate([jnp.full((300, 1), 80.0), jnp.full((300, 1), -80.0)])
    classes = Classes(vectors, None, None, jnp.array(600))
    labels = jnp.array([[599, -1], [0, 599], [-1, -1]])
    result = losses_and_gradients(jnp.ones((3, 1)), classes, labels, jnp.ones(3), block_size)
    assert all(np.isfinite(np.asarray(part)).all() for part in result)
    np.testing.assert_allclose(result[0], [160 + np.log(300), 80 + np.log(300), 0], rtol=1e-6)


@pytest.mark.parametrize("block_size", [None, 4])
def test_only_valid_class_is_the_label(block_size):
    classes = Classes(jnp.full((9, 2), jnp.nan).at[0].set(1.0), None, None, jnp.array(1))
    result = losses_and_gradients(jnp.ones((1, 2)), classes, jnp.array([[0]]), jnp.ones(1), block_size)
    for part in result:
        np.testing.assert_allclose(part, 0, atol=1e-6)


def test_block_form_holds_no_logits_of_all_classes_and_no_second_table():
    num_classes, batch = 40_000, 64
    embeddings = jnp.ones((batch, 32))
    classes = Classes(jnp.ones((num_classes, 32)), jnp.ones(num_classes), None, jnp.array(num_classes))
    labels = jnp.zeros((batch, 3), jnp.int32)

    def scratch(block_size):
        def mean(embeddings, vectors, biases):
            return full_softmax(
                embeddings, labels, Classes(vectors, biases, None, classes.num_valid), block_size=block_size
            ).mean()

        step = jax.jit(jax.value_and_grad(mean, argnums=(0, 1, 2)))
        compiled = step.lower(embeddings, classes.vectors, classes.biases).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    table = num_classes * 32 * 4
    all_logits = batch * num_classes * 4
    assert scratch(None) >= all_logits  # the measure sees what it is meant to see
    assert scratch(1024) < min(table, all_logits) / 2


def test_wrong_block_size_is_refused():
    embeddings, classes, labels = make()
    with pytest.raises(ValueError, match="block_size"):
        full_softmax(embeddings, labels, classes, block_size=0)


@pytest.mark.parametrize("loss", [css, subset_softmax, sampled_softmax])
def test_any_likelihood_over_all_classes_is_the_full_softmax(loss):
    embeddings, classes, labels = make(num_valid=650)
    assert classes.biases is not None

    def both(full):
        def total(embeddings, vectors, biases):
            of_rows = dataclasses.replace(classes, vectors=vectors, biases=biases)
            return jnp.sum(full(embeddings, labels, of_rows))

        return jax.value_and_grad(total, argnums=(0, 1, 2))(embeddings, classes.vectors, classes.biases)

    (value, gradients), (wanted, wanted_gradients) = both(over_all_classes(loss)), both(full_softmax)
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    for got, exact in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-3, atol=1e-5)


def test_over_all_classes_a_ranking_knows_the_number_of_valid_classes():
    classes = Classes(jnp.zeros((12, 2)), None, None, jnp.array(10))
    labels = jnp.array([[3]])
    got = over_all_classes(ranking, num_classes=10)(jnp.ones((1, 2)), labels, classes)
    assert float(got[0]) == pytest.approx(9 * np.log(10), rel=1e-5)  # log(1 + e^log(9)) for each of 9 others
    told = cx.sampled_loss(jnp.ones((1, 2)), labels, classes, sampler=None, loss=over_all_classes(ranking))
    assert float(told) == pytest.approx(9 * np.log(10), rel=1e-5)


@pytest.mark.parametrize("block_size", [None, 128])
def test_a_normalised_layer_is_scored_by_cosines(block_size):
    embeddings, classes, labels = make(num_valid=650)
    vectors = classes.vectors
    by_hand = Classes(
        vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True), None, None, classes.num_valid, normalized=False
    )
    wanted = full_softmax(embeddings / jnp.linalg.norm(embeddings, axis=1, keepdims=True), labels, by_hand)
    got = full_softmax(
        embeddings, labels, Classes(vectors, None, None, classes.num_valid, normalized=True), block_size=block_size
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("block_size", [None, 64])
def test_a_frequent_label_counts_as_often_as_it_occurs_in_narrow_tables(block_size):
    """One by one, its 4096 terms would stop at 256 in bfloat16."""
    labels, tables = jnp.zeros((4096, 1), jnp.int32), (jnp.zeros((256, 4), jnp.bfloat16), jnp.zeros(256, jnp.bfloat16))

    def total(vectors, biases):
        classes = Classes(vectors, biases, None, jnp.int32(256))
        return jnp.sum(full_softmax(jnp.ones((4096, 4)), labels, classes, block_size=block_size))

    d_vectors, d_biases = jax.grad(total, argnums=(0, 1))(*tables)
    np.testing.assert_allclose(np.float32(d_vectors[0]), -4080, rtol=0.01)
    np.testing.assert_allclose(np.float32(d_biases[0]), -4080, rtol=0.01)
    np.testing.assert_allclose(np.float32(d_vectors[1:]), 16, rtol=0.01)


@pytest.mark.parametrize("label", [3, 4, 70_000, -2])
def test_a_label_out_of_range_is_nan_and_of_its_example_alone(label):
    classes = Classes(jnp.ones((4, 2)), None, None, jnp.int32(3))
    for loss in (full_softmax, over_all_classes(css)):
        found = loss(jnp.ones((2, 2)), jnp.array([[label], [1]]), classes)
        assert jnp.isnan(found).tolist() == [True, False]


@pytest.mark.parametrize("loss", [full_softmax, over_all_classes(css)])
def test_arrays_that_do_not_fit_are_refused(loss):
    classes = Classes(jnp.ones((4, 2)))
    with pytest.raises(ValueError, match=r"expected embeddings \[B, 2\], .* got \[1, 3\] and \[1, 1\]"):
        loss(jnp.ones((1, 3)), jnp.array([[1]]), classes)
    with pytest.raises(ValueError, match=r"labels.*\[B, T\].*got.*\[1\]"):
        loss(jnp.ones((1, 2)), jnp.array([1]), classes)


@pytest.mark.parametrize("loss", [full_softmax, partial(full_softmax, block_size=2), over_all_classes(css)])
def test_what_stands_beside_no_label_reaches_no_gradient(loss):
    embeddings = jnp.array([[1.0, 2.0], [jnp.nan, 1.0]])
    labels = jnp.array([[1], [-1]], jnp.int16)  # narrow ids are ids too

    def total(vectors):
        classes = Classes(vectors, None, None, jnp.int32(4))
        return jnp.sum(loss(embeddings, labels, classes))

    value, gradient = jax.value_and_grad(total)(jnp.zeros((4, 2)))
    np.testing.assert_allclose(value, np.log(4), rtol=1e-6)
    assert jnp.isfinite(gradient).all()
