"""A bias of -1e9 or -inf says that a class is never to be predicted: an index finds the others as well as without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.samplers.common.keys import class_keys, longest_key

NUM_CLASSES, DIM, K = 1500, 16, 10

indexes = {
    "ivf mean": cx.samplers.ivf_index(num_centers=8, hm_num=NUM_CLASSES, num_kept=400, codes="mean", near="logit"),
    "ivf rotated": cx.samplers.ivf_index(num_centers=8, hm_num=NUM_CLASSES, num_kept=100, codes="rotated"),
    "ivf rotated, logit": cx.samplers.ivf_index(num_centers=8, hm_num=400, num_kept=100, codes="rotated", near="logit"),
    "ivf int8": cx.samplers.ivf_index(num_centers=8, hm_num=NUM_CLASSES, num_kept=20, codes="int8"),
    "forest": cx.samplers.forest_index(num_trees=10, leaf_size=32, near="logit"),
    "lsh": cx.samplers.lsh_index(hash=cx.samplers.simhash(), num_tables=16, num_hashes=6, near="logit"),
}


def some_classes(bias, share):
    """Every ``1 / share``-th class has this bias."""
    rng = np.random.default_rng(0)
    biases = rng.normal(size=NUM_CLASSES)
    biases[7 :: round(1 / share)] = bias
    vectors = jnp.asarray(rng.normal(size=(NUM_CLASSES, DIM)), jnp.float32)
    return cx.Classes(vectors, jnp.asarray(biases, jnp.float32), None, jnp.int32(NUM_CLASSES))


embeddings = jnp.asarray(np.random.default_rng(1).normal(size=(50, DIM)), jnp.float32)


@pytest.mark.parametrize("name", indexes)
def test_the_other_classes_are_found_as_before(name):
    index = indexes[name]
    build = jax.jit(lambda classes: index.build(jax.random.key(0), classes))
    find = jax.jit(lambda state, classes: index.find(state, embeddings, classes, K))

    def recall(bias, share):
        classes = some_classes(bias, share)
        wanted = cx.samplers.exact_index().find((), embeddings, classes, K)[1]
        scores, found = find(build(classes), classes)
        kept = np.where(np.asarray(scores) > -np.inf, np.asarray(found), -1)
        assert not np.isin(np.arange(7, NUM_CLASSES, round(1 / share)), kept).any() or bias == 0.0
        return np.mean([np.isin(best, mine).mean() for best, mine in zip(np.asarray(wanted), kept, strict=True)])

    usual = recall(0.0, 1 / NUM_CLASSES)
    assert usual > 0.4
    for bias, share in ((-1e9, 1 / NUM_CLASSES), (-jnp.inf, 1 / NUM_CLASSES), (-1e9, 1 / 4)):
        assert recall(bias, share) > usual - 0.05, (bias, share)


@pytest.mark.parametrize("bias", [-1e9, -np.inf])
def test_groups_want_what_they_wanted(bias):
    """Logits of different examples are compared in units of their deviation."""
    index = cx.samplers.ivf_index(num_centers=8, hm_num=NUM_CLASSES, num_kept=K, codes="int8")
    classes = some_classes(bias, 1 / 4)
    state = jax.jit(index.build)(jax.random.key(0), classes)
    query = cx.Query(embeddings[:48], jnp.full((48, 1), -1), classes)
    scores, ids = jax.jit(index.shortlist, static_argnums=(2, 3, 4))(state, query, 4, 100, 300)
    wanted = np.asarray(cx.samplers.exact_index().find((), query.embeddings, classes, K)[1])
    held = [
        np.isin(best, np.asarray(ids)[i // 12][np.asarray(scores)[i // 12] > -np.inf]).mean()
        for i, best in enumerate(wanted)
    ]
    assert np.mean(held) > 0.95


def test_the_length_of_keys_is_that_of_the_other_classes():
    vectors = jnp.array([[3.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    for bias in (-1e9, -jnp.inf):
        classes = cx.Classes(vectors, jnp.array([4.0, bias, 0.0]), None, jnp.int32(3))
        assert float(longest_key(classes, "logit")) == 5.0
        keys = class_keys(vectors, classes.biases, longest_key(classes, "logit"))
        np.testing.assert_allclose(keys[:2], [[3.0, 0.0, 4.0, 0.0], [0.0, 1.0, -5.0, 0.0]])
