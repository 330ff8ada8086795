"""Margins: by angle in float64, at the edges, and with any likelihood loss behind them."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax import losses
from candax.base import Classes, SampledLogits
from tests.losses.problems import make


def cosines_of(angles: np.ndarray) -> SampledLogits:
    """True cosines of these angles [B, T]; random sampled cosines."""
    logits, _ = make()
    batch, labels = angles.shape
    sampled = np.random.default_rng(5).uniform(-1, 1, size=(batch, 4))
    return dataclasses.replace(
        jax.tree.map(lambda field: jnp.resize(field, (batch, field.shape[1])), logits),
        true=jnp.asarray(np.cos(angles), jnp.float32),
        true_log_expected_count=jnp.zeros((batch, labels)),
        true_mask=jnp.ones((batch, labels), bool),
        sampled=jnp.asarray(sampled, jnp.float32),
    )


def slope(margin, cosine: float) -> float:
    """D true logit / d cosine."""
    cosines = cosines_of(np.zeros((1, 1)))
    return float(
        jax.grad(lambda c: margin(dataclasses.replace(cosines, true=c)).true[0, 0])(jnp.array([[cosine]], jnp.float32))[
            0, 0
        ]
    )


@pytest.mark.parametrize("margin", [0.0, 0.2, 0.5, 2.0])
def test_arcface_is_the_cosine_of_the_wider_angle(margin):
    angles = np.linspace(0.01, math.pi - margin - 0.01, 50)[:, None]
    got = losses.arcface(cosines_of(angles), margin=margin, scale=10.0)
    np.testing.assert_allclose(got.true, 10 * np.cos(angles + margin), atol=2e-4)
    wanted = 10 * np.sin(angles + margin) / np.sin(angles)
    slopes = [slope(partial(losses.arcface, margin=margin, scale=10.0), math.cos(angle)) for angle in angles[5:-5:9, 0]]
    np.testing.assert_allclose(slopes, wanted[5:-5:9, 0], rtol=1e-3)


@pytest.mark.parametrize("margin", [0.2, 0.5, 1.5])
def test_arcface_falls_with_the_angle_beyond_pi_too(margin):
    angles = np.linspace(0.0, math.pi, 400)[:, None]
    got = np.asarray(losses.arcface(cosines_of(angles), margin=margin, scale=1.0).true)[:, 0]
    assert np.all(np.diff(got[1:]) < 0)
    beyond = angles[:, 0] > math.pi - margin + 1e-3
    assert beyond.any()
    np.testing.assert_allclose(got[beyond], np.cos(angles[beyond, 0]) - margin * math.sin(margin), atol=1e-6)


@pytest.mark.parametrize("cosine", [1.0, -1.0, 1.0 + 2e-7, -1.0 - 2e-7, 1.0 - 6e-8, -1.0 + 6e-8, 0.0])
def test_arcface_has_finite_gradients_at_the_ends(cosine):
    for margin in (0.0, 0.5, 3.0):
        assert np.isfinite(slope(partial(losses.arcface, margin=margin), cosine))
    # The fallback and the straight continuation have the slope of a cosine; the branch up to pi that of cos(t + m).
    assert slope(partial(losses.arcface, margin=0.5, scale=2.0), 1.0) == pytest.approx(2 * math.cos(0.5))
    assert slope(partial(losses.arcface, margin=0.5, scale=2.0), -1.0) == pytest.approx(2.0)


def test_cosface_lowers_true_cosines():
    angles = np.linspace(0, math.pi, 20)[:, None]
    cosines = cosines_of(angles)
    got = losses.cosface(cosines, margin=0.3, scale=7.0)
    np.testing.assert_allclose(got.true, 7 * (np.cos(angles) - 0.3), atol=1e-5)
    np.testing.assert_allclose(got.sampled, 7 * cosines.sampled)
    assert slope(partial(losses.cosface, scale=7.0), 1.0) == 7.0


@pytest.mark.parametrize("margin", [losses.arcface, losses.cosface])
@pytest.mark.parametrize("loss", [losses.css, losses.sampled_softmax, losses.subset_softmax])
def test_without_a_margin_it_is_the_scaled_cosine_softmax(margin, loss):
    logits, _ = make()
    logits = dataclasses.replace(logits, true=jnp.tanh(logits.true), sampled=jnp.tanh(logits.sampled))

    def scaled(logits):
        return loss(dataclasses.replace(logits, true=16 * logits.true, sampled=16 * logits.sampled))

    with_margin = losses.with_margin(partial(margin, margin=0.0, scale=16.0), loss)
    for got, wanted in zip(both(with_margin, logits), both(scaled, logits), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def both(loss, logits):
    """The sum of a loss, and its gradients to true and sampled logits."""

    def total(true, sampled):
        return jnp.sum(loss(dataclasses.replace(logits, true=true, sampled=sampled)))

    return total(logits.true, logits.sampled), *jax.grad(total, (0, 1))(logits.true, logits.sampled)


@pytest.mark.parametrize("margin", [losses.arcface, losses.cosface])
def test_a_margin_makes_the_true_class_harder_and_changes_nothing_else(margin):
    logits, _ = make()
    logits = dataclasses.replace(logits, true=jnp.tanh(logits.true), sampled=jnp.tanh(logits.sampled))
    got = margin(logits)
    none = margin(logits, margin=0.0)
    assert np.all(np.where(logits.true_mask, got.true - none.true, -2) < -1)
    np.testing.assert_array_equal(got.sampled, none.sampled)
    for name in ("true_log_expected_count", "true_mask", "sampled_log_expected_count", "sampled_mask", "hits"):
        np.testing.assert_array_equal(getattr(got, name), getattr(logits, name))
    assert got.num_classes == logits.num_classes


def test_errors_say_what_is_out_of_range():
    logits, _ = make()
    with pytest.raises(ValueError, match="less than pi"):
        losses.arcface(logits, margin=3.2)
    with pytest.raises(ValueError, match="less than pi"):
        losses.arcface(logits, margin=-0.1)
    with pytest.raises(ValueError, match="margin >= 0"):
        losses.cosface(logits, margin=-0.1)
    for margin in (losses.arcface, losses.cosface):
        with pytest.raises(ValueError, match="scale > 0"):
            margin(logits, scale=0.0)


def full_arcface_by_hand(embeddings, vectors, labels, margin, scale):
    """Float64, with arccos: mean loss of one label per example."""
    along = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    cosines = along @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    rows = np.arange(len(labels))
    angles = np.arccos(cosines[rows, labels])
    logits = scale * cosines
    beyond = scale * (np.cos(angles) - margin * math.sin(margin))
    logits[rows, labels] = np.where(angles + margin <= math.pi, scale * np.cos(angles + margin), beyond)
    top = logits.max(axis=1)
    return np.mean(top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[rows, labels])


def test_full_softmax_with_arcface_and_its_gradients_through_the_lengths():
    rng = np.random.default_rng(2)
    embeddings, vectors, labels = rng.normal(size=(5, 4)), rng.normal(size=(7, 4)), np.array([1, 0, 6, 3, 3])

    full = losses.over_all_classes(
        losses.with_margin(partial(losses.arcface, margin=0.5, scale=8.0), losses.subset_softmax)
    )

    def mean_loss(embeddings, vectors):
        classes = Classes(vectors, None, None, jnp.int32(7), normalized=True)
        return jnp.mean(full(embeddings, jnp.asarray(labels[:, None], jnp.int32), classes))

    arrays = [jnp.asarray(a, jnp.float32) for a in (embeddings, vectors)]
    value, gradients = jax.value_and_grad(mean_loss, (0, 1))(*arrays)
    assert float(value) == pytest.approx(full_arcface_by_hand(embeddings, vectors, labels, 0.5, 8.0), rel=1e-5)
    for i, gradient in enumerate(gradients):
        for place in [(0, 0), (1, 3), (4, 2)]:
            ends = []
            for step in (1e-5, -1e-5):
                moved = [embeddings.copy(), vectors.copy()]
                moved[i][place] += step
                ends.append(full_arcface_by_hand(*moved, labels, 0.5, 8.0))
            assert float(gradient[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-5)


def test_a_learned_scale_is_refused_with_what_to_do():
    logits = cosines_of(np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"scale to be a finite number, got an array .* a margin of your own"):
        jax.grad(lambda scale: jnp.sum(losses.arcface(logits, scale=scale).true))(10.0)


@pytest.mark.parametrize("margin", [losses.arcface, losses.cosface])
def test_cosines_of_16_bits_are_turned_and_scaled_in_32(margin):
    """64 times a cosine in bfloat16 is off by up to an eighth."""
    cosines = cosines_of(np.linspace(0.1, 3.0, 20)[:, None])
    narrow = {name: getattr(cosines, name).astype(jnp.bfloat16) for name in ("true", "sampled")}
    wide = {name: cosine.astype(jnp.float32) for name, cosine in narrow.items()}
    got, wanted = (margin(dataclasses.replace(cosines, **of)) for of in (narrow, wide))
    for name in wide:
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
