"""The inverted file: what it finds, what an update changes, and what padding does not."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.blocks import streaming_top_k
from candax.samplers import ivf_index
from candax.samplers.ivf.index import IVFIndex
from candax.samplers.ivf.lists import visit

NUM_CLASSES, DIM, K = 3000, 24, 10
KEY = jax.random.key(9)  # of what needs none


def clustered(num_valid=NUM_CLASSES, normalized=False, spread=0.3, seed=0):
    """Directions in 60 clusters, lengths and biases that differ, padding rows of NaN."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(60, DIM))[rng.integers(0, 60, NUM_CLASSES)] + spread * rng.normal(
        size=(NUM_CLASSES, DIM)
    )
    vectors *= np.exp(0.2 * rng.normal(size=(NUM_CLASSES, 1)))
    vectors[num_valid:] = np.nan
    biases = None if normalized else jnp.asarray(rng.normal(size=NUM_CLASSES), jnp.float32)
    return cx.Classes(jnp.asarray(vectors, jnp.float32), biases, None, jnp.int32(num_valid), normalized)


def queries_near(classes, number=32, seed=1):
    rng = np.random.default_rng(seed)
    near = np.asarray(classes.vectors)[rng.integers(0, int(classes.num_valid), number)]
    return jnp.asarray(near + 0.2 * rng.normal(size=near.shape), jnp.float32)


def recall(found, true):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(np.asarray(found), np.asarray(true), strict=True)])


