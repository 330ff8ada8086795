"""Values of the likelihood losses against calculations by hand in float64."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax import losses
from candax.base import SampledLogits
from candax.losses.common import (
    log_sum_exp,
    mean_over_labels,
    minus_log_expected_count,
    reduce_over_samples,
    without_hits,
    zero_without_labels,
)
from candax.testing import check_loss
from tests.losses.problems import Example, check_by_hand, draws_of, logits_of, make


def by_hand(fields: dict[str, np.ndarray], *, correct_true: bool, correct_sampled: bool) -> list[float]:
    """One example after the other: log of a sum of exponentials minus a mean."""
    result = []
    for b in range(3):
        total, mean, labels = 0.0, 0.0, int(fields["true_mask"][b].sum())
        for t in range(2):
            if fields["true_mask"][b, t]:
                logit = fields["true"][b, t] - correct_true * fields["true_count"][b, t]
                total += np.exp(logit)
                mean += logit / labels
        for s in range(4):
            if fields["sampled_mask"][b, s] and not fields["hits"][b, s]:
                total += np.exp(fields["sampled"][b, s] - correct_sampled * fields["sampled_count"][b, s])
        result.append(np.log(total) - mean)
    return result


def test_css_corrects_the_sampled_alone() -> None:
    logits, fields = make()
    np.testing.assert_allclose(losses.css(logits), by_hand(fields, correct_true=False, correct_sampled=True), rtol=1e-5)


def test_sampled_softmax_corrects_both() -> None:
    logits, fields = make()
    wanted = by_hand(fields, correct_true=True, correct_sampled=True)
    np.testing.assert_allclose(losses.sampled_softmax(logits), wanted, rtol=1e-5)


def test_subset_softmax_corrects_nothing() -> None:
    logits, fields = make()
    wanted = by_hand(fields, correct_true=False, correct_sampled=False)
    np.testing.assert_allclose(losses.subset_softmax(logits), wanted, rtol=1e-5)


def test_sampled_softmax_is_tensorflows() -> None:
    """TensorFlow's recipe: concatenated logits minus log Q, hits lowered by FLOAT_MAX, cross-entropy with 1 / T."""
    logits, fields = make(1)
    fields["true_mask"][:] = True
    fields["sampled_mask"][:] = True
    logits = SampledLogits(
        logits.true,
        logits.true_log_expected_count,
        jnp.asarray(fields["true_mask"]),
        logits.sampled,
        logits.sampled_log_expected_count,
        jnp.asarray(fields["sampled_mask"]),
        logits.hits,
        50,
    )
    lowered = np.where(fields["hits"], -float(np.finfo(np.float32).max), 0)
    out = np.concatenate(
        [fields["true"] - fields["true_count"], fields["sampled"] - fields["sampled_count"] + lowered], axis=1
    )
    target = np.concatenate([np.full((3, 2), 1 / 2), np.zeros((3, 4))], axis=1)
    top = out.max(axis=1, keepdims=True)
    log_softmax = out - top - np.log(np.exp(out - top).sum(axis=1, keepdims=True))
    wanted = -np.sum(np.where(target > 0, target * log_softmax, 0), axis=1)
    np.testing.assert_allclose(losses.sampled_softmax(logits), wanted, rtol=1e-5)


def test_css_with_the_head_explicit_and_the_tail_sampled_is_exact_on_average() -> None:
    """Classes 0 and 1 summed with count 1, two of classes 2..4 by inclusion probability: all 3 sets enumerated."""
    tail = np.array([0.3, -1.0, 2.0])
    normalisers = []
    for pair in ([0, 1], [0, 2], [1, 2]):
        sampled = jnp.asarray([[0.5, -0.2, *tail[pair]]], jnp.float32)
        counts = jnp.asarray([[0.0, 0.0, *np.log([2 / 3, 2 / 3])]], jnp.float32)
        hits = jnp.array([[True, False, False, False]])
        one = jnp.ones((1, 1), bool)
        logits = SampledLogits(jnp.array([[0.5]]), jnp.zeros((1, 1)), one, sampled, counts, ~hits | True, hits, 5)
        normalisers.append(np.exp(float(losses.css(logits)[0]) + 0.5))
    np.testing.assert_allclose(np.mean(normalisers), np.exp([0.5, -0.2]).sum() + np.exp(tail).sum(), rtol=1e-5)


def test_gradient_of_css_is_that_of_the_formula() -> None:
    logits, fields = make()
    of_logits = jax.grad(lambda logits: jnp.sum(losses.css(logits)), allow_int=True)(logits)
    keep = fields["sampled_mask"] & ~fields["hits"]
    true = np.where(fields["true_mask"], np.exp(fields["true"]), 0)
    sampled = np.where(keep, np.exp(fields["sampled"] - fields["sampled_count"]), 0)
    total = true.sum(axis=1, keepdims=True) + sampled.sum(axis=1, keepdims=True)
    target = fields["true_mask"] / fields["true_mask"].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(of_logits.true, true / total - target, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_logits.sampled, sampled / total, rtol=1e-5, atol=1e-6)


