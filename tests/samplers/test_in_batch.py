"""In-batch candidates: which labels, how they are counted, and what is left when hits are removed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Classes, Query
from candax.samplers import in_batch
from candax.testing.statistics import check_mean

COUNTS = np.array([8.0, 0, 4, 3, 1])
CLASSES = cx.Classes(jnp.zeros((6, 2)), None, jnp.asarray([*COUNTS, 77.0], jnp.float32), jnp.int32(5))


def ask(labels: list[list[int]] | jax.Array, classes: Classes = CLASSES) -> Query:
    labels = jnp.asarray(labels, jnp.int32)
    return cx.Query(jnp.zeros((labels.shape[0], 2)), labels, classes)


def test_all_labels_in_one_group() -> None:
    sampler = in_batch()
    state = sampler.init(jax.random.key(0), CLASSES)
    found = sampler.sample(state, jax.random.key(1), ask([[0, 2], [0, -1], [3, 1]]))
    assert found.ids[0].tolist() == [0, 2, 0, 0, 3, 0]
    # Class 1 has count 0: nothing can correct for it, so it is no candidate; the label still counts among the five.
    assert found.mask[0].tolist() == [True, True, True, False, True, False]
    counts = np.exp(np.asarray(found.log_expected_count[0]))[np.asarray(found.mask[0])]
    np.testing.assert_allclose(counts, 5 * COUNTS[[0, 2, 0, 3]] / 16, rtol=1e-6)


@pytest.mark.parametrize(("groups", "size"), [(2, 1), (None, 1)])
def test_other_groups_labels(groups: int | None, size: int) -> None:
    sampler = in_batch(num_groups=groups)
    state = sampler.init(jax.random.key(0), CLASSES)
    labels = [[0, 2], [0, -1], [3, -1], [4, 2]]
    found = sampler.sample(state, jax.random.key(1), ask(labels))
    number = 4 if groups is None else groups
    run = len(labels) // number
    for g in range(number):
        others = [c for b, row in enumerate(labels) if b // run != g for c in row if c >= 0]
        assert sorted(np.asarray(found.ids[g])[np.asarray(found.mask[g])].tolist()) == sorted(others)
        stated = np.exp(np.asarray(found.log_expected_count[g]))[np.asarray(found.mask[g])]
        drawn = np.asarray(found.ids[g])[np.asarray(found.mask[g])]
        np.testing.assert_allclose(stated, len(others) * COUNTS[drawn] / 16, rtol=1e-6)


@pytest.mark.parametrize(("groups", "factor"), [(1, 2 / 3), (None, 1.0)])
def test_sum_over_the_other_classes(groups: int | None, factor: float) -> None:
    """Labels from the counts, one per example: unbiased per example, short by 1/B with one shared set, as it says."""
    sampler = in_batch(num_groups=groups)
    state = sampler.init(jax.random.key(0), CLASSES)
    u = jnp.asarray([0.5, 9.0, 2.0, 1.5, 3.0, 9.0])
    probability = jnp.asarray(COUNTS / COUNTS.sum(), jnp.float32)

    def estimate(key: jax.Array) -> jax.Array:
        rest = jax.random.choice(key, 5, (2, 1), p=probability)
        query = ask(jnp.concatenate([jnp.zeros((1, 1), jnp.int32), rest.astype(jnp.int32)]))
        found = sampler.sample(state, key, query)
        keep = found.mask[0] & (found.ids[0] != 0)
        return jnp.sum(jnp.where(keep, u[found.ids[0]] * jnp.exp(-found.log_expected_count[0]), 0.0))[None]

    check_mean(estimate, np.array([factor * (2.0 + 1.5 + 3.0)]), delta=0.01, seed=2)


def test_errors() -> None:
    with pytest.raises(ValueError, match="in_batch needs label frequencies"):
        in_batch().init(jax.random.key(0), dataclasses.replace(CLASSES, counts=None))
    with pytest.raises(ValueError, match="num_groups to be an integer >= 1"):
        in_batch(num_groups=0)
    sampler = in_batch(num_groups=3)
    with pytest.raises(ValueError, match="num_groups=3 for a batch of 4"):
        sampler.sample(sampler.init(jax.random.key(0), CLASSES), jax.random.key(1), ask([[0], [2], [3], [4]]))


def test_a_set_for_each_of_many_examples_is_warned_of() -> None:
    sampler = in_batch(num_groups=None)
    state = sampler.init(jax.random.key(0), CLASSES)
    with pytest.warns(UserWarning, match=r"64 sets .* 4032 rows of labels per step"):
        jax.eval_shape(sampler.sample, state, jax.random.key(1), ask([[0]] * 64))