def ivf(*, hm_num, num_kept=None, codes="mean", near="vector", num_centers):
    """The functions behind ``ivf_index``, which are compiled once for equal numbers."""
    return IVFIndex(num_centers, hm_num, num_kept or hm_num // 10, codes, near, 4, 10, 64)


_build = jax.jit(IVFIndex.build, static_argnums=0)
_search = jax.jit(IVFIndex.search, static_argnums=(0, 3))


def build(index, classes):
    """What an index holds does not depend on how it is searched: fewer programs to compile."""
    return _build(index._replace(hm_num=1, num_kept=1), jax.random.key(0), classes)


def search(index, state, queries, classes, k=K):
    return _search(index, state, cx.Query(queries, jnp.full((len(queries), 1), -1), classes), k)


@pytest.mark.parametrize(
    ("codes", "near", "normalized"),
    [
        ("mean", "vector", False),
        ("rotated", "logit", False),
        ("rotated", "vector", True),
        ("int8", "logit", False),
        ("int8", "vector", True),
    ],
)
def test_visiting_everything_is_exact(codes, near, normalized):
    classes = clustered(num_valid=2800, normalized=normalized)
    index = ivf(num_centers=16, hm_num=NUM_CLASSES, num_kept=NUM_CLASSES, codes=codes, near=near)
    queries = queries_near(classes, 5)
    scores, ids = search(index, build(index, classes), queries, classes)
    true_scores, true_ids = streaming_top_k(queries, classes, K)
    np.testing.assert_array_equal(ids, true_ids)
    np.testing.assert_allclose(scores, true_scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("codes", ["mean", "rotated", "int8"])
def test_a_tenth_of_the_classes_finds_nearly_all_on_clusters(codes):
    classes = dataclasses.replace(clustered(), biases=None)
    index = ivf(num_centers=64, hm_num=300, num_kept=60, codes=codes)
    state, queries = build(index, classes), queries_near(classes)
    scores, ids = search(index, state, queries, classes)
    true_scores, true = streaming_top_k(queries, classes, K)
    assert recall(ids, true) > 0.85
    assert np.all(np.asarray(scores) <= np.asarray(true_scores) + 1e-3)
    assert np.all(np.diff(np.asarray(scores), axis=1) <= 0)
    exact = np.einsum("bd,bkd->bk", queries, np.asarray(classes.vectors)[np.asarray(ids)])
    np.testing.assert_allclose(scores, exact, rtol=1e-4, atol=1e-4)
    less = search(index._replace(hm_num=60, num_kept=20), state, queries, classes)[1]
    assert recall(less, true) < recall(ids, true), "reading less must find less, or the reading is not bounded"


def test_rotated_codes_are_better_where_coordinates_differ_in_variance():
    rng = np.random.default_rng(0)
    scale = np.arange(1, DIM + 1) ** -1.0
    vectors, queries = (jnp.asarray(rng.normal(size=(n, DIM)) * scale, jnp.float32) for n in (NUM_CLASSES, 32))
    classes = cx.Classes(vectors, None, None, jnp.int32(NUM_CLASSES))
    _, true = streaming_top_k(queries, classes, K)
    found = {}
    for codes in ("mean", "rotated"):
        index = ivf(num_centers=16, hm_num=NUM_CLASSES, num_kept=100, codes=codes)
        found[codes] = recall(search(index, build(index, classes), queries, classes)[1], true)
    assert found["rotated"] > 0.9
    assert found["mean"] < 0.6


def test_lists_near_the_logit_find_long_vectors_and_large_biases():
    rng = np.random.default_rng(0)
    vectors = np.exp(rng.normal(size=(NUM_CLASSES, 1))) * rng.normal(size=(NUM_CLASSES, DIM))
    biases = jnp.asarray(3 * rng.normal(size=NUM_CLASSES), jnp.float32)
    classes = cx.Classes(jnp.asarray(vectors, jnp.float32), biases, None, jnp.int32(NUM_CLASSES))
    queries = jnp.asarray(rng.normal(size=(32, DIM)), jnp.float32)
    _, true = streaming_top_k(queries, classes, K)
    found = {}
    for near in ("vector", "logit"):
        index = ivf(num_centers=64, hm_num=600, num_kept=100, codes="rotated", near=near)
        found[near] = recall(search(index, build(index, classes), queries, classes)[1], true)
    assert found["logit"] > found["vector"] + 0.1


def test_lists_hold_every_valid_class_once():
    classes = clustered(num_valid=2500)
    index = ivf(num_centers=20, hm_num=300)
    state = build(index, classes)
    lists, block = state.lists, state.codes.shape[2]
    places = np.asarray(lists.places)
    np.testing.assert_array_equal(np.asarray(lists.ids).reshape(-1)[places[:2500]], np.arange(2500))
    assert np.all(places[2500:] >= lists.ids.size)
    assert int(lists.sizes.sum()) == 2500
    similar = jnp.asarray(np.random.default_rng(0).normal(size=(3, 20)), jnp.float32)
    seen = visit(lists, similar, 7)
    for query in range(3):
        nearest_first = np.argsort(-np.asarray(similar)[query])
        number = np.asarray(lists.sizes)[nearest_first]
        by_list = [min(block, size - start) for size in number for start in range(0, size, block)]
        np.testing.assert_array_equal(np.asarray(seen.filled)[query], by_list[:7])
        first = nearest_first[0]
        assert int(seen.blocks[query, 0]) == int(lists.first_block[first])
        assert int(seen.lists[query, 0]) == first


def test_bytes_follow_changed_rows_and_keep_their_biases():
    classes = clustered(num_valid=2900)
    index = ivf(num_centers=16, hm_num=300, codes="int8", near="logit")
    state = build(index, classes)
    ids = jnp.array([3, 70, 1500, 2899, 2950, NUM_CLASSES], jnp.int32)
    rows = jnp.concatenate([0.5 * classes.vectors[jnp.array([900, 20, 3, 70])], jnp.full((2, DIM), jnp.nan)])
    moved = jax.jit(index.follow)(state, KEY, ids, rows)

    def of_classes(state):
        """Class vectors and biases as the codes have them."""
        place = np.asarray(state.lists.places[:2900])
        values = np.asarray(state.codes.values).reshape(-1, DIM)[place]
        numbers = np.asarray(state.codes.numbers).swapaxes(1, 2).reshape(-1, 2)[place]
        return values * numbers[:, :1], numbers[:, 1]

    wanted = np.array(classes.vectors[:2900])
    for got in (state, moved):
        vectors, biases = of_classes(got)
        np.testing.assert_allclose(vectors, wanted, atol=0.51 * np.abs(wanted).max() / 127)
        np.testing.assert_array_equal(biases, classes.biases[:2900])
        wanted[np.asarray(ids[:4])] = rows[:4]
    assert jax.tree.structure(moved) == jax.tree.structure(state)


@pytest.mark.parametrize("number", [40, 800])
def test_short_lists_of_groups_hold_what_their_examples_want(number):
    """Few classes per group: those of each example's lists; many: one product over all codes."""
    classes = clustered(num_valid=2900)
    index = ivf_index(num_centers=16, hm_num=1000, codes="int8", near="logit")
    state = _build(ivf(num_centers=16, hm_num=1, num_kept=1, codes="int8", near="logit"), jax.random.key(0), classes)
    queries = queries_near(classes, 16)
    query = cx.Query(queries, jnp.full((16, 1), -1), classes)
    scores, ids = jax.jit(index.shortlist, static_argnums=(2, 3, 4))(
        state, query, 4, 10 if number == 40 else 200, number
    )
    assert ids.shape == (4, 40 if number == 40 else 800)
    _, true = streaming_top_k(queries, classes, K)
    held = [
        np.isin(best, np.asarray(ids)[i // 4][np.asarray(scores)[i // 4] > -np.inf]).mean()
        for i, best in enumerate(true)
    ]
    assert np.mean(held) > 0.9
    assert int(jnp.where(scores > -jnp.inf, ids, 0).max()) < 2900
    if number == 800:
        assert all(len(set(row.tolist())) == 800 for row in np.asarray(ids))


@pytest.mark.parametrize(("codes", "near"), [("mean", "logit"), ("rotated", "vector")])
def test_codes_follow_changed_rows(codes, near):
    classes = clustered(num_valid=2900)
    index = ivf(num_centers=16, hm_num=300, codes=codes, near=near)
    state = build(index, classes)
    follow = jax.jit(index.follow)
    ids = jnp.array([3, 70, 1500, 2899, 2950, NUM_CLASSES, NUM_CLASSES + 1], jnp.int32)
    rows = jnp.concatenate([0.5 * classes.vectors[jnp.array([900, 20, 3, 70])], jnp.full((3, DIM), jnp.nan)])
    moved = follow(state, KEY, ids, rows)
    every_id = jnp.arange(NUM_CLASSES, dtype=jnp.int32)
    same = follow(state, KEY, every_id, classes.vectors)
    anew = follow(state, KEY, every_id, classes.vectors.at[ids[:4]].set(rows[:4]))

    def of_classes(state):
        """Codes by class: bits, and numbers if there are any."""
        blocks, _, block = state.codes.shape
        flat = np.asarray(state.codes).swapaxes(1, 2).reshape(blocks * block, -1)[np.asarray(state.lists.places[:2900])]
        words = -(-state.centers.shape[1] // 32)
        return flat[:, :words], flat[:, words:].copy().view(np.float32)

    for got, wanted in ((same, state), (moved, anew)):
        np.testing.assert_array_equal(of_classes(got)[0], of_classes(wanted)[0])
        np.testing.assert_allclose(of_classes(got)[1], of_classes(wanted)[1], rtol=1e-4, atol=1e-5)
    changed = np.any(of_classes(moved)[0] != of_classes(state)[0], axis=1)
    assert set(np.flatnonzero(changed)) == {3, 70, 1500, 2899}
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    assert int(moved.updates) == 1


def test_what_an_update_moves_is_found_by_its_new_row():
    """The class stays in its list, so everything is visited; but only what seems best by its code is scored."""
    classes = dataclasses.replace(clustered(), biases=None)
    index = ivf(num_centers=16, hm_num=NUM_CLASSES, num_kept=40, codes="rotated")
    state = build(index, classes)
    rows = 3 * classes.vectors[2000:2001]
    moved = dataclasses.replace(classes, vectors=classes.vectors.at[jnp.array([7])].set(rows))
    queries = classes.vectors[2000:2001]
    assert 7 not in search(index, state, queries, moved)[1][0].tolist()
    state = index.follow(state, KEY, jnp.array([7]), rows)
    assert search(index, state, queries, moved)[1][0, 0] == 7


def test_refresh_keeps_the_structure_and_follows_the_classes():
    classes = clustered(num_valid=2900)
    index = ivf(num_centers=16, hm_num=NUM_CLASSES // 4, num_kept=100, codes="rotated")
    state = build(index, classes)
    other = clustered(num_valid=2800, seed=5)
    anew = jax.jit(index.refresh)(
        index.follow(state, KEY, jnp.array([1]), classes.vectors[1:2]), jax.random.key(3), other
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(anew, state)
    assert int(anew.updates) == 0
    queries = queries_near(other)
    _, true = streaming_top_k(queries, other, K)
    _, ids = search(index, anew, queries, other)
    assert recall(ids, true) > 0.8
    assert int(ids.max()) < 2800


def test_padding_rows_and_excess_slots():
    classes = dataclasses.replace(clustered(num_valid=7))
    index = ivf(num_centers=4, hm_num=NUM_CLASSES, num_kept=50)
    scores, ids = search(index, build(index, classes), jnp.ones((2, DIM)), classes, 10)
    assert all(sorted(row[:7].tolist()) == list(range(7)) for row in np.asarray(ids))
    np.testing.assert_array_equal(scores[:, 7:], -np.inf)
    np.testing.assert_array_equal(ids[:, 7:], 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_centers": 0},
        {"hm_num": 0},
        {"num_kept": 0},
        {"num_kept": 200},
        {"query_bits": 9},
        {"codes": "median"},
        {"near": "far"},
    ],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(Exception, match=next(iter(wrong))):
        ivf_index(**({"num_centers": 4, "hm_num": 100} | wrong))


def test_what_cannot_be_searched_for_is_refused_and_nothing_finds_nothing():
    index, classes = cx.samplers.ivf_index(num_centers=2, hm_num=8), cx.Classes(np.eye(8, 4, dtype=np.float32))
    state = index.build(jax.random.key(0), classes)
    assert [part.shape for part in index.find(state, jnp.zeros((0, 4)), classes, 3)] == [(0, 3), (0, 3)]
    with pytest.raises(ValueError, match="expected k to be an integer >= 1"):
        index.find(state, jnp.ones((1, 4)), classes, 0)
    with pytest.raises(ValueError, match=r"expected embeddings \[B, 4\], .* got \[2, 5\]"):
        index.find(state, jnp.ones((2, 5)), classes, 1)


@pytest.mark.parametrize(
    "sampler",
    [
        cx.samplers.ivf_bq(4, num_centers=2, hm_num=8, codes="rotated"),
        cx.samplers.hashing_forest(4, num_trees=2, leaf_size=4),
    ],
    ids=["rotated", "forest"],
)
def test_indexes_are_made_with_64_bits_too(sampler):
    with jax.enable_x64(True):
        classes = cx.Classes(jnp.asarray(np.random.default_rng(0).normal(size=(20, 4)), jnp.float64))
        state = sampler.init(jax.random.key(0), classes)
        query = cx.Query(classes.vectors[:2], jnp.array([[0], [1]], jnp.int32), classes)
        assert sampler.sample(state, jax.random.key(1), query).ids.dtype == jnp.int32
