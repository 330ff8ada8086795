"""The classic importance sampling estimate of the softmax likelihood: kept for comparison, unstable on purpose."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from candax.base import SampledLogits
from candax.checks import checked
from candax.losses.common import (
    log_sum_exp,
    mean_over_labels,
    minus_log_expected_count,
    zero_without_labels,
)


@checked
def importance_sampling(logits: SampledLogits) -> Float[Array, " B"]:
    r"""Negative log-likelihood with the normaliser estimated from the samples alone.

    ``log(sum_s exp(o_s - log_expected_count_s)) - mean_y o_y``. The true classes are not in the sum unless they were
    drawn; hits stay, with their weight. The sum estimates the normaliser over the sampler's support without bias (its
    log, and so the loss, only asymptotically), but the estimated probability of a true class is not bounded by 1 and
    the loss not bounded below: where the true class dominates and was not drawn, training raises its logit without
    end. Prefer ``css``, which differs in this alone.

    An example without any candidate has no estimate of its normaliser: its loss is 0, without gradient.

    Args:
        logits: see ``SampledLogits``. True counts and ``hits`` are not used.

    Returns:
        Nats per example, float32 [B], possibly negative; 0 for examples without labels or without candidates.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one = jnp.ones((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.full((1, 1), 9.0), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.log(jnp.full((1, 1), 1 / 100)), one, ~one, num_classes=100)
        >>> p_true = jnp.exp(-cx.losses.importance_sampling(logits)[0])
        >>> bool(p_true > 1)  # exp(9) / 100
        True

    Source: Bengio and Senecal, Quick Training of Probabilistic Neural Nets by Importance Sampling (2003); Botev, Zheng,
        Barber, Complementary Sum Sampling (2017), equations 15 and 16.
    """
    sampled = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    nobody = jnp.zeros_like(logits.true_mask)
    log_normaliser = log_sum_exp(logits.true, nobody, sampled, logits.sampled_mask)
    nll = log_normaliser - mean_over_labels(logits.true, logits.true_mask)
    nll = jnp.where(jnp.any(logits.sampled_mask, axis=1), nll, 0.0)
    return zero_without_labels(nll, logits.true_mask)
