"""Digests of arrays on their own devices, sharded or not, by which a checkpoint with changed bytes is refused."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

# Types of less than a byte, whose values float32 has too.
_NARROW = ("int2", "int4", "float4_e2m1fn")
# Odd numbers for the steps along each axis.
_STEPS = (2654435761, 2246822519, 3266489917, 668265263, 374761393, 3144134277)
_ELEMENTS = 1 << 22


def digests(arrays: Mapping[str, Array]) -> dict[str, str]:
    """A number of 32 bits for each array, from its bits and their places: one pass, and the same on any mesh.

    It detects errors of a disk; it does not protect against somebody who changes a file on purpose.

    Args:
        arrays: by name, of any shapes and any types but random keys.

    Returns:
        8 hexadecimal digits for each array.

    Example:
        >>> one, other = jnp.arange(4.0), jnp.array([0.0, 2.0, 1.0, 3.0])
        >>> found = digests({"one": one, "same": one + 0, "other": other})
        >>> found["one"] == found["same"], found["one"] == found["other"]
        (True, False)
    """
    # One at a time: on the CPUs of several processes, several under way would wait for one another for ever.
    found = {name: jax.device_get(_digests(array)) for name, array in arrays.items()}
    return {name: f"{sum(map(int, parts)) % 2**32:08x}" for name, parts in found.items()}


def _digests(array: Array) -> list[Array]:
    """Digests by blocks of rows, where one device holds all: on a CPU, XLA stores all numbers that it adds up."""
    rows = array.shape[0] if array.ndim > 1 and len(array.devices()) == 1 else 1
    size = max(1, _ELEMENTS * rows // max(1, array.size))
    if rows <= size:
        return [_digest(array, 0)]
    return [_digest(array[start : start + size], start) for start in range(0, rows, size)]


@jax.jit
def _digest(array: Array, first_row: Int[Array, ""] | int) -> Array:
    bits = _bits(array).astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):
        number = lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        place += (number if axis else number + jnp.uint32(first_row)) * jnp.uint32(_STEPS[axis % len(_STEPS)])
    mixed = _mix(_mix(place) ^ bits)
    return jnp.sum(mixed, dtype=jnp.uint32)


def _bits(array: Array) -> Array:
    """The bits of an array as unsigned integers, with an axis more where a number has more than one of these."""
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint8)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag], axis=-1)
    if array.dtype.name in _NARROW:
        array = array.astype(jnp.float32)
    return lax.bitcast_convert_type(array, {1: jnp.uint8, 2: jnp.uint16}.get(array.dtype.itemsize, jnp.uint32))


def _mix(x: Array) -> Array:
    """The finaliser of MurmurHash3: each bit of the result depends on all bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
