"""Inner products of rows, set by set, with a gradient that a CPU finds quickly."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

# With more rows of ``right`` than this in a set, turning the factor around costs what it brings.
_FEW = 128


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
