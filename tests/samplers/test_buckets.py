"""Buckets: what is searched for, what is found, and the union with a tail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.samplers import buckets, exact_index, unigram, with_tail

NUM_CLASSES, DIM, K = 40, 4, 3
CLASSES = cx.Classes(jnp.asarray(np.random.default_rng(0).normal(size=(NUM_CLASSES, DIM)), jnp.float32))


def query_of(embeddings):
    return cx.Query(jnp.asarray(embeddings, jnp.float32), jnp.full((len(embeddings), 1), 7), CLASSES)


def noting(asked):
    """The exact index, which notes what it is asked for."""

    def search(state, query, k):
        asked.append(np.asarray(query.embeddings))
        return exact_index().search(state, query, k)

    return exact_index()._replace(search=search)


def test_a_group_has_the_best_classes_of_its_directions():
    own = np.random.default_rng(1).normal(size=(8, DIM))
    asked: list[np.ndarray] = []
    sampler = buckets(noting(asked), K, num_directions=5, num_groups=2)
    drawn = sampler.sample((), jax.random.key(0), query_of(own))
    everything = jnp.broadcast_to(jnp.arange(NUM_CLASSES), (2, NUM_CLASSES))
    counts = np.exp(np.asarray(sampler.log_expected_count((), drawn, everything, query_of(own))))
    assert drawn.ids.shape == (2, 5 * K)
    for group in range(2):
        made, of_group = asked[0].reshape(2, 5, DIM)[group], own.reshape(2, 4, DIM)[group]
        np.testing.assert_allclose((made**2).sum(1).mean(), (of_group**2).sum(1).mean(), rtol=1e-5)
        best = set(np.argsort(-made @ np.asarray(CLASSES.vectors).T, axis=1)[:, :K].ravel().tolist())
        found = np.asarray(drawn.ids)[group][np.asarray(drawn.mask)[group]].tolist()
        assert sorted(found) == sorted(best)  # each once
        assert set(np.flatnonzero(counts[group])) == best | {7}
        assert set(counts[group]) == {0.0, 1.0}
    assert not np.array_equal(drawn.ids, sampler.sample((), jax.random.key(1), query_of(own)).ids)


def test_of_a_single_embedding_it_searches_for_that_or_the_opposite():
    own, asked = np.eye(DIM)[:2] * [[2.0], [3.0]], []
    buckets(noting(asked), K, num_directions=1, num_groups=None).sample((), jax.random.key(0), query_of(own))
    np.testing.assert_allclose(np.abs(asked[0]), own, rtol=1e-5)
    buckets(noting(asked), K).sample((), jax.random.key(0), query_of(0 * own))
    assert np.all(asked[1] == 0)


def test_before_a_tail_the_normalizer_has_no_bias_and_less_noise():
    query = query_of(3 * np.random.default_rng(2).normal(size=(2, DIM)))
    counted = cx.Classes(CLASSES.vectors, None, jnp.arange(1.0, NUM_CLASSES + 1))
    truth = np.exp(np.asarray(query.embeddings @ CLASSES.vectors.T)).sum(1)

    def estimates(sampler):
        state = sampler.init(jax.random.key(0), counted)

        def one(key):
            drawn = sampler.sample(state, key, query)
            logits = query.embeddings @ CLASSES.vectors[drawn.ids[0]].T
            return jnp.sum(jnp.where(drawn.mask, jnp.exp(logits - drawn.log_expected_count), 0.0), axis=1)

        return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 4000)))

    found = estimates(with_tail(buckets(exact_index(), K, num_directions=4), unigram(8)))
    error = found.std(0) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(0) - truth) < 5 * error)
    assert np.all(5 * error < 0.1 * truth)
    assert np.all(found.std(0) < 0.7 * estimates(unigram(8)).std(0))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="num_directions"):
        buckets(exact_index(), K, num_directions=0)
    with pytest.raises(ValueError, match="num_groups to divide"):
        buckets(exact_index(), K, num_groups=3).sample((), jax.random.key(0), query_of(np.eye(DIM)))


def test_directions_of_long_embeddings_of_16_bits_are_finite():
    asked: list[np.ndarray] = []
    sampler = buckets(noting(asked), K, num_directions=5)
    vectors = CLASSES.vectors.astype(jnp.float16)
    query = cx.Query(300 * vectors[:4], jnp.full((4, 1), -1), cx.Classes(vectors))
    drawn = sampler.sample((), jax.random.key(0), query)
    assert np.isfinite(asked[0]).all()
    assert asked[0].dtype == np.float16
    assert drawn.mask.any()
