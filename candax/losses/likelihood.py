"""Losses that approximate the softmax negative log-likelihood from a candidate set.

All of them are ``log(sum over true + sum over sampled) - mean of the true logits``. They differ in which logits lose
the log of their expected count, and agree in this: with every class as a candidate and expected count 1 they are the
full softmax loss.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from candax.base import SampledLogits
from candax.losses.common import log_sum_exp, mean_over_labels, minus_log_expected_count, without_hits


def _nll(
    true: Float[Array, "B T"], true_mask: Bool[Array, "B T"], sampled: Float[Array, "B S"], keep: Bool[Array, "B S"]
) -> Float[Array, "B"]:
    nll = log_sum_exp(true, true_mask, sampled, keep) - mean_over_labels(true, true_mask)
    return jnp.where(jnp.any(true_mask, axis=1), nll, 0.0)


def css(logits: SampledLogits) -> Float[Array, "B"]:
    r"""Complementary sum sampling: the true classes exactly, the others by importance or inclusion weights.

    ``log(sum_y exp(o_y) + sum_s exp(o_s - log_expected_count_s)) - mean_y o_y``, hits removed. The sum estimates the
    softmax normaliser without bias (its log, and so the loss, only asymptotically). Every class's gradient weight is in
    [-1, 1], and the weights sum to 0. With an importance sampler this is CSS-IS with draws from all classes of which
    hits are dropped; with a Bernoulli sampler, CSS-Bernoulli. Classes that are summed explicitly are candidates with
    log expected count 0.

    Args:
        logits: see ``SampledLogits``.

    Returns:
        Nats an example, float32 [B]; 0 for examples without labels.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.log(jnp.full((1, 1), 1 / 99)), one, none, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.css(logits)[0])))  # 1 + 99: one sample stands for 99 classes
        100

    Source: Botev, Zheng, Barber, Complementary Sum Sampling (2017), equations 18 and 19; where the paper draws until S
        samples are no hits and weights by 1 - q(y), hits are dropped here. Both are unbiased for the sum.
    """
    sampled = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    return _nll(logits.true, logits.true_mask, sampled, without_hits(logits))


def sampled_softmax(logits: SampledLogits) -> Float[Array, "B"]:
    r"""Sampled softmax: true and sampled logits both lose the log of their expected count; hits removed.

    ``log(sum_y exp(o'_y) + sum_s exp(o'_s)) - mean_y o'_y`` with ``o' = o - log_expected_count``.

    Args:
        logits: see ``SampledLogits``.

    Returns:
        Nats an example, float32 [B]; 0 for examples without labels.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.zeros((1, 1)), one, none, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.sampled_softmax(logits)[0])))
        2

    Source: TensorFlow's sampled_softmax_loss with remove_accidental_hits; Jean et al., On Using Very Large Target
        Vocabulary for Neural Machine Translation (2015), section 3.
    """
    true = minus_log_expected_count(logits.true, logits.true_log_expected_count)
    sampled = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    return _nll(true, logits.true_mask, sampled, without_hits(logits))


def subset_softmax(logits: SampledLogits) -> Float[Array, "B"]:
    r"""The softmax over the true and the sampled classes alone, without correction; hits removed.

    ``log(sum_y exp(o_y) + sum_s exp(o_s)) - mean_y o_y``. Not a consistent estimate of the full softmax under random
    candidates, but what training on retrieved hard classes uses. A class drawn twice counts twice: prefer samplers
    without replacement.

    Args:
        logits: see ``SampledLogits``.

    Returns:
        Nats an example, float32 [B]; 0 for examples without labels.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.log(jnp.full((1, 1), 1 / 99)), one, none, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.subset_softmax(logits)[0])))
        2

    Source: Jean et al. (2015), the large-vocabulary softmax over a subset; also what Daghaghi et al. (ICML 2021) and
        Zhao et al., ANN Softmax (PVLDB 2022) train with.
    """
    return _nll(logits.true, logits.true_mask, logits.sampled, without_hits(logits))
