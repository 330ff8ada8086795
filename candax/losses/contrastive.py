"""Losses that tell true classes from sampled ones, each logit by itself (sigmoid) or among the candidates (BlackOut).

An example's labels share the weight of one: the mean over its labels of ``-log p(true)`` stands beside the terms of its
samples (but for ``one_vs_all``, where each label counts). None of these losses is a likelihood; the docstrings give
their optima where these are known.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from candax.base import SampledLogits
from candax.checks import checked
from candax.cosines import widened
from candax.losses.common import (
    Reduction,
    log_sum_exp,
    mean_over_labels,
    minus_log_expected_count,
    negatives,
    number_of_labels,
    reduce_over_samples,
    softplus,
    without_hits,
    zero_without_labels,
)


def _sigmoid(
    true: Float[Array, "B T"],
    true_mask: Bool[Array, "B T"],
    sampled: Float[Array, "B S"],
    keep: Bool[Array, "B S"],
    *,
    reduction: Reduction = "sum",
    positive_weight: Float[Array, " B"] | float = 1.0,
    sample_weight: float = 1.0,
) -> Float[Array, " B"]:
    """``-w mean_y log sigmoid(o_y) - v sum_s log sigmoid(-o_s)`` over the unmasked; 0 without labels."""
    positive = mean_over_labels(softplus(-jnp.where(true_mask, widened(true), 0.0)), true_mask)
    negative = reduce_over_samples(softplus(jnp.where(keep, widened(sampled), 0.0)), keep, reduction)
    return zero_without_labels(positive_weight * positive + sample_weight * negative, true_mask)


@checked
def nce(
    logits: SampledLogits,
    *,
    log_normalizer: Float[Array, " B"] | Float[Array, ""] | float = 0.0,
    remove_hits: bool = False,
) -> Float[Array, " B"]:
    r"""Noise contrastive estimation: tell the true class from S noise classes by the ratio of model and noise.

    ``-mean_y log sigmoid(d_y) - sum_s log sigmoid(-d_s)`` with ``d = o - log_normalizer - log_expected_count``. With
    replacement the count is S q(c), and sigmoid(d_c) the probability that c is the label and none of S noise draws,
    where labels follow ``p'(c) = exp(o_c - log_normalizer)``. In expectation the gradient is 0 where p' is the
    distribution of the labels, if hits stay. The default takes the model as normalised (z = 1): exp(o) is then driven
    to be a distribution by itself. Logits that start at 0 are far from that, and classes that are hardly ever drawn
    stay there, above all others: start biases at -log(num_classes), or pass ``log_normalizer=log(num_classes)``.

    Args:
        logits: see ``SampledLogits``.
        log_normalizer: log z in nats, one number or one per example [B]; differentiable, so it may be learned. One per
            example does not go with a head's ``block_size``.
        remove_hits: leave sampled classes out that are labels of the example. Common practice, but the optimum moves.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.zeros((1, 1)), one, none, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.nce(logits)[0])))  # log 2 for either of the two
        4

    Source: Gutmann and Hyvarinen, Noise-Contrastive Estimation (2010); Mnih and Teh, A Fast and Simple Algorithm for
        Training Neural Probabilistic Language Models (2012), for z = 1; Botev et al. (2017), section 5.2.
    """
    log_z = jnp.reshape(jnp.asarray(log_normalizer, widened(logits.true).dtype), (-1, 1))
    if len(log_z) not in (1, len(logits.true)):
        raise ValueError(f"expected one log_normalizer or {len(logits.true)}, one per example, got {len(log_z)}.")
    true = minus_log_expected_count(logits.true - log_z, logits.true_log_expected_count)
    sampled = minus_log_expected_count(logits.sampled - log_z, logits.sampled_log_expected_count)
    keep = negatives(logits) if remove_hits else logits.sampled_mask
    return _sigmoid(true, logits.true_mask, sampled, keep)


@checked
def negative_sampling(
    logits: SampledLogits, *, reduction: Reduction = "sum", sample_weight: float = 1.0, remove_hits: bool = True
) -> Float[Array, " B"]:
    r"""Negative sampling (word2vec): binary cross-entropy without any correction.

    ``-mean_y log sigmoid(o_y) - sum_s log sigmoid(-o_s)``, or the mean over the samples in place of the sum. With k
    draws from q, hits kept and a free logit for every class of every input x the optimum of the sum is
    ``o = log(p(c | x) / q(c)) - log k`` (PMI - log k, where q is the unigram distribution), of the mean the same
    without ``log k``. word2vec drops draws that equal the true class, which is the default here and subtracts a further
    ``log(1 - p(c | x))`` from the optimum of the sum.

    Args:
        logits: see ``SampledLogits``. Expected counts are not used.
        reduction: "sum" over the samples (word2vec) or their "mean" (over the samples that are not removed).
        sample_weight: of the samples beside the true class. With "mean" and the weight k a shared set of any size
            stands for word2vec's k draws of each example's own, and the optimum is that of the sum with k draws.
        remove_hits: leave sampled classes out that are labels of the example.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

    Raises:
        ValueError: if ``reduction`` is neither, or ``sample_weight`` is not positive.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> true, sampled = jnp.ones((1, 1), bool), jnp.ones((1, 5), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), true, jnp.zeros((1, 5)),
        ...                           jnp.zeros((1, 5)), sampled, ~sampled, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.negative_sampling(logits)[0])))  # 2 ** 6
        64
        >>> round(float(jnp.exp(cx.losses.negative_sampling(logits, reduction="mean")[0])))
        4

    Source: Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality (2013), equation
        4; the mean: Botev et al. (2017), equation 29; the optimum: Levy and Goldberg, Neural Word Embedding as Implicit
        Matrix Factorization (2014).
    """
    if not 0 < sample_weight < float("inf"):
        raise ValueError(f"expected a sample_weight above 0, got {sample_weight!r}.")
    keep = negatives(logits) if remove_hits else logits.sampled_mask
    return _sigmoid(
        logits.true, logits.true_mask, logits.sampled, keep, reduction=reduction, sample_weight=sample_weight
    )


@checked
def gbce(logits: SampledLogits, *, calibration: float = 0.75) -> Float[Array, " B"]:
    r"""Generalised binary cross-entropy (gSASRec): negative sampling with the true class's probability to a power.

    ``-beta mean_y log sigmoid(o_y) - sum_s log sigmoid(-o_s)``, hits removed, no correction. With K samples that are
    no hits, ``alpha = min(1, K / (num_classes - 1))`` is the share of the other classes that were sampled, and
    ``beta = 1 - calibration (1 - alpha)``: 0 is negative sampling, which overstates probabilities; at 1, with negatives
    uniform over the other classes, the optimum is ``sigmoid(o_c) = p(c | x)``.

    Args:
        logits: see ``SampledLogits``. Expected counts are not used: the formula is for uniform samplers.
        calibration: t of the paper, from 0 to 1.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels. The paper's loss divides it by K + 1.

    Raises:
        ValueError: if ``calibration`` is not in [0, 1].

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.zeros((1, 1)), one, none, num_classes=5)
        >>> round(float(cx.losses.gbce(logits, calibration=1.0)[0] / jnp.log(2)), 3)  # beta = alpha = 1 / 4
        1.25

    Source: Petrov and Macdonald, gSASRec: Reducing Overconfidence in Sequential Recommendation Trained with Negative
        Sampling (2023).
    """
    if not 0 <= calibration <= 1:
        raise ValueError(f"expected calibration from 0 (plain negative sampling) to 1 (calibrated), got {calibration}.")
    keep = negatives(logits)
    alpha = jnp.minimum(jnp.sum(keep, axis=1).astype(widened(logits.true).dtype) / max(logits.num_classes - 1, 1), 1.0)
    beta = 1 - calibration * (1 - alpha)
    return _sigmoid(logits.true, logits.true_mask, logits.sampled, keep, positive_weight=beta)


@checked
def one_vs_all(logits: SampledLogits) -> Float[Array, " B"]:
    r"""The binary cross-entropy of every class for itself, that over false classes estimated from the samples.

    ``-sum_y log sigmoid(o_y) - sum_s log sigmoid(-o_s) / count_s``, hits removed: an unbiased estimate of
    ``-sum_{c in Y} log sigmoid(o_c) - sum_{c not in Y} log sigmoid(-o_c)`` with any sampler that can draw every class
    and states its counts. At its optimum ``sigmoid(o_c)`` is the probability that c is among the labels, by which
    precision at k asks for classes to be ranked; a softmax over the mean of labels ranks by another number.

    Start biases from the log prior: with all logits at 0 the gradient is that of num_classes halves.

    Args:
        logits: see ``SampledLogits``.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.log(jnp.full((1, 1), 0.25)), one, none, num_classes=5)
        >>> round(float(cx.losses.one_vs_all(logits)[0] / jnp.log(2)), 3)  # one true class, and one that stands for 4
        5.0

    Source: one-vs-all as in Babbar and Schoelkopf, DiSMEC: Distributed Sparse Machines for Extreme Multi-label
        Classification (2017), with the logistic loss; the estimate is Horvitz and Thompson's.
    """
    keep = negatives(logits)
    # What its sampler cannot draw (count 0) stands for itself alone.
    counted = keep & (logits.sampled_log_expected_count > -jnp.inf)
    weight = jnp.exp(-jax.lax.stop_gradient(jnp.where(counted, logits.sampled_log_expected_count, 0.0)))
    positive = mean_over_labels(softplus(-jnp.where(logits.true_mask, widened(logits.true), 0.0)), logits.true_mask)
    negative = reduce_over_samples(weight * softplus(jnp.where(keep, widened(logits.sampled), 0.0)), keep, "sum")
    return zero_without_labels(number_of_labels(logits).astype(positive.dtype) * positive + negative, logits.true_mask)


@checked
def blackout(logits: SampledLogits) -> Float[Array, " B"]:
    r"""BlackOut: raise the true class's probability among the candidates, lower that of every sampled one.

    ``-mean_y log p(y) - sum_s log(1 - p(s))`` with ``p(c) = exp(o'_c) / (sum_y exp(o'_y) + sum_s exp(o'_s))`` and
    ``o' = o - log_expected_count``; hits removed. Several labels stand in the one sum together. Scaling all counts
    changes nothing, so that with a uniform sampler this is the same loss without any correction. A slot is one term: a
    class drawn twice counts twice. Stable for any logits: 1 - p(s) is never formed by subtraction from a rounded 1.

    Args:
        logits: see ``SampledLogits``.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.zeros((1, 1)), one, none, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.blackout(logits)[0])))  # p = 1/2 and 1 - p = 1/2
        4

    Source: Ji, Vishwanathan, Satish, Anderson, Dubey, BlackOut: Speeding up Recurrent Neural Network Language Models
        With Very Large Vocabularies (2016); Botev et al. (2017), equations 30 and 31.
    """
    summed = without_hits(logits)  # labels without a slot among them, which are no negatives
    true = minus_log_expected_count(logits.true, logits.true_log_expected_count)
    sampled = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    log_total = log_sum_exp(true, logits.true_mask, sampled, summed)
    probability = jnp.exp(jnp.where(summed, sampled, -jnp.inf) - log_total[:, None])
    # At most one sample has more than 3/4; for that one 1 - p is the sum over all the others.
    dominant = jax.lax.stop_gradient(probability) > 0.75
    log_others = log_sum_exp(true, logits.true_mask, sampled, summed & ~dominant)
    log_complement = jnp.where(
        dominant, (log_others - log_total)[:, None], jnp.log1p(-jnp.where(dominant, 0.0, probability))
    )
    positive = log_total - mean_over_labels(true, logits.true_mask)
    negative = -reduce_over_samples(log_complement, negatives(logits), "sum")
    return zero_without_labels(positive + negative, logits.true_mask)
