"""Kernel sampling: chances are the kernel's, and the tree of sums is that of the rows as they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Sampler
from candax.samplers import kernel
from candax.samplers.kernel import KernelTree, _by_weight
from tests.samplers.stated import expected_counts

NUM, PADDING, DIM = 27, 2, 6
RNG = np.random.default_rng(0)
VECTORS = np.concatenate([RNG.normal(size=(NUM, DIM)), np.full((PADDING, DIM), np.nan)]).astype(np.float32)
EMBEDDINGS = RNG.normal(size=(4, DIM)).astype(np.float32)


def classes_of(vectors: np.ndarray, normalized: bool = False) -> cx.Classes:
    return cx.Classes(jnp.asarray(vectors), None, None, jnp.int32(NUM), normalized)


CLASSES = classes_of(VECTORS)


def query_of(classes: cx.Classes) -> cx.Query:
    return cx.Query(jnp.asarray(EMBEDDINGS), jnp.zeros((4, 1), jnp.int32), classes)


def shares(sampler: Sampler, classes: cx.Classes = CLASSES, state: KernelTree | None = None) -> np.ndarray:
    """The chance of every class in one of 4 draws, per group."""
    found = expected_counts(sampler, query_of(classes), state) / 4
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert not found[:, NUM:].any()
    return found[:, :NUM]


def quadratic(vectors: np.ndarray, alpha: float, embeddings: np.ndarray = EMBEDDINGS) -> np.ndarray:
    found = alpha * (embeddings @ vectors[:NUM].T).astype(np.float64) ** 2 + 1
    return found / found.sum(axis=1, keepdims=True)


def test_chances_are_those_of_the_quadratic_kernel() -> None:
    for leaf_size in (1, 4, 64):
        found = shares(kernel(4, alpha=3.0, rank=None, leaf_size=leaf_size))
        np.testing.assert_allclose(found, quadratic(VECTORS, 3.0), rtol=1e-4)
    for groups in (1, 2):
        found = shares(kernel(4, alpha=3.0, rank=None, num_groups=groups))
        wanted = quadratic(VECTORS, 3.0).reshape(groups, -1, NUM).mean(axis=1)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    cosines = classes_of(VECTORS, normalized=True)
    rows, embeddings = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (VECTORS, EMBEDDINGS))
    found = shares(kernel(4, alpha=3.0, rank=None), cosines)
    np.testing.assert_allclose(found, quadratic(rows, 3.0, embeddings), rtol=1e-4)


def test_a_few_directions_keep_what_vectors_of_that_rank_have() -> None:
    low = np.concatenate([VECTORS[:NUM, :2] @ RNG.normal(size=(2, DIM)), VECTORS[NUM:]]).astype(np.float32)
    found = shares(kernel(4, alpha=3.0, rank=2), classes_of(low))
    np.testing.assert_allclose(found, quadratic(low, 3.0), rtol=1e-3)


def test_many_positive_features_are_near_the_softmax_and_few_are_above_zero() -> None:
    truth = np.asarray(jax.nn.softmax(0.3 * EMBEDDINGS @ VECTORS[:NUM].T, axis=1))
    found = shares(kernel(4, features="positive", num_features=20_000, rank=None, scale=0.3))
    np.testing.assert_allclose(found, truth, rtol=0.3)
    assert shares(kernel(4, features="positive", num_features=2, scale=4.0)).min() > 0


def test_places_of_a_leaf_are_drawn_by_weight() -> None:
    weights = np.array([3.0, 0.0, 1.0, 0.5, 4.5], np.float32)
    rows = jnp.broadcast_to(jnp.asarray(weights), (1 << 15, 5))
    place = jax.jit(_by_weight)(jax.random.key(0), rows)[:, 0]
    rate = np.bincount(np.asarray(place), minlength=5) / (1 << 15)
    assert rate[1] == 0
    np.testing.assert_allclose(rate, weights / 9, atol=5 * 0.5 / 2**7.5)


def test_a_place_of_little_weight_beside_a_large_one_has_its_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running sum in float32 would not see the second place, and a uniform float32 would be 0 too often."""
    weights = jnp.array([[1.0, 3e-8, 0.0]])
    for bits, place in ((100, 1), (128, 1), (129, 0), (200, 0)):  # 3e-8 is 128.8 units of 2^-32
        drawn = functools.partial(jnp.full, fill_value=bits, dtype=jnp.uint32)
        monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype, drawn=drawn: drawn(shape))
        assert _by_weight(jax.random.key(0), weights).tolist() == [[place]]


@pytest.mark.parametrize("features", ["quadratic", "positive"])
def test_sums_follow_the_rows_that_change(features: str) -> None:
    sampler = kernel(4, features=features, rank=None, num_features=16, leaf_size=3)
    state = sampler.init(jax.random.key(0), CLASSES)
    changed, ids = VECTORS.copy(), np.array([0, 4, 5, 13, 26])
    changed[ids] = 0.5 * RNG.normal(size=(5, DIM))
    fillers = np.arange(3) + NUM + PADDING
    row_ids = jnp.asarray(np.concatenate([ids, [NUM], fillers]), jnp.int32)
    rows = jnp.concatenate([jnp.asarray(changed[ids]), jnp.full((4, DIM), jnp.nan)])
    followed = sampler.update(state, jax.random.key(1), query_of(CLASSES), row_ids, rows)
    anew = sampler.refresh(state, jax.random.key(0), classes_of(changed))
    if features == "quadratic":
        np.testing.assert_allclose(followed.sums[1:], anew.sums[1:], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(shares(sampler, state=followed), quadratic(changed, 100.0), rtol=1e-4)
    depth = np.log2(len(state.sums)) - 1
    for level in range(int(depth)):
        parents = np.asarray(followed.sums[1 << level : 2 << level])
        children = np.asarray(followed.sums[2 << level : 4 << level])
        np.testing.assert_allclose(parents, children[0::2] + children[1::2], rtol=1e-5)
    shares(sampler, state=followed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"leaf_size": 0}, "leaf_size to be an integer >= 1"),
        ({"rank": 0}, "rank to be an integer >= 1"),
        ({"alpha": 0.0}, "finite alpha > 0"),
        ({"scale": 0.0}, "finite scale > 0"),
        ({"features": "cosine"}, "features"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(4, **arguments)
