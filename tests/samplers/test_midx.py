"""The multi-index sampler: with codewords that are exact it is the softmax, and groups draw from the mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Sampler
from candax.samplers import midx
from candax.samplers.midx import MultiIndex
from tests.samplers.stated import expected_counts

DIM, K = 4, 5
RNG = np.random.default_rng(0)
FIRST, SECOND = RNG.normal(size=(2, K, DIM))
# One class per cell but for a few empty ones, and one cell with two; padding rows are no numbers.
PAIRS = np.array([(i, j) for i in range(K) for j in range(K) if (i, j) not in ((0, 3), (4, 4))] + [(1, 1)])
NUM, PADDING = len(PAIRS), 2
COUNTS = np.concatenate([RNG.integers(0, 9, NUM), [50, 50]]).astype(np.float32)
BIASES = np.concatenate([RNG.normal(size=NUM), [np.nan, np.nan]]).astype(np.float32)
EMBEDDINGS = 0.7 * RNG.normal(size=(4, DIM))
SETTINGS = {"num_codewords": K, "num_iterations": 30}


def classes_of(vectors: np.ndarray, biases: np.ndarray | None = None, normalized: bool = False) -> cx.Classes:
    vectors = np.concatenate([vectors, np.full((PADDING, vectors.shape[1]), np.nan)])
    return cx.Classes(
        jnp.asarray(vectors, jnp.float32),
        None if biases is None else jnp.asarray(biases),
        jnp.asarray(COUNTS),
        jnp.int32(NUM),
        normalized,
    )


# Halves of vectors are codewords.
PRODUCT = classes_of(np.concatenate([FIRST[PAIRS[:, 0], : DIM // 2], SECOND[PAIRS[:, 1], DIM // 2 :]], axis=1))
# Sums of a large and a small one.
RESIDUAL = classes_of(10 * FIRST[PAIRS[:, 0]] + SECOND[PAIRS[:, 1]])


def query_of(classes: cx.Classes) -> cx.Query:
    return cx.Query(jnp.asarray(EMBEDDINGS, jnp.float32), jnp.zeros((4, 1), jnp.int32), classes)


def shares(sampler: Sampler, classes: cx.Classes, state: MultiIndex | None = None) -> np.ndarray:
    """The chance of every class in one of 8 draws, per group."""
    counts = expected_counts(sampler, query_of(classes), state)
    np.testing.assert_allclose(counts.sum(axis=1), 8, rtol=1e-5)
    assert not counts[:, NUM:].any()
    return counts[:, :NUM] / 8


def softmax(classes: cx.Classes, weights: np.ndarray, scale: float = 1.0) -> np.ndarray:
    vectors = np.asarray(classes.vectors[:NUM], np.float64)
    embeddings = EMBEDDINGS
    if classes.normalized:
        vectors, embeddings = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (vectors, embeddings))
    logits = embeddings @ vectors.T
    if classes.biases is not None:
        logits = logits + np.asarray(classes.biases[:NUM], np.float64)
    found = np.exp(scale * logits) * weights
    return found / found.sum(axis=1, keepdims=True)


def test_with_exact_codewords_it_is_the_softmax_by_a_power_of_frequency() -> None:
    found = shares(midx(8, **SETTINGS), PRODUCT)
    np.testing.assert_allclose(found, softmax(PRODUCT, np.ones(NUM)), rtol=1e-4)
    found = shares(midx(8, power=0.5, smoothing=2.0, scale=0.5, **SETTINGS), PRODUCT)
    np.testing.assert_allclose(found, softmax(PRODUCT, (COUNTS[:NUM] + 2) ** 0.5, 0.5), rtol=1e-4)
    # Empty cells move the means of the first list a little.
    found = shares(midx(8, codes="residual", scale=0.2, **SETTINGS), RESIDUAL)
    assert np.abs(found - softmax(RESIDUAL, np.ones(NUM), 0.2)).sum(axis=1).max() < 0.03


def test_biases_are_part_of_what_is_quantised_and_cosines_are_scored_as_cosines() -> None:
    sampler = midx(8, num_codewords=NUM, num_iterations=20)
    biased = classes_of(np.asarray(PRODUCT.vectors[:NUM]), BIASES)
    np.testing.assert_allclose(shares(sampler, biased), softmax(biased, np.ones(NUM)), rtol=1e-4)
    cosines = classes_of(np.asarray(RESIDUAL.vectors[:NUM]), normalized=True)
    sampler = midx(8, num_codewords=NUM, num_iterations=20, scale=4.0)
    np.testing.assert_allclose(shares(sampler, cosines), softmax(cosines, np.ones(NUM), 4.0), rtol=1e-4)


def test_a_group_draws_from_the_mean_of_its_examples() -> None:
    alone = shares(midx(8, **SETTINGS), PRODUCT)
    for groups in (1, 2):
        found = shares(midx(8, num_groups=groups, **SETTINGS), PRODUCT)
        np.testing.assert_allclose(found, alone.reshape(groups, -1, NUM).mean(axis=1), rtol=1e-4)


@pytest.mark.parametrize("codes", ["product", "residual"])
def test_coarse_codewords_are_nearer_to_the_softmax_than_frequency_is(codes: str) -> None:
    rng = np.random.default_rng(1)
    vectors = jnp.asarray(rng.normal(size=(2000, 8)), jnp.float32)
    embeddings = jnp.asarray(rng.normal(size=(16, 8)), jnp.float32)
    classes = cx.Classes(vectors)
    query = cx.Query(embeddings, jnp.zeros((16, 1), jnp.int32), classes)
    truth = np.asarray(jax.nn.softmax(embeddings @ vectors.T, axis=1), np.float64)
    chi = []
    for number in (1, 4, 16):
        sampler = midx(4, num_codewords=number, codes=codes)
        state = sampler.init(jax.random.key(0), classes)
        candidates = sampler.sample(state, jax.random.key(1), query)
        ids = jnp.broadcast_to(jnp.arange(2000), (16, 2000))
        log = sampler.log_expected_count(state, candidates, ids, query)
        chi.append(np.mean(np.sum(truth**2 / (np.exp(np.asarray(log, np.float64)) / 4), axis=1)) - 1)
    assert chi[0] > 1.5 * chi[1] > 2.25 * chi[2], chi


def test_refresh_finds_the_cells_of_the_present_vectors() -> None:
    sampler = midx(8, schedule=7, **SETTINGS)
    assert [step for step in range(20) if sampler.schedule(step)] == [7, 14]
    zeros = cx.Classes(jnp.zeros_like(PRODUCT.vectors), None, None, PRODUCT.num_valid)
    state = sampler.init(jax.random.key(0), zeros)
    np.testing.assert_allclose(shares(sampler, PRODUCT, state), 1 / NUM, rtol=1e-5)
    state = sampler.refresh(state, jax.random.key(2), PRODUCT)
    np.testing.assert_allclose(shares(sampler, PRODUCT, state), softmax(PRODUCT, np.ones(NUM)), rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_codewords": 0}, "num_codewords to be an integer >= 1"),
        ({"num_codewords": 2000}, "at most 1024 codewords"),
        ({"power": -1.0}, "finite power >= 0"),
        ({"smoothing": 0.0}, "finite smoothing > 0"),
        ({"scale": 0.0}, "finite scale > 0"),
        ({"codes": "both"}, "codes"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        midx(4, **arguments)


def test_a_power_of_frequencies_needs_counts() -> None:
    with pytest.raises(ValueError, match="counts"):
        midx(4, power=0.5).init(jax.random.key(0), cx.Classes(jnp.zeros((9, 2))))
