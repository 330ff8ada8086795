"""Sample grouping, with any retriever."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import candax as cx
from candax import samplers
from candax.base import Retriever, no_follow
from candax.samplers import classes_per_example, grouped
from candax.samplers.common.found import EMPTY
from candax.samplers.grouping import _best

BATCH, K, LABELS, NUM_CLASSES = 6, 5, 2, 40


def told():
    """A retriever that returns its state: scores and ids."""
    return Retriever(
        build=lambda key, classes: (),
        search=lambda state, query, k: state,
        follow=no_follow,
        refresh=lambda state, key, classes: state,
        kind="told",
    )


@functools.cache
def compiled(num_sampled, num_groups):
    sampler = grouped(told(), num_sampled=num_sampled, num_groups=num_groups)
    everything = jnp.arange(NUM_CLASSES, dtype=jnp.int32)

    def run(state, key, query):
        """Candidates, and the expected counts of all classes."""
        drawn = sampler.sample(state, key, query)
        ids = jnp.broadcast_to(everything, (drawn.ids.shape[0], NUM_CLASSES))
        return drawn, jnp.exp(sampler.log_expected_count(state, drawn, ids, query))

    return jax.jit(run)


def distinct_rows(rng, rows, columns, bound):
    return np.stack([rng.permutation(bound)[:columns] for _ in range(rows)]).astype(np.int32)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.sampled_from([(30, 1), (9, 2), (3, 3), (50, 2)]),
    num_valid=st.sampled_from([40, 33, 8]),
)
def test_a_group_has_its_labels_its_best_and_a_fill(seed, sizes, num_valid):
    num_sampled, num_groups = sizes
    rng = np.random.default_rng(seed)
    ids = distinct_rows(rng, BATCH, K, num_valid)
    mask = rng.random((BATCH, K)) < 0.8
    scores = np.where(mask, rng.normal(size=(BATCH, K)), -np.inf).astype(np.float32)
    labels = distinct_rows(rng, BATCH, LABELS, num_valid)
    labels[:, 1] = np.where(rng.random(BATCH) < 0.5, -1, labels[:, 1])
    classes = cx.Classes(jnp.zeros((NUM_CLASSES, 1)), None, None, jnp.int32(num_valid))
    query = cx.Query(jnp.zeros((BATCH, 1)), jnp.asarray(labels), classes)
    state = (jnp.asarray(scores), jnp.asarray(ids))
    drawn, counts = compiled(num_sampled, num_groups)(state, jax.random.key(seed % 1000), query)
    counts = np.asarray(counts)
    assert drawn.ids.shape == (num_groups, num_sampled)
    each = BATCH // num_groups
    for group in range(num_groups):
        of_group = slice(group * each, (group + 1) * each)
        chosen = np.asarray(drawn.ids)[group][np.asarray(drawn.mask)[group]].tolist()
        assert len(chosen) == len(set(chosen)) == min(num_sampled, num_valid)
        assert max(chosen) < num_valid
        positives = set(labels[of_group][labels[of_group] >= 0].tolist())
        best: dict[int, float] = {}
        for c, real, score in zip(ids[of_group].ravel(), mask[of_group].ravel(), scores[of_group].ravel(), strict=True):
            if real and c not in positives:
                best[int(c)] = max(best.get(int(c), -np.inf), float(score))
        found = positives | set(best)
        if len(found) <= num_sampled:
            assert found <= set(chosen)
            free = num_sampled - len(found)
            wanted = min(1.0, free / max(num_valid - len(found), 1))
            np.testing.assert_allclose(counts[group, sorted(found)], 1.0)
            others = [c for c in range(num_valid) if c not in found]
            np.testing.assert_allclose(counts[group, others], wanted, rtol=1e-5)
        elif len(positives) <= num_sampled:
            order = sorted(best, key=lambda c: -best[c])
            assert set(chosen) == positives | set(order[: num_sampled - len(positives)])
            assert set(np.flatnonzero(counts[group])) == set(chosen)
        else:
            assert set(chosen) <= positives
            assert set(np.flatnonzero(counts[group])) == set(chosen)
        assert np.all(counts[group, num_valid:] == 0)


def test_the_fill_is_uniform_over_the_others():
    classes = cx.Classes(jnp.eye(30), None, None, jnp.int32(28))
    query = cx.Query(jnp.eye(30)[:4], jnp.array([[10], [11], [12], [-1]]), classes)
    sampler = grouped(samplers.top_k(2), num_sampled=14, num_groups=2)
    keys = jax.random.split(jax.random.key(0), 8000)
    drawn = jax.jit(jax.vmap(lambda key: sampler.sample((), key, query)))(keys)
    rate = np.stack([np.bincount(np.asarray(drawn.ids)[:, group].ravel(), minlength=30) for group in range(2)]) / 8000
    first = sampler.sample((), jax.random.key(0), query)
    everything = jnp.broadcast_to(jnp.arange(30), (2, 30))
    stated = np.exp(np.asarray(sampler.log_expected_count((), first, everything, query)))
    error = np.sqrt(stated * (1 - stated) / 8000)
    assert np.all(np.abs(rate - stated) <= 5 * error + 1e-6)
    assert np.any(np.abs(1.1 * rate - stated) > 5 * error)


@pytest.mark.parametrize(
    "retriever",
    [
        samplers.top_k(3),
        samplers.lsh_top_k(3, hash=samplers.simhash(), num_tables=2, num_hashes=2),
    ],
    ids=["top_k", "lsh_top_k"],
)
def test_any_retriever_can_be_grouped(retriever):
    vectors = jax.random.normal(jax.random.key(0), (NUM_CLASSES, 8))
    classes = cx.Classes(vectors, None, None, jnp.int32(NUM_CLASSES))
    query = cx.Query(vectors[:BATCH], jnp.arange(BATCH)[:, None] + 20, classes)
    sampler = grouped(retriever, num_sampled=20, num_groups=2)
    state = jax.jit(sampler.init)(jax.random.key(1), classes)
    alone = jax.jit(retriever.sample)(state, jax.random.split(jax.random.key(2))[0], query)
    drawn = jax.jit(sampler.sample)(state, jax.random.key(2), query)
    for group in range(2):
        of_group = slice(3 * group, 3 * group + 3)
        wanted = set(alone.ids[of_group][alone.mask[of_group]].tolist()) | set(range(20 + 3 * group, 23 + 3 * group))
        assert wanted <= set(drawn.ids[group].tolist())
    updated = sampler.update(state, jax.random.key(0), query, jnp.array([0]), vectors[:1])
    assert jax.tree.structure(updated) == jax.tree.structure(state)


def test_classes_per_example_is_equation_8():
    assert classes_per_example(10_000, batch_size=4096, num_groups=64) == 156
    assert classes_per_example(100, batch_size=4096, num_groups=1) == 1


def test_what_cannot_be_grouped_is_refused():
    with pytest.raises(ValueError, match="without replacement"):
        grouped(samplers.uniform(4), num_sampled=4)
    classes = cx.Classes(jnp.eye(8), None, None, jnp.int32(8))
    query = cx.Query(jnp.eye(8)[:4], jnp.zeros((4, 1), jnp.int32), classes)
    shared = samplers.uniform(2, replacement=False)
    sampler = grouped(shared, num_sampled=4)
    with pytest.raises(ValueError, match="one set per example"):
        sampler.sample(sampler.init(jax.random.key(0), classes), jax.random.key(0), query)
    with pytest.raises(ValueError, match="divide"):
        grouped(samplers.top_k(1), num_sampled=4, num_groups=3).sample((), jax.random.key(0), query)
    with pytest.raises(ValueError, match="num_sampled"):
        grouped(samplers.top_k(1), num_sampled=0)


@pytest.mark.parametrize("num_classes", [50, 1 << 28])
def test_classes_that_many_examples_want_count_by_their_best_place(num_classes):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (3, 60)).astype(np.int32)
    ids[:, ::7] = EMPTY
    order = rng.permutation(180).reshape(3, 60).astype(np.uint32)
    found = jax.jit(_best, static_argnums=(2, 3))(ids, order, 20, num_classes)
    for group in range(3):
        best = {}
        for i, place in zip(ids[group], order[group], strict=True):
            if i != EMPTY:
                best[int(i)] = min(int(place), best.get(int(i), 1 << 30))
        assert np.asarray(found.ids[group]).tolist() == sorted(sorted(best, key=lambda i: best[i])[:20])
