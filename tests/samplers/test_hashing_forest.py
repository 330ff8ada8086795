"""The hashing forest: trees that halve, what a search finds, and what is kept of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import candax as cx
from candax import losses, samplers
from candax.blocks import streaming_top_k
from candax.samplers.common.found import EMPTY
from candax.samplers.forest import Forest
from tests.samplers.test_ivf_index import DIM, NUM_CLASSES, K, clustered, queries_near, recall
from tests.training import problems

NUM_VALID, LEAF = 2800, 24
_build = jax.jit(Forest.build, static_argnums=0)
_search = jax.jit(Forest.search, static_argnums=(0, 4, 5), static_argnames="by_votes")


@pytest.fixture(scope="module")
def classes():
    return clustered(num_valid=NUM_VALID)


@pytest.fixture(scope="module")
def forests(classes):
    """Of many trees, and of the first few of these."""
    many = Forest(48, LEAF, "vector")
    state = _build(many, jax.random.key(0), classes)

    def first(number):
        parts = {name: getattr(state, name)[:number] for name in ("ids", "pivots", "thresholds")}
        return many._replace(num_trees=number), dataclasses.replace(state, **parts)

    return {number: first(number) for number in (1, 8, 48)}


def test_every_tree_cuts_the_valid_classes_into_leaves_of_one_size(forests):
    _, state = forests[48]
    ids = np.asarray(state.ids)
    assert ids.shape == (48, 128, LEAF)  # 3000 / 24, rounded up to a power of two
    sizes = np.sum(ids < EMPTY, axis=2)
    assert sizes.max() - sizes.min() <= 1
    for tree in ids:
        np.testing.assert_array_equal(np.sort(tree[tree < EMPTY]), np.arange(NUM_VALID))
    assert np.any(ids[0] != ids[1])


def test_a_class_goes_down_to_its_own_leaf(forests, classes):
    """In one tree, whatever the length of its vector."""
    forest, state = forests[1]
    ids = np.random.default_rng(0).permutation(NUM_VALID)[:200]
    _, found = _search(forest, state, 7 * classes.vectors[ids], classes, LEAF)
    assert np.mean(np.any(np.asarray(found) == ids[:, None], axis=1)) > 0.99


def test_more_trees_find_more(forests, classes):
    queries = queries_near(classes)
    by_cosine = dataclasses.replace(classes, biases=None, normalized=True)
    _, best = streaming_top_k(queries, by_cosine, K)
    got = [recall(_search(*forests[number], queries, by_cosine, K)[1], best) for number in (1, 8, 48)]
    assert got[0] < got[1] < got[2]
    assert got[0] > 5 * LEAF / NUM_VALID  # of a random leaf: LEAF / NUM_VALID
    assert got[2] > 0.9


@pytest.mark.slow
def test_near_logit_finds_what_lengths_and_biases_make_large(forests, classes):
    queries = queries_near(classes)
    _, best = streaming_top_k(queries, classes, K)
    forest = Forest(48, LEAF, "logit")
    scores, ids = _search(forest, _build(forest, jax.random.key(0), classes), queries, classes, K)
    assert recall(ids, best) > recall(_search(*forests[48], queries, classes, K)[1], best)
    wanted = np.einsum("bd,bkd->bk", queries, classes.vectors[ids]) + classes.biases[ids]
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)
    assert np.all(np.diff(scores, axis=1) <= 0)


def leaves_of(forest, state, query, classes):
    """The classes of each tree's leaf, by plain Python."""
    unit = np.asarray(classes.vectors) / np.linalg.norm(classes.vectors, axis=1, keepdims=True)
    query = np.asarray(query) / np.linalg.norm(query)
    found = []
    for tree in range(forest.num_trees):
        node = 1
        while node < state.ids.shape[1]:
            one, other = np.asarray(state.pivots[tree, node])
            node = 2 * node + int((unit[one] - unit[other]) @ query >= state.thresholds[tree, node])
        leaf = np.asarray(state.ids[tree, node - state.ids.shape[1]])
        found.append(leaf[leaf < EMPTY])
    return found


def test_votes_are_the_trees_that_agree(forests, classes):
    forest, state = forests[8]
    queries = queries_near(classes, 4)
    voted, voted_ids = _search(forest, state, queries, classes, 12, by_votes=True)
    _, kept = _search(forest, state, queries, classes, K, 20)
    for row, query in enumerate(queries):
        ids, votes = np.unique(np.concatenate(leaves_of(forest, state, query, classes)), return_counts=True)
        order = np.lexsort((ids, -votes))
        np.testing.assert_array_equal(voted_ids[row], ids[order][:12])
        np.testing.assert_array_equal(voted[row], votes[order][:12])
        most = ids[order][:20]
        logits = np.asarray(classes.vectors)[most] @ query + np.asarray(classes.biases)[most]
        assert set(np.asarray(kept[row])) == set(most[np.argsort(-logits)[:K]])


