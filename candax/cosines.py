"""Rows of length 1, for heads whose logits are cosines."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Rows shorter than this have no direction.
_SHORTEST = 1e-12


def unit(rows: Float[Array, "*n dim"]) -> Float[Array, "*n dim"]:
    """Rows divided by their length, ``x / |x|``, in float32 or wider.

    A row shorter than 1e-12, or with a NaN, becomes zeros without a gradient: rows that stand for nothing (fillers,
    padding) stay harmless.

    Args:
        rows: vectors along the last axis.

    Returns:
        Rows of length 1 or 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from candax.cosines import unit
        >>> [[round(float(x), 4) for x in row] for row in unit(jnp.array([[3.0, 4.0], [0.0, 0.0]]))]
        [[0.6, 0.8], [0.0, 0.0]]
    """
    rows = rows.astype(jnp.promote_types(rows.dtype, jnp.float32))
    squared = jnp.sum(rows * rows, axis=-1, keepdims=True)
    has_length = jax.lax.stop_gradient(squared) > _SHORTEST**2
    # Zeros first: the gradient of a product with NaN is NaN, whatever is selected after it.
    rows = jnp.where(has_length, rows, 0.0)
    # Squares of long rows overflow. All others are multiplied by 1 and stay what they are to the last bit.
    rows = rows * jnp.where(jnp.isinf(squared), float(jnp.finfo(rows.dtype).max) ** -0.625, 1.0)
    squared = jnp.where(has_length, jnp.sum(rows * rows, axis=-1, keepdims=True), 1.0)
    return rows / jnp.sqrt(squared)


def as_scored(rows: Float[Array, "*n dim"], normalized: bool) -> Float[Array, "*n dim"]:
    """Embeddings or class vectors as a head multiplies them: ``unit`` of them where it is normalised."""
    return unit(rows) if normalized else rows
