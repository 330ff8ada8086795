"""D-Softmax: the softmax taken apart into a loss within the class and a loss between classes, on cosines."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from candax.base import SampledLogits
from candax.checks import checked
from candax.cosines import widened
from candax.losses.common import (
    log_sum_exp,
    mean_over_labels,
    minus_log_expected_count,
    negatives,
    zero_without_labels,
)
from candax.losses.margins import check_scale


@checked
def d_softmax(
    logits: SampledLogits, *, end_point: float = 0.9, scale: float = 32.0, corrected: bool = False
) -> Float[Array, " B"]:
    r"""Dissected softmax: ``mean_y log(1 + e^{s (d - cos_y)}) + log(1 + sum_k e^{s cos_k})``, k over the others.

    The first term pulls the true class until its cosine is about d, whatever the others do; the second pushes the
    others away, whatever the true class does. The sum of the two is no transformation of logits, so this is a loss of
    its own on the cosines, and takes no margin. Hits are removed.

    Over all classes (``over_all_classes(d_softmax)``) it is the paper's D-Softmax. **D-Softmax-K**, the second term
    over a random share of the other classes, is no loss of its own: it is this one with sampled candidates, uniform
    ones or those of any other sampler (ANN Softmax puts its retrieval there). As in the paper the sampled sum stands
    for itself; ``corrected=True`` weights it by the expected counts instead, so that it estimates the sum over all
    classes. For **D-Softmax-B**, the second term for a share of the batch, see ``d_softmax_b``.

    Args:
        logits: ``SampledLogits`` of cosines, from a head with ``normalized=True``.
        end_point: d, the cosine at which the pull towards the true class fades.
        scale: s.
        corrected: weight sampled classes by exp(-log_expected_count).

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

    Raises:
        ValueError: if the scale is not positive, or the end point no cosine.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.full((1, 1), 0.9), jnp.zeros((1, 1)), one, jnp.zeros((1, 1)),
        ...                           jnp.zeros((1, 1)), one, none, num_classes=2)
        >>> round(float(jnp.exp(cx.losses.d_softmax(logits)[0])), 4)  # (1 + 1) (1 + 1)
        4.0

        D-Softmax-K with a tenth of 1000 classes:

        >>> from flax import nnx
        >>> sampler = cx.samplers.uniform(100, replacement=False)
        >>> head = cx.Head(1000, 8, sampler=sampler, loss=cx.losses.d_softmax, normalized=True, rngs=nnx.Rngs(1))

    Source: He, Wang, Li, Wang, Softmax Dissection: Towards Understanding Intra- and Inter-class Objective for Embedding
        Learning (2020).
    """
    check_scale(scale)
    within = _within(logits, end_point, scale)
    return zero_without_labels(within + _between(logits, scale, corrected), logits.true_mask)


@checked
def d_softmax_b(
    logits: SampledLogits,
    *,
    share: float = 0.1,
    end_point: float = 0.9,
    scale: float = 32.0,
    corrected: bool = False,
) -> Float[Array, " B"]:
    r"""D-Softmax-B: ``d_softmax`` with the loss between classes of a share of the batch's examples only.

    The first n = max(1, round(share B)) examples carry the second term, times B / n, so that the mean over the batch
    is the mean of the first term plus the n examples' mean of the second. Batches must be shuffled: a loss has no key
    with which to choose the n. What an example costs depends on its place in the batch, which is so for no other loss
    here. All examples have been scored by then: this shows what the variant does to training, but it saves no product.

    Args:
        logits: as in ``d_softmax``.
        share: of the batch's examples, in (0, 1].
        end_point: as in ``d_softmax``.
        scale: as in ``d_softmax``.
        corrected: as in ``d_softmax``.

    Returns:
        Nats per example, float32 [B]; 0 for examples without labels.

    Not with a head's ``block_size``: the share would be that of each block.

    Raises:
        ValueError: if the share, the scale or the end point is out of range.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((2, 1), bool), jnp.zeros((2, 1), bool)
        >>> logits = cx.SampledLogits(jnp.full((2, 1), 0.9), jnp.zeros((2, 1)), one, jnp.zeros((2, 1)),
        ...                           jnp.zeros((2, 1)), one, none, num_classes=2)
        >>> [round(float(x), 4) for x in jnp.exp(cx.losses.d_softmax_b(logits, share=0.5))]  # 2 * 2^2, and 2
        [8.0, 2.0]

    Source: as ``d_softmax``; the share as in Zhao et al., ANN Softmax (PVLDB 2022), section 4.
    """
    check_scale(scale)
    if not 0 < share <= 1:
        raise ValueError(f"expected 0 < share <= 1, the share of examples with a loss between classes, got {share!r}.")
    batch_size = logits.true.shape[0]
    number = min(max(1, round(share * batch_size)), batch_size)
    some = jax.tree.map(lambda field: field[:number], logits)
    between = jnp.pad(batch_size / max(number, 1) * _between(some, scale, corrected), (0, batch_size - number))
    return zero_without_labels(_within(logits, end_point, scale) + between, logits.true_mask)


def _within(logits: SampledLogits, end_point: float, scale: float) -> Float[Array, " B"]:
    if not -1 <= end_point <= 1:
        raise ValueError(f"expected end_point to be a cosine, of -1 to 1, got {end_point}.")
    cosines = jnp.where(logits.true_mask, widened(logits.true), 0.0)
    return mean_over_labels(jax.nn.softplus(scale * (end_point - cosines)), logits.true_mask)


def _between(logits: SampledLogits, scale: float, corrected: bool) -> Float[Array, " B"]:
    sampled = scale * widened(logits.sampled)
    if corrected:
        sampled = minus_log_expected_count(sampled, logits.sampled_log_expected_count)
    one = jnp.zeros((logits.true.shape[0], 1), sampled.dtype)  # the 1 of log(1 + ...)
    return log_sum_exp(one, jnp.ones(one.shape, bool), sampled, negatives(logits))
