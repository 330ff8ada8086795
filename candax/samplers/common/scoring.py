"""Exact logits of few classes, for samplers that rank what they find."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Classes
from candax.cosines import as_scored


def logits_of(embedding: Float[Array, "dim"], ids: Int[Array, "n"], classes: Classes) -> Float[Array, "n"]:
    """Logits of one example as the head scores them: biases included, cosines where it is normalised.

    Args:
        embedding: of any length.
        ids: in range.
        classes: the output layer now.

    Returns:
        float32, or wider if the inputs are.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.eye(3), jnp.array([0.0, 0.5, 0.0]), None, jnp.int32(3))
        >>> logits_of(jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 1]), classes).tolist()
        [3.0, 2.5]
    """
    embedding, vectors = (as_scored(part, classes.normalized) for part in (embedding, classes.vectors[ids]))
    logits = jnp.matmul(vectors, embedding, preferred_element_type=jnp.float32)
    return logits if classes.biases is None else logits + classes.biases[ids]
