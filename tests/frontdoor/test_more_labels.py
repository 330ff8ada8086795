"""True classes that have no slot among the labels are no negatives, for any number of them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx

CLASSES, SLOTS = 12, 2
LABELS = [[3, 7, 9, 10], [5, 1, 2, 11], [4, 6, 0, 8]]
ALL_CLASSES = cx.losses.over_all_classes(cx.losses.one_vs_all)
LOSSES = {
    "one_vs_all": cx.losses.one_vs_all,
    "negative_sampling": cx.losses.negative_sampling,
    "nce": functools.partial(cx.losses.nce, remove_hits=True),
    "d_softmax": functools.partial(cx.losses.d_softmax, scale=1.0),
    "each_label": cx.losses.each_label(cx.losses.negative_sampling),
}


def loss_of(loss, labels, more_labels=None, *, sampler=None, **options):
    rng = np.random.default_rng(0)
    vectors, embeddings = rng.normal(size=(CLASSES, 4)), rng.normal(size=(len(LABELS), 4))
    classes = cx.Classes(jnp.asarray(vectors, jnp.float32))
    state = () if sampler is None else sampler.init(jax.random.key(0), classes)
    given = jnp.asarray(embeddings, jnp.float32), jnp.asarray(labels), classes, state, more_labels
    return compiled(loss, sampler, tuple(options.items()))(*given)


@functools.cache
def compiled(loss, sampler, options):
    @jax.jit
    def of(embeddings, labels, classes, state, more_labels):
        sampled = {"sampler": sampler, "state": state, "key": jax.random.key(1)}
        return cx.sampled_loss(
            embeddings,
            labels,
            classes,
            **sampled,
            loss=loss,
            more_labels=more_labels,
            reduction="none",
            **dict(options),
        )

    return of


def subsets():
    """All choices of ``SLOTS`` labels per example, and the others as pairs, with one pad."""
    number = len(LABELS[0])
    for kept in itertools.combinations(range(number), SLOTS):
        others = [(row, of[i]) for row, of in enumerate(LABELS) for i in range(number) if i not in kept]
        yield [[of[i] for i in kept] for of in LABELS], np.array([*others, (-1, -1)])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("options", [{}, {"block_size": 2}, {"num_groups": 3}])
def test_the_mean_over_kept_labels_is_the_loss_of_all(name, options):
    options = dict(options)
    sampler = cx.samplers.log_uniform(9, num_groups=options.pop("num_groups", 1))
    whole = loss_of(LOSSES[name], LABELS, sampler=sampler, **options)
    some = [loss_of(LOSSES[name], labels, more, sampler=sampler, **options) for labels, more in subsets()]
    np.testing.assert_allclose(np.mean(some, axis=0), whole, rtol=1e-5)
    without = [loss_of(LOSSES[name], labels, sampler=sampler, **options) for labels, _ in subsets()]
    assert np.abs(np.mean(without, axis=0) - whole).max() > 0.1


@pytest.mark.parametrize("loss", [ALL_CLASSES, cx.losses.over_all_classes(cx.losses.blackout)])
def test_over_all_classes(loss):
    some = [loss_of(loss, labels, more) for labels, more in subsets()]
    np.testing.assert_allclose(np.mean(some, axis=0), loss_of(loss, LABELS), rtol=1e-5)


def test_losses_of_all_classes_together_keep_them_in_the_normaliser():
    for labels, more in subsets():
        full = loss_of(cx.losses.full_softmax, labels)
        np.testing.assert_allclose(loss_of(cx.losses.full_softmax, labels, more), full)
        css = loss_of(cx.losses.over_all_classes(cx.losses.css), labels, more)
        np.testing.assert_allclose(css, full, rtol=1e-5)


def test_what_is_wrong_is_said_or_nan():
    sampler, loss = cx.samplers.uniform(4), cx.losses.one_vs_all
    with pytest.raises(ValueError, match=r"expected more_labels \[M, 2\], .* got \[3\]"):
        loss_of(loss, LABELS, np.zeros(3, np.int32), sampler=sampler)
    for wrong in [(1, CLASSES), (1, -2)]:
        found = loss_of(loss, LABELS, np.array([wrong]), sampler=sampler)
        assert np.isnan(found).tolist() == [False, True, False]
    for nowhere in [(len(LABELS), 0), (-2, 0)]:
        assert np.isnan(loss_of(loss, LABELS, np.array([nowhere]), sampler=sampler)).all()


def test_pairs_of_a_prediction_that_is_masked_count_for_nothing():
    told = jnp.ones((3, 4)), jnp.array(LABELS), cx.Classes(jnp.eye(CLASSES, 4))
    where = jnp.array([True, False, True])
    for pair in [(1, CLASSES), (1, -2), (1, 0)]:
        loss = cx.sampled_loss(*told, sampler=None, loss=ALL_CLASSES, where=where, more_labels=jnp.array([pair]))
        assert loss == cx.sampled_loss(*told, sampler=None, loss=ALL_CLASSES, where=where)
    head = cx.Head(CLASSES, 4, loss=ALL_CLASSES, rngs=nnx.Rngs(0))
    cx.check(head, call=lambda head: head.loss(*told[:2], where=where, more_labels=jnp.array([(1, CLASSES)])))


def test_a_pair_with_a_minus_one_is_padding():
    for loss, sampler in [(cx.losses.one_vs_all, cx.samplers.log_uniform(9)), (ALL_CLASSES, None)]:
        wanted = loss_of(loss, LABELS, np.array([(-1, -1)]), sampler=sampler)
        for pad in [(-1, 0), (1, -1), (len(LABELS), -1), (-1, CLASSES)]:
            np.testing.assert_array_equal(loss_of(loss, LABELS, np.array([pad]), sampler=sampler), wanted)


def test_a_head_takes_none_at_all_as_nothing():
    head = cx.Head(CLASSES, 4, sampler=cx.samplers.uniform(4), rngs=nnx.Rngs(0))
    h = jnp.ones((3, 4))
    none = head.loss(h, jnp.asarray(LABELS), more_labels=np.zeros((0, 2), np.int32))
    head = cx.Head(CLASSES, 4, sampler=cx.samplers.uniform(4), rngs=nnx.Rngs(0))
    assert none == head.loss(h, jnp.asarray(LABELS))
