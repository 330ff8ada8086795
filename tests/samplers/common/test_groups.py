"""Examples that the loss leaves out must not change the candidates that the others of their group share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax import samplers
from candax.base import Candidates, Sampler

NUM_CLASSES, DIM = 24, 3
RNG = np.random.default_rng(0)
CLASSES = cx.Classes(
    jnp.asarray(RNG.normal(size=(NUM_CLASSES, DIM)), jnp.float32),
    jnp.asarray(RNG.normal(size=NUM_CLASSES), jnp.float32),
)
EMBEDDINGS = RNG.normal(size=(4, DIM)).astype(np.float32)
LABELS = np.array([[3], [20], [7], [15]], np.int32)
# Two groups of two examples, and the same with three more positions each, that are left out.
PLACES = np.array([1, 3, 5, 6])

simhash = samplers.simhash()
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "midx": lambda: samplers.midx(4, num_codewords=3, num_groups=2),
    "kernel": lambda: samplers.kernel(4, alpha=2.0, rank=None, num_groups=2),
    "kernel positive": lambda: samplers.kernel(4, features="positive", num_features=16, num_groups=2),
    "learned_clusters": lambda: samplers.learned_clusters(4, num_clusters=3, num_groups=2),
    "lsh": lambda: samplers.lsh(
        hash=simhash, num_tables=2, num_hashes=3, num_buckets=8, budget=4, take="all", num_groups=2
    ),
    # Of one table no random one is first, so that stated counts do not follow the key.
    "lsh few reads": lambda: samplers.lsh(hash=simhash, num_tables=1, num_hashes=1, budget=6, num_groups=2),
    "lsh filled": lambda: samplers.lsh(
        hash=simhash, num_tables=2, num_hashes=3, num_buckets=8, budget=8, take="all", fill="uniform", num_groups=2
    ),
    "grouped search": lambda: samplers.grouped(samplers.exact_index(), num_sampled=12, num_groups=2, k=3),
    "grouped sampler": lambda: samplers.grouped(samplers.top_k(3), num_sampled=12, num_groups=2),
    # Labels of the other shard make an example count as well.
    "sharded": lambda: samplers.sharded(samplers.midx(4, num_codewords=2, num_groups=2), 2),
}


def padded(rows: np.ndarray, filler: float) -> np.ndarray:
    wide = np.full((10, rows.shape[1]), filler, rows.dtype)
    wide[PLACES] = rows
    return wide


def query_of(embeddings: np.ndarray, labels: np.ndarray) -> cx.Query:
    return cx.Query(jnp.asarray(embeddings), jnp.asarray(labels), CLASSES)


def stated_by(sampler: Sampler) -> Callable[[cx.Query], np.ndarray]:
    """What is stated for every class, after checking that it is what candidates are drawn with."""

    @jax.jit
    def run(query: cx.Query) -> tuple[Candidates, jax.Array]:
        state = sampler.init(jax.random.key(0), CLASSES)
        found = sampler.sample(state, jax.random.key(1), query)
        ids = jnp.broadcast_to(jnp.arange(NUM_CLASSES), (2, NUM_CLASSES))
        return found, sampler.log_expected_count(state, found, ids, query)

    def stated(query: cx.Query) -> np.ndarray:
        found, log = run(query)
        mask, of_drawn = np.asarray(found.mask), np.take_along_axis(np.asarray(log), np.asarray(found.ids), axis=1)
        np.testing.assert_allclose(np.asarray(found.log_expected_count)[mask], of_drawn[mask], rtol=1e-5, atol=1e-6)
        return np.exp(np.asarray(log, np.float64))

    return stated


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_left_out_changes_no_count(name: str) -> None:
    counts = stated_by(SAMPLERS[name]())
    wanted = counts(query_of(EMBEDDINGS, LABELS))
    found = counts(query_of(padded(EMBEDDINGS, 0.0), padded(LABELS, -1)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert np.abs(wanted[0] - wanted[1]).max() > 0.02  # groups do differ
    # With labels the other positions would count.
    other = counts(query_of(padded(EMBEDDINGS, 0.0), padded(LABELS, 0)))
    assert np.abs(other - wanted).max() > 0.02


def test_a_shortlist_is_that_of_the_examples_that_count() -> None:
    """It has room for as many classes as all examples want, so it is compared with one of as many examples."""
    index = samplers.ivf_index(num_centers=2, hm_num=30, codes="int8")
    counts = stated_by(samplers.grouped(index, num_sampled=12, num_groups=2, k=2))
    copies = np.array([0, 0, 0, 1, 0, 2, 3, 2, 2, 2])
    wanted = counts(query_of(EMBEDDINGS[copies], LABELS[copies]))
    found = counts(query_of(padded(EMBEDDINGS, 0.0), padded(LABELS, -1)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    other = counts(query_of(padded(EMBEDDINGS, 0.0), padded(LABELS, 0)))
    assert np.abs(other - wanted).max() > 0.02


@pytest.mark.parametrize("name", ["midx", "lsh", "grouped search"])
def test_where_no_example_of_a_group_has_a_label_all_count(name: str) -> None:
    counts = stated_by(SAMPLERS[name]())
    labels = LABELS.copy()
    labels[:2] = -1
    wanted, found = counts(query_of(EMBEDDINGS, LABELS)), counts(query_of(EMBEDDINGS, labels))
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)
    if name != "grouped search":  # whose sets hold the labels
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    assert found[0].sum() > 2


def test_directions_of_buckets_are_of_the_examples_that_count_and_as_long() -> None:
    asked: list[np.ndarray] = []

    def search(state: object, query: cx.Query, k: int) -> tuple[jax.Array, jax.Array]:
        asked.append(np.asarray(query.embeddings))
        return samplers.exact_index().search(state, query, k)

    index = samplers.exact_index()._replace(search=search)
    embeddings = np.full((4, DIM), 100.0, np.float32) * [[0], [1], [0], [0]]
    embeddings[0] = [3.0, 0.0, 4.0]
    query = query_of(embeddings.astype(np.float32), np.array([[5], [-1], [-1], [-1]], np.int32))
    samplers.buckets(index, 2, num_directions=3).sample((), jax.random.key(0), query)
    np.testing.assert_allclose(np.mean(np.sum(asked[0] ** 2, axis=1)), 25.0, rtol=1e-5)
    assert np.all(asked[0][:, 1] == 0)
