"""The exact top-k sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.base import Candidates, Classes, Query
from candax.samplers.top_k import top_k

KEY = jax.random.key(0)


def make_query(num_classes=500, num_valid=430, batch=8, dim=10):
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(num_classes, dim)).astype(np.float32)
    vectors[num_valid:] = np.nan
    biases = rng.normal(size=num_classes).astype(np.float32)
    labels = rng.integers(0, num_valid, size=(batch, 1)).astype(np.int32)
    labels = np.concatenate([labels, (labels + 1) % num_valid, np.full_like(labels, -1)], axis=1)
    classes = Classes(jnp.asarray(vectors), jnp.asarray(biases), None, jnp.array(num_valid))
    return Query(jnp.asarray(rng.normal(size=(batch, dim)), jnp.float32), jnp.asarray(labels), classes)


def test_returns_the_best_classes_of_each_example():
    query = make_query()
    sampler = top_k(20, block_size=128)
    candidates = jax.jit(sampler.sample)(sampler.init(KEY, query.classes), KEY, query)
    logits = np.asarray(query.embeddings @ query.classes.vectors.T + query.classes.biases)[:, :430]
    np.testing.assert_array_equal(candidates.ids, np.argsort(-logits, axis=1)[:, :20])
    assert candidates.ids.dtype == jnp.int32
    assert np.asarray(candidates.mask).all()
    np.testing.assert_array_equal(candidates.log_expected_count, 0)


def test_expected_count_is_one_for_retrieved_classes_and_labels_only():
    query = make_query()
    sampler = top_k(20)
    candidates = sampler.sample((), KEY, query)
    every_id = jnp.broadcast_to(jnp.arange(430, dtype=jnp.int32), (8, 430))
    log_count = np.asarray(jax.jit(sampler.log_expected_count)((), candidates, every_id, query))
    for row in range(8):
        known = {*candidates.ids[row].tolist(), *query.labels[row, :2].tolist()}
        assert set(np.flatnonzero(log_count[row] == 0)) == known
        assert (log_count[row] == -np.inf).sum() == 430 - len(known)
    at_returned = sampler.log_expected_count((), candidates, candidates.ids, query)
    np.testing.assert_array_equal(at_returned, candidates.log_expected_count)


def test_excess_slots_are_masked_and_in_range():
    query = make_query(num_classes=30, num_valid=12)
    sampler = top_k(20)
    candidates = sampler.sample((), KEY, query)
    np.testing.assert_array_equal(np.asarray(candidates.mask).sum(axis=1), 12)
    for ids, mask in zip(np.asarray(candidates.ids), np.asarray(candidates.mask), strict=True):
        assert sorted(ids[mask]) == list(range(12))
        assert ((ids >= 0) & (ids < 12)).all()
    assert np.isfinite(candidates.log_expected_count).all()


def test_masked_slots_do_not_count_as_retrieved():
    query = make_query()
    candidates = Candidates(jnp.array([[9, 0]] * 8), jnp.zeros((8, 2)), jnp.array([[True, False]] * 8))
    query = Query(query.embeddings, jnp.full((8, 1), -1), query.classes)
    log_count = top_k(2).log_expected_count((), candidates, jnp.array([[9, 0]] * 8), query)
    np.testing.assert_array_equal(log_count, [[0, -np.inf]] * 8)


def test_keeps_no_state():
    query = make_query()
    sampler = top_k(3)
    state = sampler.init(KEY, query.classes)
    assert state == ()
    assert sampler.refresh(state, KEY, query.classes) == ()
    assert sampler.update(state, KEY, query, jnp.array([0]), query.classes.vectors[:1]) == ()
    assert not sampler.schedule(0)


@pytest.mark.parametrize("kwargs", [{"k": 0}, {"k": 1, "block_size": 0}])
def test_wrong_sizes_are_refused(kwargs):
    with pytest.raises(ValueError, match=r"expected (k|block_size) to be"):
        top_k(**kwargs)
