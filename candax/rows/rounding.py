"""Rounding to a narrow floating-point type: to the nearest number, or to one of the two around at random.

Of an update smaller than half the distance between neighbouring numbers, rounding to the nearest leaves nothing,
however often it comes: with the 8 bits of bfloat16 a weight of 1 stands still under updates below .002. Rounded at
random, up with the probability that makes the mean right, it moves by that distance now and then, and on average by the
updates.
"""

import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from candax.base import KeyArray

Rounding: TypeAlias = Literal["nearest", "stochastic"]

_BITS = 16  # of float32 that bfloat16 does not have


def stochastic_round(
    key: KeyArray, values: Float[Array, "rows ..."], row_ids: Int[Array, " rows"]
) -> Float[Array, "rows ..."]:
    """Each number as one of the two bfloat16 numbers around it, at random: E[rounded] = value.

    16 random bits are added to the 16 bits that bfloat16 does not have, and the sum is cut off: so the number away from
    zero is taken with a probability of the rest, exact to 2^-16 of the distance between neighbours, for either sign.
    Numbers that bfloat16 has, zeros, infinities and NaN stay what they are. Beyond the largest one, 3.39e38, the other
    neighbour is infinity.

    What is random depends on the key and the row's id alone, not on its place: the same rows are rounded alike wherever
    and with whatever others they are.

    Args:
        key: of the step, and of the table.
        values: float32.
        row_ids: the rows' ids, distinct; equal ids would get equal bits.

    Returns:
        bfloat16, of the same shape.

    Raises:
        ValueError: if the values are not float32.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> values = jnp.full((4000, 1), 1 + 2**-9)  # a quarter of the way from 1 to the next number, 1 + 2^-7
        >>> rounded = stochastic_round(jax.random.key(0), values, jnp.arange(4000))
        >>> sorted(set(rounded.astype(jnp.float32).ravel().tolist())), round(float(jnp.mean(rounded == 1)), 1)
        ([1.0, 1.0078125], 0.8)

    Source: Gupta et al., Deep Learning with Limited Numerical Precision (2015), section 3.
    """
    if values.dtype != jnp.float32:
        raise ValueError(f"expected float32 values to round at random, got {values.dtype}.")
    number = math.prod(values.shape[1:])

    def of_row(row_id: Array) -> Array:
        # 32 random bits serve two numbers.
        return jax.random.bits(jax.random.fold_in(key, row_id), (-(-number // 2),), jnp.uint32)

    drawn = jax.vmap(of_row)(row_ids)
    halves = jnp.stack([drawn & jnp.uint32((1 << _BITS) - 1), drawn >> _BITS], axis=-1)
    added = halves.reshape(values.shape[0], -1)[:, :number].reshape(values.shape)
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    kept = ((bits + added) >> _BITS).astype(jnp.uint16)
    # A sum could carry a NaN's bits into another number.
    rounded = jax.lax.bitcast_convert_type(kept, jnp.bfloat16)
    return jnp.where(jnp.isfinite(values), rounded, values.astype(jnp.bfloat16))


def to_nearest(values: Float[Array, "..."], dtype: DTypeLike) -> Float[Array, "..."]:
    """Wide numbers as a narrow type stores them, but in the wide type.

    Not by ``astype`` there and back, which XLA leaves out inside ``jit``.

    Example:
        >>> to_nearest(jnp.array([1.0, 1.001]), jnp.bfloat16).tolist()
        [1.0, 1.0]
    """
    of = jnp.finfo(dtype)
    rounded = jax.lax.reduce_precision(values, of.nexp, of.nmant)
    if of.nexp == jnp.finfo(values.dtype).nexp:
        return rounded
    # Below its smallest normal number, 6e-5, float16 has evenly spaced ones, of which ``reduce_precision`` makes 0.
    spacing = float(of.smallest_subnormal)
    return jnp.where(jnp.abs(values) < float(of.tiny), jnp.round(values / spacing) * spacing, rounded)
