"""Uniform and unigram: probabilities, groups, the choice between race and stream, and errors."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Classes, Query, Sampler
from candax.samplers import log_uniform, uniform, unigram
from tests.samplers.stated import expected_counts

KEY = jax.random.key(0)


def make(counts: np.ndarray | None, num_classes: int, num_valid: int | None = None) -> Classes:
    given = None if counts is None else jnp.asarray(counts, jnp.float32)
    valid = num_classes if num_valid is None else num_valid
    return cx.Classes(jnp.zeros((num_classes, 2)), None, given, jnp.int32(valid))


def ask(classes: Classes, batch_size: int = 4) -> Query:
    return cx.Query(jnp.zeros((batch_size, 2)), jnp.zeros((batch_size, 1), jnp.int32), classes)


def counts_of(sampler: Sampler, classes: Classes) -> np.ndarray:
    return expected_counts(sampler, ask(classes))[0]


def test_uniform_counts() -> None:
    np.testing.assert_allclose(counts_of(uniform(8), make(None, 20, 16)), [0.5] * 16 + [0] * 4, rtol=1e-6)
    distinct = uniform(8, replacement=False)
    np.testing.assert_allclose(counts_of(distinct, make(None, 20, 16)), [0.5] * 16 + [0] * 4, rtol=1e-6)
    np.testing.assert_allclose(counts_of(distinct, make(None, 20, 5)), [1] * 5 + [0] * 15, rtol=1e-6)


@pytest.mark.parametrize(("power", "smoothing"), [(0.75, 0.0), (1.0, 0.0), (0.0, 0.0), (0.5, 2.0), (4.0, 0.0)])
def test_unigram_counts(power: float, smoothing: float) -> None:
    counts = np.array([16.0, 1.0, 0.0, 5.0, 100.0, 7.0])
    smoothed = (counts + smoothing)[:5]
    weights = np.where(smoothed > 0, smoothed**power, 0.0)
    wanted = np.append(9 * weights / weights.sum(), 0)
    got = counts_of(unigram(9, power=power, smoothing=smoothing), make(counts, 6, 5))
    # To the unit of 2^-32 that probabilities are multiples of.
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=9 * 2**-32)


def test_unigram_survives_powers_that_overflow_float32() -> None:
    got = counts_of(unigram(1, power=6.0), make(np.array([1e8, 1e7, 1.0, 0.0]), 4))
    np.testing.assert_allclose(got[:2], [1, 1e-6], rtol=1e-3)
    assert 0 < got[2] < 1e-9
    assert got[3] == 0


@pytest.mark.parametrize(("num_groups", "groups"), [(1, 1), (2, 2), (4, 4), (None, 4)])
@pytest.mark.parametrize("replacement", [True, False])
def test_groups(num_groups: int | None, groups: int, replacement: bool) -> None:
    classes = make(None, 30)
    sampler = uniform(3, num_groups=num_groups, replacement=replacement)
    candidates = sampler.sample(sampler.init(jax.random.key(0), classes), jax.random.key(1), ask(classes))
    assert candidates.ids.shape == (groups, 3)


def test_distinct_when_the_support_is_smaller_than_the_race_but_not_the_classes() -> None:
    """100 classes of which 10 were seen: too many classes to race, too few seen to be sure that a stream ends."""
    counts = np.zeros(100)
    counts[5::10] = 1 + np.arange(10)
    classes = make(counts, 100)
    sampler = unigram(3, replacement=False)
    state = sampler.init(jax.random.key(0), classes)
    sample = jax.jit(sampler.sample)
    for seed in range(20):
        ids = np.asarray(sample(state, jax.random.key(seed), ask(classes)).ids)[0]
        assert len(set(ids.tolist())) == 3
        assert set(ids.tolist()) <= set(range(5, 100, 10))
    two = np.zeros(100)
    two[[40, 90]] = 1
    found = sample(sampler.init(jax.random.key(0), make(two, 100)), jax.random.key(1), ask(classes))
    assert found.mask.tolist() == [[True, True, False]]
    assert set(found.ids[0, :2].tolist()) == {40, 90}
    assert found.log_expected_count[0, :2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("factory", [uniform, log_uniform, unigram])
@pytest.mark.parametrize("bad", [{"num_sampled": 0}, {"num_sampled": -3}, {"num_sampled": 2, "num_groups": 0}])
def test_numbers_out_of_range(factory: Callable[..., Sampler], bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"to be an integer >= 1( or None)?, got"):
        factory(**bad)


@pytest.mark.parametrize("power", [-0.1, float("nan"), float("inf")])
def test_bad_power(power: float) -> None:
    with pytest.raises(ValueError, match="power"):
        unigram(2, power=power)


@pytest.mark.parametrize("smoothing", [-1.0, float("nan"), float("inf")])
def test_bad_smoothing(smoothing: float) -> None:
    with pytest.raises(ValueError, match="smoothing"):
        unigram(2, smoothing=smoothing)


def test_batch_that_groups_do_not_divide() -> None:
    classes = make(None, 30)
    sampler = uniform(3, num_groups=3)
    state = sampler.init(jax.random.key(0), classes)
    with pytest.raises(ValueError, match=r"num_groups=3 for a batch of 4\. Change either"):
        sampler.sample(state, jax.random.key(1), ask(classes))


def test_unigram_without_counts() -> None:
    with pytest.raises(ValueError, match="unigram needs label frequencies"):
        unigram(2).init(jax.random.key(0), make(None, 5))


def test_nothing_is_drawn_where_no_class_has_a_count() -> None:
    for replacement in (True, False):
        sampler = unigram(3, replacement=replacement)
        none = Classes(jnp.ones((5, 2)), None, jnp.zeros(5))
        drawn = sampler.sample(
            jax.jit(sampler.init)(KEY, none), KEY, Query(jnp.ones((1, 2)), jnp.zeros((1, 1), jnp.int32), none)
        )
        assert not drawn.mask.any()
        assert drawn.ids.tolist() == [[0, 0, 0]]
        assert drawn.log_expected_count.tolist() == [[0, 0, 0]]
    with pytest.raises(ValueError, match="all counts are 0"):  # padding is no class
        unigram(3).init.__wrapped__(KEY, Classes(jnp.ones((5, 2)), None, jnp.array([0.0, 0, 0, 0, 7]), jnp.int32(4)))


def test_states_of_several_heads_are_drawn_from_at_once() -> None:
    """Under vmap both branches run, the stream too, which would wait for the rare classes for hours."""
    sampler = unigram(4, power=1.0, replacement=False)
    classes = Classes(jnp.zeros((40, 2)), None, jnp.zeros(40).at[:3].set(jnp.array([1e9, 1.0, 1.0])))
    state = sampler.init(KEY, classes)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    query = Query(jnp.zeros((1, 2)), jnp.zeros((1, 1), jnp.int32), classes)
    keys = jax.random.split(KEY)
    found = jax.jit(jax.vmap(sampler.sample, (0, 0, None)))(both, keys, query)
    for one, key in enumerate(keys):
        alone = sampler.sample(state, key, query)
        assert found.ids[one].tolist() == alone.ids.tolist()
        assert found.mask[one].sum() == 3


def test_counts_are_float32_in_programs_of_64_bits() -> None:
    with jax.enable_x64(True):
        classes = Classes(jnp.ones((40, 4), jnp.float32), None, jnp.ones(40, jnp.float32))
        query = Query(jnp.ones((1, 4), jnp.float32), jnp.zeros((1, 1), jnp.int32), classes)
        for sampler in (
            unigram(2, replacement=False),
            cx.samplers.bernoulli(4),
            cx.samplers.kernel(4),
            cx.samplers.top_k(4),
            cx.samplers.lsh(hash=cx.samplers.dwta(2), num_tables=2, num_hashes=8, budget=4),
        ):
            state = sampler.init(KEY, classes)
            drawn = sampler.sample(state, KEY, query)
            counts = sampler.log_expected_count(state, drawn, query.labels, query)
            assert drawn.log_expected_count.dtype == counts.dtype == jnp.float32
