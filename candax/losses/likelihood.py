"""Losses that approximate the softmax negative log-likelihood from a candidate set.

All but ``importance_sampling``, which has no sum over true classes, are ``log(sum over true + sum over sampled) - mean
of the true logits``. They differ in which logits lose the log of their expected count, and agree in this: with every
class as a candidate and expected count 1 they are the full softmax loss.
"""

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from candax.base import SampledLogits
from candax.checks import checked
from candax.losses.common import (
    log_sum_exp,
    mean_over_labels,
    minus_log_expected_count,
    without_hits,
    zero_without_labels,
)

Complement: TypeAlias = Literal["drop", "redraw"]


def _nll(
    true: Float[Array, "B T"], true_mask: Bool[Array, "B T"], sampled: Float[Array, "B S"], keep: Bool[Array, "B S"]
) -> Float[Array, " B"]:
    nll = log_sum_exp(true, true_mask, sampled, keep) - mean_over_labels(true, true_mask)
    return zero_without_labels(nll, true_mask)


@checked
def css(logits: SampledLogits, *, complement: Complement = "drop", num_kept: int | None = None) -> Float[Array, " B"]:
    r"""Complementary sum sampling: the true classes exactly, the others by importance or inclusion weights.

    ``log(sum_y exp(o_y) + sum_s w_s exp(o_s)) - mean_y o_y``, where s runs over samples that are no hits. Every class's
    gradient weight is in [-1, 1], and the weights sum to 0. The sum over s estimates that over all classes that are
    not true (the complement), in one of two ways:

    * "drop": all samples that are no hits, ``w_s = exp(-log_expected_count_s)``. Unbiased for the complement, with
      any sampler: with an importance sampler this is CSS-IS (w = 1 / (S q(d))), with a Bernoulli sampler CSS-Bernoulli
      (w = 1 / b(d)). Classes that are summed explicitly are candidates with log expected count 0.
    * "redraw": for each example the first ``num_kept`` samples that are no hits, the same as drawing from
      ``q(d) / (1 - q(Y))`` over the complement: ``w_s = (1 - q(Y)) / (K q(d))``, where K is how many were kept and q(Y)
      the probability of all true classes of the example. **Only for samplers whose slots are drawn independently
      from one distribution** (``sampler.facts.alike``): with replacement, and no mixture, no tail and no shards. Heads
      refuse others. q is ``exp(log_expected_count)`` divided by the number of unmasked slots.
      Given that K > 0, unbiased for the complement, also where fewer than ``num_kept`` samples are no hits; with
      K = 0, of probability ``q(Y) ** slots``, the sum over the complement counts as 0.

    The loss itself, a log of an unbiased sum, is only asymptotically unbiased.

    Args:
        logits: see ``SampledLogits``.
        complement: "drop" or "redraw".
        num_kept: for "redraw", how many samples to keep for each example, at most the number of slots: with S + S'
            slots and ``num_kept=S`` the S' are spare. None keeps all that are no hits.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

    Raises:
        ValueError: if ``complement`` is neither, or ``num_kept`` is given with "drop", below 1 or above the number of
            slots.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.zeros((1, 1)), jnp.log(jnp.full((1, 1), 1 / 100)), one, jnp.zeros((1, 1)),
        ...                           jnp.log(jnp.full((1, 1), 1 / 100)), one, none, num_classes=100)
        >>> round(float(jnp.exp(cx.losses.css(logits)[0])))  # 1 + 100: the weight of a draw from all classes
        101
        >>> round(float(jnp.exp(cx.losses.css(logits, complement="redraw")[0])))  # 1 + 99: of one from the others
        100

    Source: Botev, Zheng, Barber, Complementary Sum Sampling (2017), equations 18 and 19; "redraw" is the paper's
        scheme for shared samples (section 6.2).
    """
    keep = without_hits(logits)
    sampled = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    if complement == "redraw":
        keep, log_correction = _redraw(logits, keep, keep.shape[1] if num_kept is None else num_kept)
        sampled += log_correction[:, None]
    elif num_kept is not None:
        raise ValueError(f'num_kept={num_kept} belongs to complement="redraw"; "drop" keeps every sample but hits.')
    return _nll(logits.true, logits.true_mask, sampled, keep)


def _redraw(
    logits: SampledLogits, keep: Bool[Array, "B S"], num_kept: int
) -> tuple[Bool[Array, "B S"], Float[Array, " B"]]:
    """The first ``num_kept`` of the samples to keep, and log((1 - q(Y)) drawn / K), what their weights gain."""
    slots = keep.shape[1]
    if not min(1, slots) <= num_kept <= slots:
        raise ValueError(
            f"expected 1 <= num_kept <= {slots}, the number of sampled slots, got {num_kept}: draw more samples "
            "(num_kept and some to spare) or keep fewer."
        )
    drawn = jnp.sum(logits.sampled_mask, axis=1).astype(logits.true_log_expected_count.dtype)
    if num_kept < slots:
        keep &= jnp.cumsum(keep, axis=1) <= num_kept
    kept = jnp.sum(keep, axis=1)
    true_count = jnp.exp(jnp.where(logits.true_mask, logits.true_log_expected_count, -jnp.inf))
    outside = drawn - jnp.sum(true_count, axis=1)  # drawn (1 - q(Y)): the expected number of samples that are no hits
    # Counts that leave nothing outside (rounding, or a sampler that is not one with replacement) must not make a NaN.
    keep &= (outside > 0)[:, None]
    ratio = jnp.where((outside > 0) & (kept > 0), outside / jnp.maximum(kept, 1).astype(outside.dtype), 1.0)
    return keep, jax.lax.stop_gradient(jnp.log(ratio))


@checked
def sampled_softmax(logits: SampledLogits) -> Float[Array, " B"]:
    r"""Sampled softmax: true and sampled logits both lose the log of their expected count; hits removed.

    ``log(sum_y exp(o'_y) + sum_s exp(o'_s)) - mean_y o'_y`` with ``o' = o - log_expected_count``. With the other
    examples' labels as candidates, and their expected counts, this is the in-batch softmax corrected for popularity
    (Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations, 2019).

    Args:
        logits: see ``SampledLogits``.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

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


@checked
def subset_softmax(logits: SampledLogits) -> Float[Array, " B"]:
    r"""The softmax over the true and the sampled classes alone, without correction; hits removed.

    ``log(sum_y exp(o_y) + sum_s exp(o_s)) - mean_y o_y``. Not a consistent estimate of the full softmax under random
    candidates, but what training on retrieved hard classes uses. A class drawn twice counts twice: prefer samplers
    without replacement.

    Args:
        logits: see ``SampledLogits``.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

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


@checked
def importance_sampling(logits: SampledLogits) -> Float[Array, " B"]:
    r"""Negative log-likelihood with the normaliser estimated from the samples alone: for comparison, not for use.

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
