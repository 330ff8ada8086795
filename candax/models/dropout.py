"""Dropout whose random bits cost a few integer operations."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float


class Dropout(nnx.Dropout):
    """``nnx.Dropout`` with bits from a hash of one random number and the place, instead of a cipher.

    On a CPU, ``jax.random.bits`` takes most of the forward pass of a small transformer; a hash of 32 bits is
    enough for a mask.

    Example:
        >>> dropout = Dropout(0.5, rngs=nnx.Rngs(0))
        >>> round(float(jnp.mean(dropout(jnp.ones((100, 100))))), 1)
        1.0

    Source: the finaliser "lowbias32" of Wellons, Prospecting for Hash Functions (2018).
    """

    def __call__(self, inputs: Float[Array, "..."]) -> Float[Array, "..."]:
        """Zeros with probability ``rate``, the rest scaled to the same mean; the inputs in evaluation mode."""
        if self.rate == 0 or self.deterministic:
            return inputs
        stream = self.rngs
        assert isinstance(stream, nnx.RngStream)
        return jnp.where(kept(stream(), inputs.shape, self.rate), inputs / (1 - self.rate), 0)


def kept(key: Array, shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """True with probability ``1 - rate``, at each place for itself."""
    seeds = jax.random.bits(key, (2,), jnp.uint32)
    place = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        place += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride *= shape[axis]
    bits = place * jnp.uint32(0x9E3779B9) + seeds[0]
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15) ^ seeds[1]) * jnp.uint32(0x846CA68B)
    return (bits ^ (bits >> 16)) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
