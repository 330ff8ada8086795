"""Losses made of others: every label an example of its own, or a part of the target for what the sampler draws."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from candax.alike import made_once
from candax.base import Loss, SampledLogits
from candax.checks import check_rate, checked
from candax.losses.common import (
    made_of,
    mean_over_labels,
    negatives,
    number_of_labels,
    reduce_over_samples,
    takes_cosines,
)


@checked
@made_once
def each_label(loss: Loss) -> Loss:
    """The loss times the number of labels: every label an example of its own, as a word's neighbours are in word2vec.

    ``T_b loss``: losses take the mean over an example's T_b labels, beside terms of its samples. Times T_b, each label
    counts as one, and the samples once for each. What the loss leaves out (hits with any of the labels) stays out.

    Args:
        loss: any loss on ``SampledLogits``.

    Returns:
        A loss.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> true, sampled = jnp.ones((1, 3), bool), jnp.ones((1, 5), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 3)), jnp.zeros((1, 3)), true, jnp.zeros((1, 5)),
        ...                           jnp.zeros((1, 5)), sampled, ~sampled, num_classes=100)
        >>> round(float(cx.losses.each_label(cx.losses.negative_sampling)(logits)[0] / jnp.log(2)))  # 3 (1 + 5)
        18
    """

    def of_labels(logits: SampledLogits) -> Float[Array, " B"]:
        values = loss(logits)
        return values * number_of_labels(logits).astype(values.dtype)

    return made_of(of_labels, loss)


@checked
@made_once
def with_smoothing(loss: Loss, smoothing: float) -> Loss:
    r"""A loss whose target is softened towards the sampled classes.

    ``loss(logits) + e (mean_y o_y - mean_s o_s)``, where s runs over the samples that are no true class. For a loss of
    the form ``-o_y + log Z``, such as ``sampled_softmax`` and ``css``, that is the cross-entropy with the target
    ``(1 - e) [c = y] + e q(c | c is no true class)``, where q is how the sampler draws: with a sampler by frequency the
    smoothing is towards frequent classes, with a uniform one it is the usual label smoothing among the other classes.

    Args:
        loss: any loss of ``SampledLogits``. One ``with_margin`` takes cosines, which are no logits yet: smooth the loss
            behind the margin, ``with_margin(margin, with_smoothing(css, e))``.
        smoothing: e, the part of the target that the sampled classes share, in [0, 1).

    Returns:
        A loss. Nats per example, float32 [B]; 0 for examples without labels.

    Raises:
        ValueError: if ``smoothing`` is out of range, or the loss has a margin.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one = jnp.ones((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.full((1, 1), 3.0), jnp.zeros((1, 1)), one, jnp.full((1, 1), 1.0),
        ...                           jnp.zeros((1, 1)), one, ~one, num_classes=2)
        >>> smoothed = cx.losses.with_smoothing(cx.losses.css, 0.2)
        >>> round(float(smoothed(logits)[0] - cx.losses.css(logits)[0]), 4)  # 0.2 (3 - 1)
        0.4

    Source: Szegedy et al., Rethinking the Inception Architecture for Computer Vision (2016), section 7, where the
        target is smoothed over all classes.
    """
    check_rate("smoothing", smoothing)
    if takes_cosines(loss):
        raise ValueError(
            "expected a loss of logits to smooth, got one with a margin, which makes logits of cosines: write "
            "with_margin(margin, with_smoothing(loss, ...))."
        )

    def loss_with_smoothing(logits: SampledLogits, **options: Any) -> Float[Array, " B"]:
        keep = negatives(logits)
        true = mean_over_labels(logits.true, logits.true_mask)
        sampled = reduce_over_samples(logits.sampled, keep, "mean")
        drawn = jnp.any(keep, axis=1) & jnp.any(logits.true_mask, axis=1)
        return loss(logits, **options) + smoothing * jnp.where(drawn, true - sampled, 0.0)

    return made_of(loss_with_smoothing, loss)
