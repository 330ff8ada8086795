"""Losses on the differences between true and sampled logits."""

import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from candax.base import SampledLogits
from candax.checks import checked
from candax.cosines import widened
from candax.losses.common import (
    Reduction,
    mean_over_labels,
    negatives,
    reduce_over_samples,
    zero_without_labels,
)

Penalty: TypeAlias = Literal["logistic", "hinge"]


@checked
def ranking(
    logits: SampledLogits,
    *,
    margin: float | None = None,
    penalty: Penalty = "logistic",
    reduction: Reduction = "sum",
) -> Float[Array, " B"]:
    r"""Every true logit should exceed every sampled one by a margin.

    ``-mean_y sum_s log sigmoid(o_y - o_s - margin)``, or with the hinge ``mean_y sum_s max(0, margin - (o_y - o_s))``;
    hits of any label removed, no correction for counts. With the default margin, one label and one sample drawn
    uniformly from the other classes, the logistic form is ``css`` with that sample.

    Args:
        logits: see ``SampledLogits``. Expected counts are not used.
        margin: in nats; None is log(num_classes - 1). 1 is the usual choice for the hinge.
        penalty: "logistic" or "hinge".
        reduction: "sum" over the samples, or their "mean" (over those that are no hits).

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels or without samples. Time grows with labels times
        samples; memory does not.

    Raises:
        ValueError: if ``penalty`` or ``reduction`` is not one of its choices, or the margin below 0.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.zeros((1, 1)), one, none, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.ranking(logits)[0])))  # 1 + 99
        100
        >>> float(cx.losses.ranking(logits, margin=1.0, penalty="hinge")[0])
        1.0

    Source: Botev, Zheng, Barber, Complementary Sum Sampling (2017), equations 25 and 26; the hinge: Collobert and
        Weston, A Unified Architecture for Natural Language Processing (2008).
    """
    if margin is not None and margin < 0:
        raise ValueError(f"expected margin >= 0 or None, got {margin}.")
    margin = math.log(max(logits.num_classes - 1, 1)) if margin is None else margin
    keep = negatives(logits)

    sampled = jnp.where(keep, widened(logits.sampled), 0.0)

    # One label at a time, and again in the backward pass: nothing of size [B, T, S] is ever held.
    @jax.checkpoint
    def over_samples(true: Float[Array, " B"]) -> Float[Array, " B"]:
        shortfall = sampled - true[:, None] + margin
        each = jax.nn.softplus(shortfall) if penalty == "logistic" else jax.nn.relu(shortfall)
        return reduce_over_samples(each, keep, reduction)

    values = jax.lax.map(over_samples, jnp.where(logits.true_mask, widened(logits.true), 0.0).T).T
    return zero_without_labels(mean_over_labels(values, logits.true_mask), logits.true_mask)