def test_an_impossible_true_class_is_not_corrected_but_still_learns() -> None:
    logits, _ = make()
    impossible = jnp.full((3, 2), -jnp.inf)
    with_zero_counts = SampledLogits(
        logits.true,
        impossible,
        logits.true_mask,
        logits.sampled,
        logits.sampled_log_expected_count,
        logits.sampled_mask,
        logits.hits,
        50,
    )
    np.testing.assert_allclose(losses.sampled_softmax(with_zero_counts), losses.css(logits), rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(losses.sampled_softmax(x)), allow_int=True)(with_zero_counts)
    assert np.all(np.asarray(gradient.true)[np.asarray(logits.true_mask)] != 0)


def test_an_example_without_labels_costs_nothing() -> None:
    logits, _ = make()
    unlabelled = cx.SampledLogits(
        logits.true,
        logits.true_log_expected_count,
        logits.true_mask.at[1].set(False),
        logits.sampled,
        logits.sampled_log_expected_count,
        logits.sampled_mask,
        logits.hits,
        50,
    )
    for loss in (losses.css, losses.sampled_softmax, losses.subset_softmax):
        assert loss(unlabelled)[1] == 0
        np.testing.assert_array_equal(loss(unlabelled)[::2], loss(logits)[::2])


def test_shared_pieces() -> None:
    counts = jnp.array([[0.5, -jnp.inf]])
    assert minus_log_expected_count(jnp.array([[2.0, 3.0]]), counts).tolist() == [[1.5, 3.0]]
    mask = jnp.array([[True, False], [False, False]])
    values = jnp.array([[4.0, jnp.nan], [jnp.nan, 1.0]])
    assert mean_over_labels(values, mask).tolist() == [4.0, 0.0]
    assert log_sum_exp(values, mask, jnp.zeros((2, 0)), jnp.zeros((2, 0), bool)).tolist() == [4.0, 0.0]
    logits, fields = make()
    assert np.array_equal(without_hits(logits), fields["sampled_mask"] & ~fields["hits"])
    keep = jnp.array([[True, True, False], [False, False, False]])
    samples = jnp.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    assert reduce_over_samples(samples, keep, "sum").tolist() == [3.0, 0.0]
    assert reduce_over_samples(samples, keep, "mean").tolist() == [1.5, 0.0]
    assert zero_without_labels(jnp.array([jnp.nan, jnp.nan]), mask).tolist()[1] == 0.0


def test_log_sum_exp_at_large_numbers() -> None:
    yes = jnp.ones((1, 1), bool)
    got = log_sum_exp(jnp.array([[3e4]]), yes, jnp.array([[3e4]]), yes)
    np.testing.assert_allclose(got, [3e4 + np.log(2)], rtol=1e-7)


CLASSES = np.array([0.5, -1.0, 1.2, 0.1, -0.4])
Q = np.array([0.3, 0.1, 0.25, 0.15, 0.2])
LABELS = [1, 3]


def redraw_by_hand(example: Example, num_kept: int | None = None) -> float:
    """The paper's estimate for one example: q from the counts, the first num_kept that are not true."""
    slots = len(example.sampled)
    q_true = np.exp(example.true_count).sum() / slots
    first = np.flatnonzero(~example.hits)[:num_kept]
    q = np.exp(example.sampled_count[first]) / slots
    complement = np.sum((1 - q_true) / (len(first) * q) * np.exp(example.sampled[first]))
    return float(np.log(np.exp(example.true).sum() + complement) - example.true.mean())


@pytest.mark.parametrize("num_kept", [None, 1, 2, 4])
def test_css_redraw_is_the_formula(num_kept: int | None) -> None:
    check_by_hand(
        partial(losses.css, complement="redraw", num_kept=num_kept), partial(redraw_by_hand, num_kept=num_kept)
    )


