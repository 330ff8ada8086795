"""Neighbours of the labels: against a sort of all cosines, from the graph and anew, one set or many."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.samplers import knn_label


def classes_of(num_valid: int = 50, num_rows: int = 53, seed: int = 0) -> cx.Classes:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(num_rows, 4)) * 10.0 ** rng.uniform(-1, 1, size=(num_rows, 1))
    vectors[num_valid:] = np.nan
    return cx.Classes(jnp.asarray(vectors, jnp.float32), jnp.full(num_rows, 9.0), None, jnp.int32(num_valid))


def neighbours_by_hand(classes: cx.Classes, k: int) -> np.ndarray:
    num_valid = int(classes.num_valid)
    vectors = np.asarray(classes.vectors, np.float64)[:num_valid]
    along = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.argsort(-(along @ along.T) + 3 * np.eye(num_valid), axis=1)[:, :k]


LABELS = np.array([[5, 9], [9, -1], [-1, -1], [2, 30]])


@pytest.mark.parametrize("num_groups", [1, 2, None])
@pytest.mark.parametrize("from_graph", [True, False])
def test_labels_and_their_neighbours_each_once(from_graph, num_groups, monkeypatch):
    monkeypatch.setattr(sys.modules["candax.samplers.knn_label"], "_QUERIES", 16)  # the graph in several blocks
    classes = classes_of()
    sampler = knn_label(6, from_graph=from_graph, num_groups=num_groups, block_size=16)
    query = cx.Query(jnp.zeros((4, 4)), jnp.asarray(LABELS, jnp.int32), classes)
    state = sampler.init(jax.random.key(0), classes)
    found = sampler.sample(state, jax.random.key(1), query)
    nearest = neighbours_by_hand(classes, 6)
    for ids, mask, of_group in zip(found.ids, found.mask, np.split(LABELS, num_groups or 4), strict=True):
        real = of_group[of_group >= 0]
        wanted = set(real.tolist()) | set(nearest[real].ravel().tolist())
        assert sorted(np.asarray(ids)[np.asarray(mask)].tolist()) == sorted(wanted)
    everything = jnp.broadcast_to(jnp.arange(50), (found.ids.shape[0], 50))
    counts = np.asarray(sampler.log_expected_count(state, found, everything, query))
    np.testing.assert_array_equal((counts == 0).sum(axis=1), np.asarray(found.mask).sum(axis=1))
    assert set(np.unique(counts).tolist()) == {0.0, -np.inf}


def test_the_graph_is_that_of_the_last_refresh():
    old, new = classes_of(), classes_of(seed=1)
    sampler = knn_label(3, schedule=lambda step: step == 5)
    state = sampler.init(jax.random.key(0), old)
    query = cx.Query(jnp.zeros((1, 4)), jnp.array([[7]]), new)

    def neighbours(state):
        found = sampler.sample(state, jax.random.key(1), query)
        return set(np.asarray(found.ids)[np.asarray(found.mask)].tolist()) - {7}

    assert neighbours(state) == set(neighbours_by_hand(old, 3)[7].tolist())
    assert neighbours(sampler.refresh(state, jax.random.key(0), new)) == set(neighbours_by_hand(new, 3)[7].tolist())
    assert sampler.schedule(5)
    assert not sampler.schedule(4)


def test_equal_vectors_and_more_neighbours_than_classes():
    classes = cx.Classes(jnp.ones((8, 2)), None, None, jnp.int32(5))
    query = cx.Query(jnp.zeros((1, 2)), jnp.array([[4]]), classes)
    for k, wanted in ((2, {0, 1, 4}), (9, {0, 1, 2, 3, 4})):
        sampler = knn_label(k)
        found = sampler.sample(sampler.init(jax.random.key(0), classes), jax.random.key(1), query)
        assert set(np.asarray(found.ids)[np.asarray(found.mask)].tolist()) == wanted


def test_refuses_numbers_that_make_no_sense():
    for wrong in ({"k": 0}, {"k": 1, "num_groups": 0}, {"k": 1, "block_size": 0}):
        with pytest.raises(ValueError, match="integer >= 1"):
            knn_label(**wrong)
