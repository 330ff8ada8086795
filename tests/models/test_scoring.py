"""Hits and logits by brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax.models import scoring
from candax.models.scoring import find_hits, score


def random_labels(rng: np.random.Generator, batch_size: int, num_labels: int, num_classes: int = 60) -> np.ndarray:
    labels = np.stack([rng.permutation(num_classes)[:num_labels] for _ in range(batch_size)])
    return np.where(rng.random(labels.shape) < 0.3, -1, labels).astype(np.int32)


def hits_by_hand(labels: np.ndarray, ids: np.ndarray) -> np.ndarray:
    group = len(labels) // len(ids)
    return np.array([[int(c) in set(of.tolist()) for c in ids[b // group]] for b, of in enumerate(labels)])


@pytest.mark.parametrize("algorithm", ["compare", "sort"])
@pytest.mark.parametrize("num_groups", [1, 2, 3, 6])
def test_hits_are_those_of_brute_force(algorithm: str, num_groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_SORT_FROM", 1 if algorithm == "sort" else 10**6)
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
    monkeypatch.setattr(scoring, "_SORT_FROM", 1 if algorithm == "sort" else 10**6)
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
    true = jnp.einsum("bd,btd->bt", embeddings, table[real]) + (bias_table[real] if use_biases else 0)
    got = score(
        true,
        jnp.asarray(embeddings, jnp.float32),
        jnp.asarray(labels),
        cx.Candidates(jnp.asarray(ids), jnp.asarray(counts), jnp.asarray(mask)),
        jnp.asarray(true_counts),
        table[ids],
        bias_table[ids] if use_biases else None,
        num_classes=60,
    )
    logits = embeddings @ vectors.T + (biases if use_biases else 0)
    of_example = np.repeat(np.arange(num_groups), 6 // num_groups)
    np.testing.assert_array_equal(got.true, true)
    np.testing.assert_allclose(got.sampled, np.take_along_axis(logits, ids[of_example], 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got.sampled_log_expected_count, counts[of_example])
    np.testing.assert_array_equal(got.sampled_mask, mask[of_example])
    np.testing.assert_array_equal(got.true_mask, labels >= 0)
    np.testing.assert_array_equal(got.true_log_expected_count, true_counts)
    np.testing.assert_array_equal(got.hits, hits_by_hand(labels, ids))
    assert got.num_classes == 60


def test_logits_of_bfloat16_tables_are_accumulated_in_float32() -> None:
    """Ones and then sums of them: in bfloat16, 256 + 1 would be 256."""
    vectors = jnp.ones((5, 512), jnp.bfloat16)
    seen = []

    def loss(logits: cx.SampledLogits) -> jax.Array:
        seen.append(logits)
        return cx.losses.css(logits)

    sampler, key = cx.samplers.uniform(3), jax.random.key(0)
    cx.sampled_loss(
        vectors[:1],
        jnp.array([3]),
        cx.Classes(vectors),
        sampler=sampler,
        state=sampler.init(key, cx.Classes(vectors)),
        key=key,
        loss=loss,
    )
    assert seen[0].true.dtype == seen[0].sampled.dtype == jnp.float32
    assert set(seen[0].true.ravel().tolist() + seen[0].sampled.ravel().tolist()) == {512.0}


def test_masked_slots_pass_no_gradient_to_vectors() -> None:
    """Through a loss: rows of pads and of masked candidates get a gradient of exactly 0."""
    rng = np.random.default_rng(0)
    embeddings = jnp.asarray(rng.normal(size=(2, 4)), jnp.float32)
    candidates = cx.Candidates(jnp.array([[5, 6, 7]]), jnp.zeros((1, 3)), jnp.array([[True, False, True]]))

    def loss(true: jax.Array, sampled_vectors: jax.Array) -> jax.Array:
        labels = jnp.array([[1, -1], [2, 3]])
        counts = jnp.zeros((2, 2))
        return jnp.sum(
            cx.losses.css(
                score(true, embeddings, labels, candidates, counts, sampled_vectors, None, num_classes=9),
            )
        )

    of_true, of_sampled = jax.grad(loss, argnums=(0, 1))(
        jnp.asarray(rng.normal(size=(2, 2)), jnp.float32), jnp.asarray(rng.normal(size=(1, 3, 4)), jnp.float32)
    )
    assert np.asarray(of_true)[0, 1] == 0
    assert np.all(np.asarray(of_sampled)[0, 1] == 0)
    assert np.all(np.asarray(of_true)[1] != 0)
    assert np.all(np.asarray(of_sampled)[0, 0] != 0)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("num_groups", [1, None])
def test_many_candidates_looked_up_apart_change_nothing(
    num_groups: int | None, normalized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sampler that leaves slots without a candidate."""
    h, labels = jax.random.normal(jax.random.key(0), (8, 6)), jnp.arange(16).reshape(8, 2) % 11 - 1
    found = []
    for apart in (0, 1 << 14):
        monkeypatch.setattr(scoring, "_APART", apart)
        sampler = cx.samplers.bernoulli(5.0, num_groups=num_groups, num_slots=12)
        options = {"counts": np.arange(40) + 1.0, "normalized": normalized, "rngs": nnx.Rngs(0)}
        head = cx.Head(40, 6, sampler=sampler, loss=cx.losses.css, **options)
        found.append(cx.value_and_grad(lambda head: head.loss(h, labels))(head))
    (one, first), (other, second) = found
    np.testing.assert_allclose(one, other, rtol=1e-6)
    for name in first.rows:
        np.testing.assert_array_equal(first.rows[name].ids, second.rows[name].ids)
        np.testing.assert_allclose(first.rows[name].rows, second.rows[name].rows, atol=1e-6)