def test_css_of_all_draws() -> None:
    """5 classes, 2 of them true, all 125 draws of 3: unbiased for the complement, gradients bounded a class."""
    ids, probability = draws_of(Q, 3)
    none_left = Q[LABELS].sum() ** 3
    complement = np.exp(np.delete(CLASSES, LABELS)).sum()

    def total(loss: cx.base.Loss, classes: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = loss(logits_of(classes, np.tile(LABELS, (125, 1)), ids, 3 * Q))
        return jnp.sum(values), values

    for num_kept, expected in ((0, complement), *((kept, (1 - none_left) * complement) for kept in (None, 1, 2, 3))):
        loss = losses.css if num_kept == 0 else partial(losses.css, complement="redraw", num_kept=num_kept)
        tiled = jnp.tile(jnp.asarray(CLASSES, jnp.float32), (125, 1))
        (_, values), gradient = jax.value_and_grad(partial(total, loss), has_aux=True)(tiled)
        normaliser = np.exp(np.asarray(values, np.float64) + CLASSES[LABELS].mean())
        np.testing.assert_allclose(probability @ normaliser - np.exp(CLASSES[LABELS]).sum(), expected, rtol=1e-5)
        assert np.all(np.abs(gradient) <= 1)
        np.testing.assert_allclose(np.sum(gradient, axis=1), 0, atol=1e-6)


def test_css_redraw_keeps_the_first_and_obeys_the_laws() -> None:
    loss = partial(losses.css, complement="redraw", num_kept=2)
    check_loss(loss, laws=["gradient_weights", "masked", "shift"])
    logits, _ = make()
    gradient = jax.grad(lambda logits: jnp.sum(loss(logits)), allow_int=True)(logits).sampled
    wanted = np.array([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]], bool)
    assert np.array_equal(np.asarray(gradient) != 0, wanted)


def test_css_redraw_without_complement_is_finite() -> None:
    """Counts that give the labels more than all draws leave no sum but that of the labels."""
    logits, fields = make()
    logits = dataclasses.replace(logits, true_log_expected_count=jnp.full((3, 2), 60.0))
    true = np.where(fields["true_mask"], fields["true"], -np.inf)
    mean = [fields["true"][b][fields["true_mask"][b]].mean() for b in range(3)]
    wanted = np.log(np.exp(true).sum(axis=1)) - mean
    np.testing.assert_allclose(losses.css(logits, complement="redraw"), wanted, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda logits: jnp.sum(losses.css(logits, complement="redraw")), allow_int=True)(logits)
    assert np.all(np.isfinite(gradient.true))
    assert np.all(np.isfinite(gradient.sampled))


def test_css_refuses_what_cannot_be() -> None:
    logits, _ = make()
    for num_kept in (0, 5):
        with pytest.raises(ValueError, match="expected 1 <= num_kept <= 4"):
            losses.css(logits, complement="redraw", num_kept=num_kept)
    with pytest.raises(ValueError, match='belongs to complement="redraw"'):
        losses.css(logits, num_kept=2)


def test_redraw_goes_with_slots_that_are_alike() -> None:
    """Of a mixture the first slots are those of its first part, and K slots are no K draws from its mean."""
    first = partial(losses.css, complement="redraw", num_kept=2)
    all_kept = partial(losses.css, complement="redraw")
    cosface = losses.with_margin(losses.cosface, losses.each_label(first))
    wrapped = (losses.with_smoothing(first, 0.1), partial(losses.with_smoothing(losses.css, 0.1), complement="redraw"))
    parts = [cx.samplers.uniform(3), cx.samplers.unigram(3)]
    mixture, tail = cx.samplers.mixture(parts), cx.samplers.with_tail(cx.samplers.top_k(2), parts[0])
    refused = [(mixture, loss, {}) for loss in (first, all_kept, cosface, *wrapped)]
    shards: dict[str, Any] = {"num_shards": 3}
    for sampler, loss, options in (
        *refused,
        (tail, first, {}),
        (parts[0], first, shards),
        (parts[0], all_kept, shards),
    ):
        with pytest.raises(ValueError, match="expected a sampler whose slots are all drawn from one distribution"):
            cx.Head(9, 2, sampler=sampler, loss=loss, counts=np.ones(9), rngs=nnx.Rngs(0), **options)
    for loss in (first, cosface, *wrapped):
        cx.Head(9, 2, sampler=cx.samplers.unigram(4), loss=loss, counts=np.ones(9), rngs=nnx.Rngs(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_logit_gone_wrong_is_no_small_loss(bad: float) -> None:
    """NaN is neither above 0 nor below: a comparison took it for a normaliser that is not there."""
    one, none = jnp.ones((1, 2), bool), jnp.zeros((1, 2), bool)
    logits = cx.SampledLogits(
        jnp.full((1, 1), 3.0), jnp.zeros((1, 1)), one[:, :1], jnp.array([[1.0, bad]]), jnp.zeros((1, 2)), one, none, 9
    )
    masked = dataclasses.replace(logits, sampled_mask=jnp.array([[True, False]]))
    for loss in (losses.css, losses.sampled_softmax, losses.subset_softmax, losses.importance_sampling):
        assert not np.isfinite(loss(logits)[0])
        assert np.isfinite(loss(masked)[0])
    counted = dataclasses.replace(masked, sampled_log_expected_count=jnp.array([[np.nan, 0.0]]))
    assert np.isnan(losses.css(counted)[0])


def test_a_loss_of_each_label_needs_no_promotion_of_types() -> None:
    logits, _ = make()
    wanted = losses.css(logits) * jnp.array([2.0, 1.0, 2.0])
    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_allclose(losses.each_label(losses.css)(logits), wanted, rtol=1e-6)
