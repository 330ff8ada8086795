"""Margins: what makes scaled logits of the cosines of a normalised head, the true ones held back.

A margin maps ``SampledLogits`` to ``SampledLogits``: any likelihood loss may stand behind it, any sampler before it.
"""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from candax.alike import made_once
from candax.base import Loss, Margin, SampledLogits
from candax.checks import checked
from candax.cosines import widened
from candax.losses.common import made_of


@checked
@made_once
def with_margin(margin: Margin, loss: Loss) -> Loss:
    """A loss on the cosines of a normalised head: ``loss(margin(logits))``.

    Args:
        margin: ``arcface`` or ``cosface``, with other hyperparameters as ``functools.partial``.
        loss: any loss on ``SampledLogits``: those of the softmax likelihood are meant (``css``, ``sampled_softmax``,
            ``subset_softmax``, ``importance_sampling``). Hits have no margin: a loss should remove them.

    Returns:
        A loss on ``SampledLogits``; for all classes use ``over_all_classes`` of it.

    Example:
        >>> from functools import partial
        >>> import jax.numpy as jnp, candax as cx
        >>> one, none = jnp.ones((1, 1), bool), jnp.zeros((1, 1), bool)
        >>> logits = cx.SampledLogits(jnp.full((1, 1), 0.9), jnp.zeros((1, 1)), one, jnp.full((1, 1), 0.9),
        ...                           jnp.zeros((1, 1)), one, none, num_classes=2)
        >>> loss = cx.losses.with_margin(partial(cx.losses.cosface, margin=0.5, scale=4.0), cx.losses.css)
        >>> round(float(loss(logits)[0]), 4)  # log(1 + e^2)
        2.1269
    """

    def loss_with_margin(logits: SampledLogits) -> Float[Array, " B"]:
        return loss(margin(logits))

    return made_of(loss_with_margin, loss, margin=margin)


@checked
def arcface(logits: SampledLogits, *, margin: float = 0.5, scale: float = 64.0) -> SampledLogits:
    r"""The additive angular margin: true logits ``s cos(t + m)``, where t is the angle to the class vector.

    Computed as ``s (cos t cos m - sin t sin m)`` with ``sin t = sqrt((1 - cos t)(1 + cos t))``, without arccos:
    gradients are finite at cosines of 1 and -1 (and beyond, by rounding), where sin t counts as constant. Where
    ``t + m > pi`` the cosine would rise again; there the logit is ``s (cos t - m sin m)``, as in the reference
    implementations: lower than all before as long as m is below 2.33, and falling further with t. With m = 0 it is
    ``s cos t``. Sampled logits are ``s cos t``.

    Args:
        logits: ``SampledLogits`` of cosines, from a head with ``normalized=True``.
        margin: m in radians, in [0, pi).
        scale: s.

    Returns:
        ``SampledLogits`` of scaled logits; counts, masks and hits as they came. Masked true slots hold 0.

    Raises:
        ValueError: if a hyperparameter is out of range.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one = jnp.ones((1, 1), bool)
        >>> cosines = cx.SampledLogits(jnp.full((1, 1), 0.5), jnp.zeros((1, 1)), one, jnp.full((1, 1), 0.5),
        ...                            jnp.zeros((1, 1)), one, ~one, num_classes=2)
        >>> logits = cx.losses.arcface(cosines, margin=jnp.pi / 3, scale=10.0)
        >>> round(float(logits.true[0, 0]), 4), float(logits.sampled[0, 0])  # 60 degrees and 60 more
        (-5.0, 5.0)

    Source: Deng, Guo, Xue, Zafeiriou, ArcFace: Additive Angular Margin Loss for Deep Face Recognition (2019), equation
        3; the branch beyond pi as in its published code (``easy_margin=False``).
    """
    if not 0 <= margin < math.pi:
        raise ValueError(f"expected a margin of at least 0 and less than pi radians, got {margin!r}.")

    def held_back(cosine: Float[Array, "B T"]) -> Float[Array, "B T"]:
        squared = (1.0 - cosine) * (1.0 + cosine)
        apart = squared > 0
        sine = jnp.where(apart, jnp.sqrt(jnp.where(apart, squared, 1.0)), 0.0)
        turned = cosine * math.cos(margin) - sine * math.sin(margin)
        return jnp.where(cosine > -math.cos(margin), turned, cosine - margin * math.sin(margin))

    return _scaled(logits, held_back(_unmasked(logits.true, logits.true_mask)), scale)


@checked
def cosface(logits: SampledLogits, *, margin: float = 0.4, scale: float = 64.0) -> SampledLogits:
    r"""The additive cosine margin: true logits ``s (cos t - m)``, sampled logits ``s cos t``.

    Args:
        logits: ``SampledLogits`` of cosines, from a head with ``normalized=True``.
        margin: m >= 0.
        scale: s.

    Returns:
        ``SampledLogits`` of scaled logits; counts, masks and hits as they came. Masked true slots hold 0.

    Raises:
        ValueError: if a hyperparameter is out of range.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> one = jnp.ones((1, 1), bool)
        >>> cosines = cx.SampledLogits(jnp.full((1, 1), 0.5), jnp.zeros((1, 1)), one, jnp.full((1, 1), 0.5),
        ...                            jnp.zeros((1, 1)), one, ~one, num_classes=2)
        >>> logits = cx.losses.cosface(cosines, margin=0.25, scale=10.0)
        >>> float(logits.true[0, 0]), float(logits.sampled[0, 0])
        (2.5, 5.0)

    Source: Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition (2018), equation 4.
    """
    if not 0 <= margin < math.inf:
        raise ValueError(f"expected a finite margin >= 0, got {margin!r}.")
    return _scaled(logits, _unmasked(logits.true, logits.true_mask) - margin, scale)


def check_scale(scale: float) -> None:
    """Raises ValueError unless the scale is positive."""
    if not 0 < scale < math.inf:
        raise ValueError(f"expected a finite scale > 0, got {scale!r}.")


def _unmasked(cosines: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, "B T"]:
    """Zeros at masked slots, before anything is computed: a NaN there would come back out of the gradient."""
    return jnp.where(mask, widened(cosines), 0.0)


def _scaled(logits: SampledLogits, true: Float[Array, "B T"], scale: float) -> SampledLogits:
    check_scale(scale)
    true = jnp.where(logits.true_mask, scale * true, 0.0)
    return dataclasses.replace(logits, true=true, sampled=scale * widened(logits.sampled))
