"""Label smoothing over candidates: the target that is trained towards, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax import losses


def test_target_of_the_other_classes_is_how_they_are_drawn():
    """The mean gradient of what is added is e [c = y] - e q(c | c is not y), also for a label that is often drawn."""
    counts = jnp.array([50.0, 20, 10, 5, 3, 1])
    classes = cx.Classes(jnp.zeros((6, 2)), jnp.zeros(6), counts)
    sampler, label, e = cx.samplers.unigram(64, power=1.0), 1, 0.2
    state = sampler.init(jax.random.key(0), classes)

    def added(biases, key):
        of = cx.Classes(classes.vectors, biases, counts)
        number = [
            cx.sampled_loss(jnp.zeros((1, 2)), jnp.array([label]), of, sampler=sampler, state=state, loss=loss, key=key)
            for loss in (losses.with_smoothing(losses.css, e), losses.css)
        ]
        return number[0] - number[1]

    keys = jax.random.split(jax.random.key(1), 4000)
    found = jax.jit(jax.vmap(jax.grad(added), (None, 0)))(classes.biases, keys)
    others = np.where(np.arange(6) == label, 0, counts)
    expected = e * ((np.arange(6) == label) - others / others.sum())
    error = np.std(found, axis=0) / np.sqrt(len(keys))
    assert np.all(np.abs(np.mean(found, axis=0) - expected) < 5 * error + 1e-6)


def test_further_true_classes_take_no_part():
    true = jnp.full((1, 1), 3.0)
    one, zero = jnp.ones((1, 1), bool), jnp.zeros((1, 2))
    logits = cx.SampledLogits(
        true, jnp.zeros((1, 1)), one, jnp.array([[1.0, 7.0]]), zero, jnp.ones((1, 2), bool), zero > 0, num_classes=9,
        num_labels=jnp.array([2]), more_hits=jnp.array([[False, True]]),
    )  # fmt: skip
    smoothed = losses.with_smoothing(losses.css, 0.5)(logits)[0] - losses.css(logits)[0]
    np.testing.assert_allclose(smoothed, 0.5 * (3 - 1), rtol=1e-6)


def test_cosines_before_a_margin_are_not_smoothed():
    behind = losses.with_margin(losses.cosface, losses.with_smoothing(losses.css, 0.1))
    with pytest.raises(ValueError, match=r"got one with a margin.*with_margin\(margin, with_smoothing"):
        losses.with_smoothing(losses.each_label(losses.with_margin(losses.cosface, losses.css)), 0.1)
    with pytest.raises(ValueError, match="got one with a margin"):
        losses.with_smoothing(behind, 0.1)
