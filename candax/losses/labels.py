"""Examples with several labels as several examples of one label each."""

from collections.abc import Callable

from jaxtyping import Array, Float

from candax.alike import made_once
from candax.base import Loss, SampledLogits
from candax.checks import checked
from candax.losses.common import made_of, number_of_labels


@checked
@made_once
def each_label(loss: Callable[[SampledLogits], Float[Array, " B"]]) -> Loss:
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
