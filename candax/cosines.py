"""Rows of length 1, for heads whose logits are cosines; products of rows, with a gradient that is quick on a CPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike
from jaxtyping import Array, Float

# Rows shorter than this have no direction.
_SHORTEST = 1e-12
# With more rows of ``right`` than this in a set, turning the factor around costs what it brings.
_FEW = 128


def wide(dtype: DTypeLike) -> jnp.dtype:
    """The type in which numbers of a narrow type are computed with: float32, or itself if it is wider.

    Example:
        >>> wide(jnp.bfloat16), wide(jnp.int32)
        (dtype('float32'), dtype('float32'))
    """
    with jax.numpy_dtype_promotion("standard"):  # also where a user asks for strict types
        return jnp.promote_types(dtype, jnp.float32)


def widened(array: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """An array of a narrow type as float32, in which it is computed with.

    Example:
        >>> widened(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')
    """
    return array.astype(wide(array.dtype))


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
    rows = widened(rows)
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


@jax.custom_jvp
def inner_products(left: Float[Array, "*sets b dim"], right: Float[Array, "*sets s dim"]) -> Float[Array, "*sets b s"]:
    """``left_b . right_s`` of each set, in float32.

    In the gradient of ``right`` the product is over b, the first axis of both factors. For small sets XLA's CPU takes
    one and a half times as long in this form as with one factor turned around.

    Example:
        >>> inner_products(jnp.ones((1, 1, 2)), jnp.arange(6.0).reshape(1, 3, 2)).tolist()
        [[[1.0, 5.0, 9.0]]]
    """
    return jnp.einsum("...bd,...sd->...bs", left, right, preferred_element_type=jnp.float32)


@functools.partial(inner_products.defjvp, symbolic_zeros=True)
def _jvp(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    left, right = primals
    d_left, d_right = tangents
    product = inner_products(left, right)
    change = jnp.zeros_like(product)
    if not isinstance(d_left, SymbolicZero):
        change += inner_products(d_left, right)
    if isinstance(d_right, SymbolicZero):
        return product, change
    if right.shape[-2] > _FEW:
        change += inner_products(left, d_right)
    else:
        # The barrier keeps XLA from putting both back into the form that is slow.
        turned = jax.lax.optimization_barrier(inner_products(d_right, left))
        change += jnp.swapaxes(turned, -1, -2)
    return product, change
