"""Log-uniform: the formula, to the last class of 10^8."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Candidates, Query, State
from candax.samplers import log_uniform
from tests.samplers.test_static import ask, make


@functools.cache
def ranked(num_valid: int) -> tuple[State, Query]:
    """State and query for classes that need no memory: zero coordinates each."""
    classes = cx.Classes(jnp.zeros((num_valid, 0)), None, None, jnp.int32(num_valid))
    sampler = log_uniform(1, ids_ranked=True)
    return sampler.init(jax.random.key(0), classes), Query(jnp.zeros((1, 0)), jnp.zeros((1, 1), jnp.int32), classes)


def probability(num_valid: int, ids: np.ndarray) -> np.ndarray:
    """Reported probabilities of ids, in float64."""
    state, query = ranked(num_valid)
    given = jnp.asarray(ids, jnp.int32)[None]
    nothing = Candidates(given, jnp.zeros(given.shape), jnp.ones(given.shape, bool))
    reported = log_uniform(1, ids_ranked=True).log_expected_count(state, nothing, given, query)
    return np.exp(np.asarray(reported, np.float64))[0]


def formula(num_valid: int, ids: np.ndarray) -> np.ndarray:
    rank = ids.astype(np.float64)
    return np.log1p(1 / (rank + 1)) / np.log(num_valid + 1)


def draw(num_valid: int, number: int, seed: int = 1) -> np.ndarray:
    state, query = ranked(num_valid)
    return np.asarray(log_uniform(number, ids_ranked=True).sample(state, jax.random.key(seed), query).ids)[0]


@pytest.mark.parametrize("num_valid", [1, 2, 2049, 10**6])
def test_every_class_follows_the_formula_and_all_sum_to_one(num_valid: int) -> None:
    ids = np.arange(num_valid)
    got = probability(num_valid, ids)
    np.testing.assert_allclose(got, formula(num_valid, ids), rtol=6e-4)
    np.testing.assert_allclose(got.sum(), 1, rtol=1e-6)


@pytest.mark.slow
def test_the_formula_holds_at_a_hundred_million() -> None:
    n = 10**8
    ids = np.unique(np.concatenate([[0, 1, 2047, 2048, 2049, n - 2, n - 1], np.geomspace(1, n - 1, 3000).astype(int)]))
    np.testing.assert_allclose(probability(n, ids), formula(n, ids), rtol=6e-4)
    assert probability(n, np.array([n - 1]))[0] > 0


@pytest.mark.slow
def test_draws_reach_every_residue_near_a_hundred_million() -> None:
    """floor(exp(u log(n + 1))) in float32 reaches only every eighth class here."""
    drawn = draw(10**8, 200_000)
    high = drawn[drawn > 2**26]
    assert len(high) > 2000
    assert drawn.max() < 10**8
    share = np.bincount(high % 8, minlength=8) / len(high)
    assert np.all(np.abs(share - 1 / 8) < 5 * np.sqrt(7 / 64 / len(high)))
    u = np.random.default_rng(0).random(200_000, np.float32)
    closed_form = np.floor(np.exp(u * np.log(np.float32(1e8 + 1)), dtype=np.float32)).astype(np.int64)
    planted = closed_form[closed_form > 2**26]
    assert np.all(planted % 8 == 0), "the planted fault is what the test above would see"


@pytest.mark.parametrize("num_valid", [10**6, pytest.param(10**8, marks=pytest.mark.slow)])
def test_octaves_are_drawn_in_proportion(num_valid: int) -> None:
    """Chi-square of the octaves of rank + 1 against the formula, below its 1e-6 quantile."""
    drawn = draw(num_valid, 400_000, seed=2).astype(np.int64)
    edges = np.append(2 ** np.arange(int(np.log2(num_valid)) + 1), num_valid + 1)
    wanted = np.diff(np.log(edges)) / np.log(num_valid + 1)

    def chi_square(ids: np.ndarray) -> float:
        seen = np.histogram(ids + 1, edges)[0]
        return float(np.sum((seen - len(ids) * wanted) ** 2 / (len(ids) * wanted)))

    limit = len(wanted) + 6 * np.sqrt(2 * len(wanted)) + 12
    assert chi_square(drawn) < limit
    assert chi_square(np.minimum(drawn + 1, num_valid - 1)) > limit, "ids off by one must be seen"


def test_ranks_come_from_the_counts_with_ties_by_id() -> None:
    classes = make(np.array([3.0, 9.0, 0.0, 9.0, 1.0, 77.0, 77.0]), 7, 5)
    sampler = log_uniform(1)
    state = sampler.init(jax.random.key(0), classes)
    nothing = sampler.sample(state, jax.random.key(1), ask(classes))
    ids = jnp.arange(7, dtype=jnp.int32)[None]
    got = np.exp(np.asarray(sampler.log_expected_count(state, nothing, ids, ask(classes))))[0]
    by_rank = formula(5, np.arange(5))
    # Order of frequency: 1, 3 (a tie: the lower id first), 0, 4, 2; the padding rows' large counts do not matter.
    np.testing.assert_allclose(got, [*by_rank[[2, 0, 4, 1, 3]], 0, 0], rtol=1e-6)


def test_ids_ranked_ignores_the_counts() -> None:
    classes = make(np.array([0.0, 1.0, 50.0]), 3)
    sampler = log_uniform(2, ids_ranked=True)
    state = sampler.init(jax.random.key(0), classes)
    nothing = sampler.sample(state, jax.random.key(1), ask(classes))
    got = sampler.log_expected_count(state, nothing, jnp.arange(3, dtype=jnp.int32)[None], ask(classes))
    np.testing.assert_allclose(np.exp(got)[0], 2 * formula(3, np.arange(3)), rtol=1e-6)


def test_counts_or_ranks_are_needed() -> None:
    with pytest.raises(ValueError, match=r"log_uniform \(with ids_ranked=False\) needs label frequencies"):
        log_uniform(2, ids_ranked=False).init(jax.random.key(0), make(None, 5))


def test_without_counts_ids_are_taken_for_ranks_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="in order of falling frequency"):
        state = log_uniform(2).init(jax.random.key(0), make(None, 5))
    wanted = log_uniform(2, ids_ranked=True).init(jax.random.key(0), make(None, 5))
    assert jax.tree.structure(state) == jax.tree.structure(wanted)
