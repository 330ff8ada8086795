"""Categorical distributions as integer thresholds: what is reported is exactly what is drawn.

A float32 cumulative distribution over 10^6 classes misstates the probabilities of its tail by more than half, because
its entries near 1 are 6e-8 apart. Here every class owns an integer number of the values of one uniform integer, so its
probability is a quotient of two integers, and the same integers serve for drawing and for reporting.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt32

from candax.base import KeyArray

# Room for the rounding of float32 sums, so that the integer weights never add up to 2^32 or more.
_USED = 2.0**32 * (1 - 2.0**-9)


def integer_thresholds(weights: Float[Array, " n"]) -> UInt32[Array, " n"]:
    """Cumulative integer weights proportional to ``weights``, as near as 32 bits allow.

    A positive weight gets at least one unit, a zero weight none. ``thresholds[c] - thresholds[c - 1]`` over
    ``thresholds[-1]`` is the probability of c.
    """
    n = weights.shape[0]
    positive = weights > 0
    # The largest is scaled to 1 first: sums and quotients of very large or very small weights would leave float32.
    weights = weights / jnp.where(positive.any(), jnp.max(weights), 1)
    # Summing runs of 4096 first keeps the float32 sum accurate: a plain running sum stops growing at 2^24 units.
    total = jnp.pad(weights, (0, -n % 4096)).reshape(-1, 4096).sum(1).sum()
    units = jnp.round(weights * ((_USED - n) / jnp.where(total > 0, total, 1))).astype(jnp.uint32)
    units = jnp.where(positive, jnp.maximum(units, 1), 0)
    return jnp.cumsum(units, dtype=jnp.uint32)


def _high_product(a: UInt32[Array, "..."], b: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The upper 32 bits of the 64-bit product of two 32-bit integers."""
    low, high = jnp.uint32(0xFFFF), jnp.uint32(16)
    a0, a1, b0, b1 = a & low, a >> high, b & low, b >> high
    middle = a1 * b0 + ((a0 * b0) >> high)
    return a1 * b1 + (middle >> high) + (((middle & low) + a0 * b1) >> high)


def random_below(key: KeyArray, shape: tuple[int, ...], bound: Shaped[Array, "..."]) -> UInt32[Array, "..."]:
    """Uniform integers in [0, bound), off by less than 2^-32 of their probability.

    ``jax.random.randint`` takes 32 random bits modulo the span where that exceeds 2^16, and so favours the smallest
    values: by 2 % of their probability at 10^8, and twofold near 2^32.
    """
    bound = jnp.asarray(bound).astype(jnp.uint32)
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32)
    sum_low = high * bound + _high_product(low, bound)
    carry = (sum_low < high * bound).astype(jnp.uint32)
    return _high_product(high, bound) + carry


def draw_bins(thresholds: UInt32[Array, " n"], key: KeyArray, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Draws bins in proportion to their integer weights, in O(log n) a draw."""
    u = random_below(key, shape, thresholds[-1])
    return jnp.searchsorted(thresholds, u, side="right").astype(jnp.int32)


def log_bin_probability(thresholds: UInt32[Array, " n"], bins: Int[Array, "..."]) -> Float[Array, "..."]:
    """The log of the probability with which ``draw_bins`` returns each bin; -inf for bins without weight."""
    below = jnp.where(bins > 0, thresholds[jnp.maximum(bins - 1, 0)], 0)
    units = thresholds[bins] - below
    # Where no bin has weight, as in a shard whose classes have no count, there is no share to take the log of.
    log_units, log_all = (jnp.log(jnp.maximum(of, 1).astype(jnp.float32)) for of in (units, thresholds[-1]))
    return jnp.where(units > 0, log_units - log_all, -jnp.inf)


def check_counts(
    counts: Shaped[Array, " n"] | None,
    needed_by: str,
    *,
    may_be_zero: bool = False,
    num_valid: Int[Array, ""] | int | None = None,
) -> Float[Array, " n"]:
    """Returns label counts as float32, or says what is wrong with them (values are checked outside jit only).

    Args:
        counts: of each class.
        needed_by: the sampler that needs them.
        may_be_zero: whether all of them may be 0: where something is added to them, or only their order matters.
        num_valid: how many of the rows are classes; None: all.
    """
    if counts is None:
        raise ValueError(
            f"{needed_by} needs label frequencies, but Classes.counts is None. "
            "Pass counts=... to the head or to Classes (one number per class), or use one that needs none: uniform."
        )
    if not isinstance(counts, jax.core.Tracer):
        # NumPy, because inside a jitted function JAX would trace the check of a concrete array too.
        values = np.asarray(counts)
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise ValueError(f"{needed_by}: expected finite counts >= 0, got {counts}. Check Classes.counts.")
        known = not isinstance(num_valid, jax.core.Tracer)
        if not may_be_zero and not np.any(values[: num_valid if known else None] > 0):
            raise ValueError(f"{needed_by}: all counts are 0, so no class can be drawn. Check Classes.counts.")
    return counts.astype(jnp.float32)