def test_slots_without_a_class_are_masked():
    sampler = samplers.hashing_forest(10, num_trees=2, leaf_size=3)
    classes = clustered(num_valid=100)
    query = cx.Query(queries_near(classes, 4), jnp.zeros((4, 1), jnp.int32), classes)
    found = sampler.sample(sampler.init(jax.random.key(0), classes), jax.random.key(1), query)
    mask, ids = np.asarray(found.mask), np.asarray(found.ids)
    assert np.all(mask.sum(axis=1) <= 6)
    assert np.all(ids[~mask] == 0)
    assert np.all(ids[mask] < 100)


def test_equal_class_vectors_do_no_harm():
    classes = cx.Classes(jnp.ones((40, 3)), None, None, jnp.int32(33))
    sampler = samplers.hashing_forest(4, num_trees=3, leaf_size=5)
    state = sampler.init(jax.random.key(0), classes)
    query = cx.Query(jnp.ones((2, 3)), jnp.zeros((2, 1), jnp.int32), classes)
    found = sampler.sample(state, jax.random.key(1), query)
    assert bool(found.mask.all())
    assert np.all(np.isfinite(state.thresholds[:, 1:]))
    assert len(set(np.asarray(found.ids[0]))) == 4


def test_mass_keeps_the_classes_that_hold_it(forests, classes):
    arguments = {"num_trees": 8, "leaf_size": LEAF}
    whole, part = (samplers.hashing_forest(K, mass=mass, scale=0.3, **arguments) for mass in (None, 0.7))
    _, state = forests[8]
    query = cx.Query(queries_near(classes, 8), jnp.zeros((8, 1), jnp.int32), classes)
    every, some = (sampler.sample(state, jax.random.key(1), query) for sampler in (whole, part))
    logits = np.einsum("bd,bkd->bk", query.embeddings, classes.vectors[every.ids]) + classes.biases[every.ids]
    probabilities = np.exp(0.3 * logits) / np.exp(0.3 * logits).sum(1, keepdims=True)
    number = 1 + (np.cumsum(probabilities, axis=1) < 0.7).sum(axis=1)
    np.testing.assert_array_equal(np.asarray(some.mask).sum(axis=1), number)
    assert 1 <= number.min() < number.max() < K
    np.testing.assert_array_equal(np.asarray(some.ids)[some.mask], np.asarray(every.ids)[some.mask])


def test_trees_are_built_anew_every_thousand_steps_and_training_goes_on():
    sampler = samplers.hashing_forest(8, num_trees=6, leaf_size=8)
    assert [step for step in range(2500) if sampler.schedule(step)] == [1000, 2000]
    assert samplers.hashing_forest(8, schedule=lambda step: step == 3).schedule(3)
    training = problems.Training(problems.model(sampler, losses.subset_softmax), optax.sgd(0.1))
    before = np.array(training.sampler.ids)
    for step in range(3):
        assert np.isfinite(float(training.step(problems.Source()[0, step])))
    np.testing.assert_array_equal(training.sampler.ids, before)
    assert cx.refresh(training.model, 1000)
    assert np.any(np.asarray(training.sampler.ids) != before)
    assert np.isfinite(float(training.step(problems.Source()[0, 3])))


@pytest.mark.slow
def test_bfloat16_vectors_are_searched(forests, classes):
    forest, _ = forests[8]
    narrow = dataclasses.replace(classes, vectors=classes.vectors.astype(jnp.bfloat16))
    scores, _ = _search(forest, _build(forest, jax.random.key(0), narrow), queries_near(classes), narrow, K)
    assert scores.dtype == jnp.float32
    assert np.all(np.isfinite(scores))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "k"),
        ({"num_trees": 0}, "num_trees"),
        ({"leaf_size": 0}, "leaf_size"),
        ({"num_kept": 4}, "num_kept >= k"),
        ({"order": "best"}, "order"),
        ({"order": "votes", "mass": 0.9}, "leave them out"),
        ({"mass": 1.5}, "mass"),
        ({"scale": 0.0}, "scale"),
        ({"near": "far"}, "near"),
        ({"schedule": 0}, "schedule"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises(Exception, match=message):
        samplers.hashing_forest(**({"k": 5} | wrong))


def test_sizes():
    assert [Forest(1, 10, "vector").depth(n) for n in (1, 10, 11, 20, 21, 41)] == [0, 0, 1, 1, 2, 3]
    assert NUM_CLASSES > NUM_VALID > DIM
