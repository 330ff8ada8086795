"""Evaluation in batches and blocks equals the formulas on the whole test set at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax.base import Classes
from candax.data import Batches, Dataset, Examples
from candax.losses.full import full_softmax
from candax.training.evaluation import evaluate
from candax.training.metrics import inverse_propensities, ranking_metrics

N, NUM_LABELS, DIM, BATCH = 45, 300, 8, 16


class Inputs(NamedTuple):
    features: np.ndarray
    scale: np.ndarray


@jax.jit
def embed(inputs: Inputs):
    return inputs.features * inputs.scale[:, None]


def make(num_padding=0):
    rng = np.random.default_rng(3)
    dense = rng.random((N, NUM_LABELS)) < 0.02
    dense[:, 0] |= rng.random(N) < 0.5
    dense[9] = False
    dense[20, :200] = True  # one example with many labels
    features = rng.normal(size=(N, DIM)).astype(np.float32)
    vectors = rng.normal(size=(NUM_LABELS + num_padding, DIM)).astype(np.float32)
    vectors[NUM_LABELS:] = np.nan
    biases = rng.normal(size=NUM_LABELS + num_padding).astype(np.float32)
    classes = Classes(jnp.asarray(vectors), jnp.asarray(biases), None, jnp.array(NUM_LABELS))
    return features, classes, dense


def batches(features, rows=None):
    """Batches of one size; the last one is filled up with rows of NaN."""
    rows = np.arange(N) if rows is None else rows
    for start in range(0, len(rows), BATCH):
        chosen = rows[start : start + BATCH]
        inputs = np.full((BATCH, DIM), np.nan, np.float32)
        inputs[: len(chosen)] = features[chosen] / 2
        in_order = (np.diff(chosen) == 1).all()
        yield Inputs(inputs, np.full(BATCH, 2, np.float32)), slice(chosen[0], chosen[-1] + 1) if in_order else chosen


def expected_metrics(features, classes, dense, counts, num_train):
    logits = features.astype(np.float64) @ np.asarray(classes.vectors, np.float64)[:NUM_LABELS].T
    logits += np.asarray(classes.biases, np.float64)[:NUM_LABELS]
    largest = logits.max(axis=1, keepdims=True)
    log_p = logits - largest - np.log(np.exp(logits - largest).sum(axis=1, keepdims=True))
    labelled = dense.any(axis=1)
    means = (log_p * dense).sum(axis=1)[labelled] / dense.sum(axis=1)[labelled]
    top_ids = np.argsort(-logits, axis=1)[:, :5]
    ranking = ranking_metrics(top_ids, csr_array(dense), inverse_propensities(counts, num_train))
    return {"log_likelihood": means.mean(), **ranking}


@pytest.mark.parametrize("num_padding", [0, 33])
def test_equals_formulas_on_the_whole_set(num_padding):
    features, classes, dense = make(num_padding)
    counts = np.arange(NUM_LABELS)
    metrics = evaluate(embed, classes, batches(features), csr_array(dense), counts, 1000, block_size=128)
    expected = expected_metrics(features, classes, dense, counts, 1000)
    assert metrics.keys() == expected.keys()
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert metrics["num_examples"] == N - 1


def test_subset_in_any_order():
    features, classes, dense = make()
    rows = np.random.default_rng(0).permutation(N)[:21]
    counts = np.ones(NUM_LABELS)
    metrics = evaluate(embed, classes, batches(features, rows), csr_array(dense), counts, 50)
    assert metrics == pytest.approx(expected_metrics(features[rows], classes, dense[rows], counts, 50), rel=1e-5)


def test_log_likelihood_is_minus_the_mean_full_softmax():
    features, classes, dense = make()
    labels = np.full((N, dense.sum(axis=1).max()), -1, np.int32)
    for row in range(N):
        labels[row, : dense[row].sum()] = np.flatnonzero(dense[row])
    losses = full_softmax(jnp.asarray(features), jnp.asarray(labels), classes)
    metrics = evaluate(embed, classes, batches(features), csr_array(dense), np.ones(NUM_LABELS), 50)
    assert metrics["log_likelihood"] == pytest.approx(-float(losses.sum()) / (N - 1), rel=1e-5)


def test_fewer_classes_than_ranks():
    """Slots beyond the last class are misses, though their ids are in range."""
    classes = Classes(jnp.eye(4)[:, :2], None, None, jnp.array(2))
    labels = csr_array(np.array([[1, 0], [1, 1]]))
    inputs = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    metrics = evaluate(jnp.asarray, classes, [(inputs, slice(0, 2))], labels, np.ones(2), 10)
    assert metrics["p_at_5"] == pytest.approx((1 / 5 + 2 / 5) / 2)
    assert metrics["ndcg_at_5"] == pytest.approx(1)


def test_classes_that_are_no_column_of_the_labels_are_misses():
    """The output layer may have more classes than the labels have columns, and they may be predicted."""
    inputs = np.array([[0.0, 0.0, 2.0], [0.0, 1.0, 0.0]], np.float32)
    labels = csr_array(np.array([[1, 0], [0, 1]]))
    metrics = evaluate(jnp.asarray, Classes(jnp.eye(3)), [(inputs, slice(0, 2))], labels, np.ones(2), 10, k=3)
    assert metrics["p_at_1"] == 1 / 2
    assert metrics["ndcg_at_3"] == pytest.approx((1 / np.log2(3) + 1) / 2)


def test_metrics_up_to_k_only():
    features, classes, dense = make()
    metrics = evaluate(embed, classes, batches(features), csr_array(dense), np.ones(NUM_LABELS), 50, k=3)
    assert "p_at_3" in metrics
    assert "p_at_5" not in metrics


def test_wrong_arguments_are_refused():
    features, classes, dense = make()
    labels = csr_array(dense)
    counts = np.ones(NUM_LABELS)
    few = Classes(classes.vectors, classes.biases, None, jnp.array(NUM_LABELS - 1))
    with pytest.raises(ValueError, match="labels below 299"):
        evaluate(embed, few, batches(features), labels, counts, 50)
    with pytest.raises(ValueError, match="one count for each of 300"):
        evaluate(embed, classes, batches(features), labels, counts[:-1], 50)
    with pytest.raises(ValueError, match="an embedding for each of 17 rows"):
        evaluate(embed, classes, [(next(batches(features))[0], slice(0, 17))], labels, counts, 50)
    with pytest.raises(ValueError, match="at least one batch"):
        evaluate(embed, classes, [], labels, counts, 50)


def test_class_vectors_that_are_computed_are_those_of_now():
    items = nnx.Linear(6, DIM, rngs=nnx.Rngs(0))

    class Items(nnx.Module):
        def __init__(self):
            self.items = items

        def __call__(self, ids):
            return self.items(jax.nn.one_hot(ids, 6))

    sampler = cx.samplers.every(cx.samplers.top_k(3), 100)
    head = cx.Head(6, vectors=Items(), sampler=sampler, loss=cx.losses.css, rngs=nnx.Rngs(1))
    model = cx.models.Classifier(cx.models.SparseMLP(5, DIM, rngs=nnx.Rngs(2)), head)
    examples = Examples(csr_array(np.eye(5, dtype=np.float32)), csr_array(np.eye(5, 6, dtype=bool)))
    items.kernel[...] = jnp.zeros_like(items.kernel[...])  # they were others when the sampler's index was built
    dataset = Dataset("tiny", examples, examples)
    measured = cx.training.evaluate_dataset(model, dataset, Batches(examples, 5, seed=0))
    assert measured["log_likelihood"] == pytest.approx(-np.log(6), rel=1e-5)


def soft_cap(logits):
    return 2 * jnp.tanh(logits / 2)


@pytest.mark.parametrize("transform", [soft_cap, lambda logits: -logits])
def test_logits_are_transformed_as_the_head_does(transform):
    features, classes, dense = make()
    logits = transform(jnp.asarray(features) @ classes.vectors.T + classes.biases)
    as_vectors = Classes(jnp.eye(NUM_LABELS), None, None, jnp.array(NUM_LABELS))
    labels, counts = csr_array(dense), np.ones(NUM_LABELS)
    wanted = evaluate(jnp.asarray, as_vectors, [(logits, slice(0, N))], labels, counts, 50)
    found = evaluate(embed, classes, batches(features), labels, counts, 50, block_size=128, transform=transform)
    assert found == pytest.approx(wanted, rel=1e-5)
