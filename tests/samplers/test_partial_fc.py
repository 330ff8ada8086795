"""Partial FC: labels first, then uniform others, exactly as many as asked for, with the counts of that law."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.samplers import partial_fc


def classes_of(num_valid: int, num_rows: int | None = None) -> cx.Classes:
    rows = num_valid if num_rows is None else num_rows
    return cx.Classes(jnp.full((rows, 2), jnp.nan), None, None, jnp.int32(num_valid))


def draw(sampler: cx.Sampler, labels: list[list[int]], classes: cx.Classes, seeds: int = 1) -> cx.Candidates:
    query = cx.Query(jnp.zeros((len(labels), 2)), jnp.asarray(labels, jnp.int32), classes)
    state = sampler.init(jax.random.key(0), classes)
    keys = jax.random.split(jax.random.key(7), seeds)
    return jax.jit(jax.vmap(sampler.sample, in_axes=(None, 0, None)))(state, keys, query)


LABELS = [[5, 9, -1], [9, 0, 31], [-1, 5, -1], [2, -1, -1]]


@pytest.mark.parametrize("num_groups", [1, 2, 4])
@pytest.mark.parametrize("num_valid", [32, 400])  # a race among all, and a stream of draws
def test_all_labels_of_the_group_and_exactly_so_many_distinct_ids(num_groups, num_valid):
    found = draw(partial_fc(10, num_groups=num_groups), LABELS, classes_of(num_valid, num_valid + 3), seeds=50)
    assert bool(found.mask.all())
    ids = np.asarray(found.ids)
    assert ids.shape == (50, num_groups, 10)
    for group, of_group in enumerate(np.split(np.asarray(LABELS), num_groups)):
        labels = set(of_group[of_group >= 0].tolist())
        for of_draw, counts in zip(ids[:, group], np.asarray(found.log_expected_count)[:, group], strict=True):
            assert len(set(of_draw.tolist())) == 10
            assert labels <= set(of_draw.tolist())
            assert of_draw.max() < num_valid
            share = (10 - len(labels)) / (num_valid - len(labels))
            wanted = [0.0 if c in labels else np.log(share) for c in of_draw.tolist()]
            np.testing.assert_allclose(counts, wanted, rtol=1e-5)


def test_others_are_uniform():
    ids = np.asarray(draw(partial_fc(8), LABELS, classes_of(32), seeds=20_000).ids)[:, 0]
    often = np.bincount(ids.ravel(), minlength=32) / 20_000
    labels = [0, 2, 5, 9, 31]
    np.testing.assert_array_equal(often[labels], 1)
    share = 3 / 27
    assert np.all(np.abs(np.delete(often, labels) - share) < 5 * np.sqrt(share * (1 - share) / 20_000))


def test_more_labels_than_slots_keeps_a_uniform_part_of_them():
    sampler = partial_fc(3)
    found = draw(sampler, LABELS, classes_of(32), seeds=20_000)
    assert bool(found.mask.all())
    often = np.bincount(np.asarray(found.ids).ravel(), minlength=32) / 20_000
    labels = [0, 2, 5, 9, 31]
    assert np.all(np.abs(often[labels] - 3 / 5) < 5 * np.sqrt(0.24 / 20_000))
    assert np.delete(often, labels).sum() == 0
    np.testing.assert_allclose(found.log_expected_count, np.log(3 / 5), rtol=1e-6)
    query = cx.Query(jnp.zeros((4, 2)), jnp.asarray(LABELS, jnp.int32), classes_of(32))
    first = jax.tree.map(lambda leaf: leaf[0], found)
    counts = sampler.log_expected_count(sampler.init(jax.random.key(0), query.classes), first, jnp.array([[1]]), query)
    assert float(counts[0, 0]) == -np.inf


def test_fewer_classes_than_slots_takes_them_all():
    found = draw(partial_fc(10), [[1], [3]], classes_of(6, 9))
    ids, mask = np.asarray(found.ids)[0, 0], np.asarray(found.mask)[0, 0]
    assert sorted(ids[mask].tolist()) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(np.asarray(found.log_expected_count)[0, 0], 0)


def test_no_labels_is_uniform_sampling():
    found = draw(partial_fc(4), [[-1], [-1]], classes_of(40))
    assert len(set(np.asarray(found.ids)[0, 0].tolist())) == 4
    np.testing.assert_allclose(found.log_expected_count, np.log(4 / 40), rtol=1e-6)


def test_css_with_partial_fc_estimates_the_full_normaliser():
    """Given the batch the counts are right: E[exp(loss + true logit)] is the normaliser."""
    rng = np.random.default_rng(0)
    classes = dataclasses.replace(classes_of(20), vectors=jnp.asarray(rng.normal(size=(20, 2)), jnp.float32))
    labels = jnp.array([[3], [7]])
    embeddings = jnp.asarray(rng.normal(size=(2, 2)), jnp.float32)
    sampler = partial_fc(6)
    state = sampler.init(jax.random.key(0), classes)

    def normaliser(key):
        loss = cx.sampled_loss(
            embeddings, labels, classes, sampler=sampler, state=state, key=key, loss=cx.losses.css, reduction="none"
        )
        return jnp.exp(loss + jnp.sum(embeddings * classes.vectors[labels[:, 0]], axis=1))

    values = np.asarray(jax.jit(jax.vmap(normaliser))(jax.random.split(jax.random.key(1), 40_000)), np.float64)
    wanted = np.exp(np.asarray(embeddings @ classes.vectors.T, np.float64)).sum(axis=1)
    stderr = values.std(axis=0) / 200
    assert np.all(np.abs(values.mean(axis=0) - wanted) < 5 * stderr)
    assert np.all(5 * stderr < 0.02 * wanted)


def test_refuses_numbers_that_make_no_sense():
    with pytest.raises(ValueError, match="num_sampled"):
        partial_fc(0)
    with pytest.raises(ValueError, match="divide the batch"):
        draw(partial_fc(3, num_groups=3), LABELS, classes_of(32))
