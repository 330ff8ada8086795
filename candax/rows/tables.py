"""Tables: parameters that are read and trained by rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from candax.base import KeyArray

# Initial values are drawn at once up to so many of them, and beyond in about so many parts.
_AT_ONCE, _PARTS = 1 << 24, 128


class Table(nnx.Param):
    """An array with one row per class, word or feature.

    A kind of its own beside the other parameters. Under ``nnx.value_and_grad`` it is one of them, with a dense
    gradient; under ``candax.value_and_grad`` it is filtered out first and gets row gradients. Read rows of it with
    ``candax.rows.lookup``; ``table[...]`` is the whole array, whose gradient is dense everywhere.
    """


class Constant(nnx.Variable):
    """An array that belongs to a model but is not trained, such as label counts."""


class DrawCount(nnx.Variable):
    """How often a head has drawn candidates in training; by it ``candax.value_and_grad`` tells heads apart."""


@partial(jax.jit, static_argnums=(1, 2, 3))
def normal_table(
    key: KeyArray, shape: tuple[int, int], deviation: float, dtype: np.dtype
) -> Float[Array, "num_rows dim"]:
    """Normal numbers, of large tables some columns at a time: bits and their transforms take several times the memory.

    By columns and not by rows, for rows may be sharded over devices.
    """
    num_rows, dim = shape

    def draw(key: KeyArray, columns: int) -> Array:
        return jax.random.normal(key, (num_rows, columns), dtype) * jnp.asarray(deviation, dtype)

    if num_rows * dim <= _AT_ONCE:
        return draw(key, dim)
    width = next(width for width in range(max(1, dim // _PARTS), 0, -1) if dim % width == 0)

    def body(part: Array, table: Array) -> Array:
        return lax.dynamic_update_slice(table, draw(jax.random.fold_in(key, part), width), (0, part * width))

    return lax.fori_loop(0, dim // width, body, jnp.zeros(shape, dtype))
