"""The head: hits by brute force, scores by brute force, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax.models import Head, find_hits, heads, score
from candax.rows import Constant, Table


def random_labels(rng: np.random.Generator, batch_size: int, num_labels: int, num_classes: int = 60) -> np.ndarray:
    labels = np.stack([rng.permutation(num_classes)[:num_labels] for _ in range(batch_size)])
    return np.where(rng.random(labels.shape) < 0.3, -1, labels).astype(np.int32)


def hits_by_hand(labels: np.ndarray, ids: np.ndarray) -> np.ndarray:
    group = len(labels) // len(ids)
    return np.array([[int(c) in set(of.tolist()) for c in ids[b // group]] for b, of in enumerate(labels)])


@pytest.mark.parametrize("algorithm", ["compare", "sort"])
@pytest.mark.parametrize("num_groups", [1, 2, 3, 6])
def test_hits_are_those_of_brute_force(algorithm: str, num_groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_SORT_FROM", 1 if algorithm == "sort" else 10**6)
    rng = np.random.default_rng(num_groups)
    for num_labels in (1, 2, 3, 7, 15, 16, 17, 40):
        labels = random_labels(rng, 6, num_labels)
        ids = rng.integers(0, 60, (num_groups, 25)).astype(np.int32)  # with duplicates
        got = find_hits(jnp.asarray(labels), jnp.asarray(ids))
        assert got.dtype == jnp.bool_
        np.testing.assert_array_equal(got, hits_by_hand(labels, ids), err_msg=f"{num_labels} labels")


@pytest.mark.parametrize("algorithm", ["compare", "sort"])
def test_examples_without_labels_and_batches_without_label_slots(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_SORT_FROM", 1 if algorithm == "sort" else 10**6)
    ids = jnp.array([[0, 1, 59]], jnp.int32)
    assert not np.any(find_hits(jnp.full((4, 5), -1, jnp.int32), ids))


def test_no_label_slots_and_no_candidates() -> None:
    assert find_hits(jnp.zeros((4, 0), jnp.int32), jnp.zeros((1, 3), jnp.int32)).shape == (4, 3)
    assert find_hits(jnp.zeros((4, 2), jnp.int32), jnp.zeros((1, 0), jnp.int32)).shape == (4, 0)


@pytest.mark.parametrize("num_groups", [1, 2, 6])
@pytest.mark.parametrize("use_biases", [True, False])
def test_scores_are_those_of_brute_force(num_groups: int, use_biases: bool) -> None:
    rng = np.random.default_rng(num_groups)
    embeddings, vectors, biases = rng.normal(size=(6, 4)), rng.normal(size=(60, 4)), rng.normal(size=60)
    labels = random_labels(rng, 6, 3)
    ids = rng.integers(0, 60, (num_groups, 5)).astype(np.int32)
    counts, mask = rng.normal(size=ids.shape).astype(np.float32), rng.random(ids.shape) < 0.7
    real = np.maximum(labels, 0)
    true_counts = rng.normal(size=labels.shape).astype(np.float32)
    table, bias_table = jnp.asarray(vectors, jnp.float32), jnp.asarray(biases, jnp.float32)
    got = score(
        jnp.asarray(embeddings, jnp.float32),
        jnp.asarray(labels),
        cx.Candidates(jnp.asarray(ids), jnp.asarray(counts), jnp.asarray(mask)),
        jnp.asarray(true_counts),
        table[real],
        bias_table[real] if use_biases else None,
        table[ids],
        bias_table[ids] if use_biases else None,
        num_classes=60,
    )
    logits = embeddings @ vectors.T + (biases if use_biases else 0)
    of_example = np.repeat(np.arange(num_groups), 6 // num_groups)
    np.testing.assert_allclose(got.true, np.take_along_axis(logits, real, 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.sampled, np.take_along_axis(logits, ids[of_example], 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got.sampled_log_expected_count, counts[of_example])
    np.testing.assert_array_equal(got.sampled_mask, mask[of_example])
    np.testing.assert_array_equal(got.true_mask, labels >= 0)
    np.testing.assert_array_equal(got.true_log_expected_count, true_counts)
    np.testing.assert_array_equal(got.hits, hits_by_hand(labels, ids))
    assert got.num_classes == 60


def test_logits_of_bfloat16_tables_are_accumulated_in_float32() -> None:
    embeddings, vectors = jnp.ones((1, 512), jnp.bfloat16), jnp.full((1, 1, 512), 1.0, jnp.bfloat16)
    candidates = cx.Candidates(jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1)), jnp.ones((1, 1), bool))
    got = score(
        embeddings, jnp.array([[3]]), candidates, jnp.zeros((1, 1)), vectors, None, vectors, None, num_classes=5
    )
    assert got.true.dtype == got.sampled.dtype == jnp.float32
    assert got.true.tolist() == [[512.0]]


def test_head_pads_and_names_its_tables() -> None:
    head = Head(10, 4, num_rows=16, counts=jnp.arange(10.0), rngs=nnx.Rngs(0))
    classes = head.classes()
    assert classes.biases is not None
    assert classes.counts is not None
    assert classes.vectors.shape == (16, 4)
    assert classes.biases.shape == (16,)
    assert classes.counts.tolist() == [*range(10), *[0] * 6]
    assert classes.num_valid == 10
    assert classes.num_classes == 16
    assert isinstance(head.vectors, Table)
    assert isinstance(head.biases, Table)
    assert isinstance(head.counts, Constant)


def test_head_without_biases_and_counts() -> None:
    classes = Head(10, 4, use_biases=False, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)).classes()
    assert classes.biases is None
    assert classes.counts is None
    assert classes.vectors.dtype == jnp.bfloat16


def test_vectors_start_small() -> None:
    vectors = Head(4000, 64, rngs=nnx.Rngs(0)).classes().vectors
    np.testing.assert_allclose(jnp.std(vectors), 0.1 / 8, rtol=0.02)


@pytest.mark.parametrize(("num_classes", "dim", "num_rows"), [(0, 4, None), (10, 0, None), (10, 4, 9)])
def test_head_refuses_sizes(num_classes: int, dim: int, num_rows: int | None) -> None:
    with pytest.raises(ValueError, match="expected num_classes >= 1, dim >= 1 and num_rows >= num_classes"):
        Head(num_classes, dim, num_rows=num_rows, rngs=nnx.Rngs(0))


def test_head_refuses_counts_of_another_length() -> None:
    with pytest.raises(ValueError, match=r"counts of shape \(10,\), one a class, got \(9,\)"):
        Head(10, 4, counts=jnp.ones(9), rngs=nnx.Rngs(0))


def test_masked_slots_pass_no_gradient_to_vectors() -> None:
    """Through a loss: rows of pads and of masked candidates get a gradient of exactly 0."""
    rng = np.random.default_rng(0)
    embeddings = jnp.asarray(rng.normal(size=(2, 4)), jnp.float32)
    mask = jnp.array([[True, False, True]])
    candidates = cx.Candidates(jnp.array([[5, 6, 7]]), jnp.zeros((1, 3)), mask)

    def loss(true_vectors: jax.Array, sampled_vectors: jax.Array) -> jax.Array:
        labels = jnp.array([[1, -1], [2, 3]])
        logits = score(
            embeddings,
            labels,
            candidates,
            jnp.zeros((2, 2)),
            true_vectors,
            None,
            sampled_vectors,
            None,
            num_classes=9,
        )
        return jnp.sum(cx.losses.css(logits))

    of_true, of_sampled = jax.grad(loss, argnums=(0, 1))(
        jnp.asarray(rng.normal(size=(2, 2, 4)), jnp.float32), jnp.asarray(rng.normal(size=(1, 3, 4)), jnp.float32)
    )
    assert np.all(np.asarray(of_true)[0, 1] == 0)
    assert np.all(np.asarray(of_sampled)[0, 1] == 0)
    assert np.all(np.asarray(of_true)[1] != 0)
    assert np.all(np.asarray(of_sampled)[0, 0] != 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dim", [1, 64, 67, 96])
def test_a_large_table_is_drawn_in_parts_from_the_same_distribution(
    dim: int, dtype: jnp.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_AT_ONCE", 1)
    jax.clear_caches()
    vectors = Head(2000, dim, normalized=True, dtype=dtype, rngs=nnx.Rngs(0)).classes().vectors
    jax.clear_caches()
    assert vectors.dtype == dtype
    columns = np.asarray(vectors, np.float64).T * dim**0.5
    # Every column standard normal: means and deviations of 2000 numbers; no two columns alike.
    np.testing.assert_allclose(columns.mean(axis=1), 0, atol=5 / 2000**0.5)
    np.testing.assert_allclose(columns.std(axis=1), 1, atol=5 / 4000**0.5)
    between = columns @ columns.T / 2000 - np.eye(dim)
    assert np.abs(between - np.diag(np.diag(between))).max() < 6 / 2000**0.5
