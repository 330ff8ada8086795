"""Combinators: counts that add, the variance of a head with a tail, groups, states and schedules."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Candidates, Query, Sampler, no_update
from candax.recipes.common.catalog import and_labels
from candax.samplers import (
    bernoulli,
    every,
    exact_index,
    grouped,
    hashing_forest,
    learned_unigram,
    mixture,
    top_k,
    uniform,
    unigram,
    with_tail,
)
from candax.testing.statistics import check_mean

NUM_CLASSES = 15
RNG = np.random.default_rng(1)
CLASSES = cx.Classes(
    jnp.asarray(RNG.normal(size=(NUM_CLASSES, 3)), jnp.float32),
    None,
    jnp.asarray(1 + np.arange(NUM_CLASSES)[::-1], jnp.float32),
    jnp.int32(NUM_CLASSES),
)
QUERY = cx.Query(jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32), jnp.zeros((4, 1), jnp.int32), CLASSES)
TERMS = np.exp(np.asarray(QUERY.embeddings @ CLASSES.vectors.T, np.float64))  # [B, num_classes], their sum is Z
EVERY_ID = jnp.broadcast_to(jnp.arange(NUM_CLASSES, dtype=jnp.int32), (4, NUM_CLASSES))
START = jax.random.key(0)


def estimate_of_z(found: Candidates) -> jax.Array:
    """Of every example: sum of exp(logit - log expected count)."""
    terms = jnp.take_along_axis(
        jnp.asarray(TERMS, jnp.float32), jnp.broadcast_to(found.ids, (4, found.ids.shape[1])), 1
    )
    return jnp.sum(jnp.where(found.mask, terms * jnp.exp(-found.log_expected_count), 0.0), axis=1)


def closed_form_variance(k: int, num_sampled: int) -> np.ndarray:
    q = np.asarray(CLASSES.counts, np.float64) / np.asarray(CLASSES.counts).sum()
    kth = np.sort(TERMS, axis=1)[:, -k, None]
    outside = kth > TERMS
    rest = np.where(outside, TERMS, 0)
    return (np.sum(rest**2 / q, axis=1) - np.sum(rest, axis=1) ** 2) / num_sampled


def test_with_tail_is_unbiased_with_the_closed_form_variance() -> None:
    sampler = with_tail(top_k(4), unigram(5, power=1.0))
    state = sampler.init(START, CLASSES)
    total = TERMS.sum(axis=1)

    def moments(key: jax.Array) -> jax.Array:
        z = estimate_of_z(sampler.sample(state, key, QUERY))
        return jnp.stack([z / total, (z - total) ** 2 / closed_form_variance(4, 5)])

    check_mean(moments, np.ones((2, 4)), delta=0.05, seed=1)


def test_a_naive_concatenation_is_far_off() -> None:
    """Planted fault: the tail is not told what the head holds, and counts it a second time."""
    head, tail = top_k(4), unigram(5, power=1.0)
    states = head.init(START, CLASSES), tail.init(START, CLASSES)

    def estimate(key: jax.Array) -> jax.Array:
        parts = head.sample(states[0], key, QUERY), tail.sample(states[1], key, QUERY)
        return sum(estimate_of_z(part) for part in parts) / TERMS.sum(axis=1)

    with pytest.raises(AssertionError, match="biased"):
        check_mean(estimate, np.ones(4), delta=0.05, seed=1)
    ratio = np.asarray(jnp.mean(jax.vmap(estimate)(jax.random.split(START, 20_000)), axis=0))
    assert np.all(ratio > 1.3)


def test_with_tail_counts_and_masks() -> None:
    sampler = with_tail(top_k(4), unigram(30, power=1.0, num_groups=2))
    state = sampler.init(START, CLASSES)
    found = sampler.sample(state, jax.random.key(1), QUERY)
    assert found.ids.shape == (4, 34)
    head, tail = np.asarray(found.ids[:, :4]), np.asarray(found.ids[:, 4:])
    np.testing.assert_array_equal(tail[0], tail[1])
    assert np.any(tail[0] != tail[2])
    for b in range(4):
        np.testing.assert_array_equal(np.asarray(found.mask[b, 4:]), ~np.isin(tail[b], head[b]))
        stated = np.exp(np.asarray(sampler.log_expected_count(state, found, EVERY_ID, QUERY)[b]))
        q = np.asarray(CLASSES.counts) / np.asarray(CLASSES.counts).sum()
        np.testing.assert_allclose(stated, np.where(np.isin(np.arange(NUM_CLASSES), head[b]), 1, 30 * q), rtol=1e-5)


@pytest.mark.slow
def test_a_tail_per_example_under_a_shared_head() -> None:
    sampler = with_tail(uniform(3, replacement=False), bernoulli(4.0, num_groups=None))
    found = sampler.sample(sampler.init(START, CLASSES), jax.random.key(1), QUERY)
    assert found.ids.shape[0] == 4
    np.testing.assert_array_equal(found.ids[0, :3], found.ids[3, :3])


def test_with_tail_refuses() -> None:
    with pytest.raises(ValueError, match="head without replacement"):
        with_tail(uniform(3), uniform(3))
    sampler = with_tail(uniform(3, num_groups=3, replacement=False), uniform(2, num_groups=2))
    six = Query(jnp.zeros((6, 3)), jnp.zeros((6, 1), jnp.int32), CLASSES)
    with pytest.raises(ValueError, match="3 and 2 groups"):
        sampler.sample(sampler.init(START, CLASSES), jax.random.key(1), six)


def test_mixture_counts_add_up() -> None:
    parts = [uniform(3), unigram(4, power=1.0), uniform(5, replacement=False)]
    sampler = mixture(parts)
    state = sampler.init(START, CLASSES)
    found = sampler.sample(state, jax.random.key(1), QUERY)
    q = np.asarray(CLASSES.counts) / np.asarray(CLASSES.counts).sum()
    stated = np.exp(np.asarray(sampler.log_expected_count(state, found, EVERY_ID[:1], QUERY)))[0]
    np.testing.assert_allclose(stated, 8 / NUM_CLASSES + 4 * q, rtol=1e-5)
    np.testing.assert_allclose(np.exp(np.asarray(found.log_expected_count))[0], stated[found.ids[0]], rtol=1e-6)


def test_a_label_without_a_slot_of_its_group_is_drawn_by_the_other_part_alone() -> None:
    labels = jnp.arange(8, dtype=jnp.int32).reshape(4, 2)
    query = dataclasses.replace(QUERY, labels=labels)
    sampler = mixture([grouped(exact_index(), num_sampled=5), uniform(6)])
    state = sampler.init(START, CLASSES)
    found = sampler.sample(state, jax.random.key(1), query)
    counts = np.exp(np.asarray(sampler.log_expected_count(state, found, EVERY_ID[:1], query)))[0]
    kept = np.isin(np.arange(NUM_CLASSES), np.asarray(found.ids[0, :5]))
    np.testing.assert_allclose(counts, 6 / NUM_CLASSES + kept, rtol=1e-5)


def test_mixture_refuses() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mixture([])
    for part in (top_k(3), hashing_forest(3)):
        with pytest.raises(ValueError, match="part 1 of the mixture counts labels that it need not draw"):
            mixture([uniform(3), part])
    for part in (unigram(3, replacement=False), bernoulli(3.0)):
        with pytest.raises(ValueError, match="part 1 of the mixture has expected counts that depend on the draw"):
            mixture([uniform(3), part])
    sampler = mixture([uniform(3), uniform(3, num_groups=2)])
    with pytest.raises(ValueError, match=r"same number of groups in all parts of a mixture, got \[1, 2\]"):
        sampler.sample(sampler.init(START, CLASSES), jax.random.key(1), QUERY)


def recorder(name: str, schedule: int) -> Sampler:
    """A uniform sampler whose state is what was done to it, as numbers of updates and refreshes."""
    base = uniform(2)
    return every(
        base._replace(
            init=lambda key, classes: (base.init(key, classes), jnp.zeros(2, jnp.int32)),
            sample=lambda state, key, query: base.sample(state[0], key, query),
            log_expected_count=lambda state, found, ids, query: base.log_expected_count(state[0], found, ids, query),
            update=lambda state, key, query, row_ids, rows: (state[0], state[1].at[0].add(1)),
            refresh=lambda state, key, classes: (state[0], state[1].at[1].add(1)),
        ),
        schedule,
    )


@pytest.mark.parametrize("combine", [lambda a, b: mixture([a, b]), lambda a, b: with_tail(distinct(a), b)])
def test_updates_refreshes_and_schedules_are_forwarded(combine: object) -> None:
    sampler = combine(recorder("a", 2), recorder("b", 3))
    state = sampler.init(START, CLASSES)
    state = sampler.update(state, START, QUERY, jnp.arange(1), jnp.zeros((1, 3)))
    state = sampler.refresh(state, START, CLASSES)
    assert [part[1].tolist() for part in state] == [[1, 1], [1, 1]]
    assert [step for step in range(8) if sampler.schedule(step)] == [2, 3, 4, 6]


def distinct(sampler: Sampler) -> Sampler:
    return sampler._replace(facts=dataclasses.replace(sampler.facts, with_replacement=False))


def test_static_parts_need_no_update() -> None:
    assert mixture([uniform(2), unigram(2)]).update is no_update
    assert mixture([uniform(2), learned_unigram(2)]).update is not no_update


def test_every() -> None:
    base = uniform(2)
    by_number, by_function = every(base, 5), every(base, lambda step: step in (0, 7))
    assert [step for step in range(12) if by_number.schedule(step)] == [5, 10]
    assert [step for step in range(12) if by_function.schedule(step)] == [0, 7]
    assert by_number._replace(schedule=base.schedule, share=base.share) == base
    for wrong in (0, -2):
        with pytest.raises(ValueError, match="schedule"):
            every(base, wrong)


def test_labels_of_the_batch_beside_what_follows_the_batch_are_not_exact() -> None:
    """Given which labels a batch has, the other part is drawn from them: counts no longer add."""
    of_labels, follows = cx.samplers.in_batch(), cx.samplers.partial_fc(6)
    for made in (
        mixture([of_labels, follows]),
        with_tail(follows, of_labels),
        mixture([mixture([follows]), of_labels]),
    ):
        assert not made.facts.exact
    others = cx.samplers.in_batch(num_groups=2), cx.samplers.partial_fc(6, num_groups=2)
    for right in (mixture([of_labels, uniform(6)]), with_tail(top_k(2), of_labels), mixture(others)):
        assert right.facts.exact
    assert mixture([of_labels, follows]).facts.of_batch
    assert and_labels(follows) is follows
    assert and_labels(uniform(6)).facts.law_over == "batch"


def test_schedules_are_numbers_of_steps_or_functions() -> None:
    index = cx.samplers.exact_index()
    made = {
        "retrieved": functools.partial(cx.samplers.retrieved, index, 2),
        "buckets": functools.partial(cx.samplers.buckets, index, 2),
        "lsh": functools.partial(cx.samplers.lsh, num_tables=2, num_hashes=2),
        "lsh_top_k": functools.partial(cx.samplers.lsh_top_k, 2, num_tables=2, num_hashes=2),
        "ivf_bq": functools.partial(cx.samplers.ivf_bq, 2, num_centers=2, hm_num=4),
        "knn_label": functools.partial(cx.samplers.knn_label, 2),
        "hashing_forest": functools.partial(cx.samplers.hashing_forest, 2),
        "midx": functools.partial(cx.samplers.midx, 2),
        "kernel": functools.partial(cx.samplers.kernel, 2),
    }
    for name, make in made.items():
        for schedule, due in ((3, [3, 6]), (lambda step: step == 2, [2])):
            assert [step for step in range(8) if make(schedule=schedule).schedule(step)] == due, name
        with pytest.raises(ValueError, match="schedule"):
            make(schedule=0)
