"""The first S distinct classes of a stream of independent draws, and the time at which the next one would arrive.

Give successive draws from q exponential gaps: class c then arrives as a Poisson process of rate q(c), its first arrival
is exponential with rate q(c), and the distinct classes ordered by first arrival are a sample without replacement. With
tau the first arrival of the (S+1)-th distinct class (which is not kept), every kept class was included with
probability 1 - exp(-q(c) tau) given the others, so that weighting by 1 over this is unbiased (rank conditioning: Cohen
and Kaplan, Bottom-k sketches, 2007).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import KeyArray
from candax.runs import starts_of_runs

# With at most this many times S classes in the support, all of them race at once: that is still O(S), and surely ends.
RACE_FACTOR = 8


class Distinct(NamedTuple):
    """S slots of distinct ids, which of them are real, and the time at which the next distinct class arrives."""

    ids: Int[Array, " S"]
    mask: Bool[Array, " S"]
    tau: Float[Array, ""]


def exponentials(key: KeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Standard exponentials, near 0 as fine as floats are: a rare class arrives in time only if its own is tiny.

    Those of ``jax.random.exponential`` are multiples of 2^-23 there, and one in 2^23 is 0: whatever its probability,
    the class then arrives first.
    """
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32)
    # The distance of a uniform number of 64 bits from the nearer end of (0, 1).
    upper = high >= jnp.uint32(1 << 31)
    high, low = (jnp.where(upper, ~part, part).astype(jnp.float32) for part in (high, low))
    distance = (high + (low + 0.5) * 2.0**-32) * 2.0**-32
    return jnp.where(upper, -jnp.log(distance), -jnp.log1p(-distance))


def race(key: KeyArray, ids: Int[Array, " n"], log_prob: Float[Array, " n"], num_sampled: int) -> Distinct:
    """The winners when every class of ``ids`` draws its own first arrival; log_prob is -inf where none ever comes."""
    possible = log_prob > -jnp.inf
    gaps = exponentials(key, ids.shape)
    times = jnp.where(possible, gaps * jnp.exp(-jnp.where(possible, log_prob, 0.0)), jnp.inf)
    short = max(0, num_sampled + 1 - ids.shape[0])
    times = jnp.pad(times, (0, short), constant_values=jnp.inf)
    ids = jnp.pad(ids, (0, short))
    first, order = jax.lax.top_k(-times, num_sampled + 1)
    mask = -first[:num_sampled] < jnp.inf
    return Distinct(jnp.where(mask, ids[order[:num_sampled]], 0), mask, -first[num_sampled])


class _Seen(NamedTuple):
    key: KeyArray
    ids: Int[Array, " S1"]  # distinct so far, in order of arrival
    times: Float[Array, " S1"]
    kept: Int[Array, ""]  # how many of them are real
    now: Float[Array, ""]


def stream(
    key: KeyArray,
    draw: Callable[[KeyArray, tuple[int, ...]], Int[Array, " n"]],
    num_sampled: int,
    needed: Bool[Array, ""] | bool,
) -> Distinct:
    """Draws blocks until S + 1 distinct classes have come; where that is not ``needed``, one block, and means nothing.

    Under ``vmap`` a ``cond`` runs both of its branches, this one also where the support has too few classes, or some
    so rare that they would not come for hours.

    Truncating the sorted distinct ids of one block instead would drop the largest ids, that is the tail.
    """
    size, block = num_sampled + 1, 2 * num_sampled + 16
    wanted = jnp.where(needed, size, 0)

    def more(seen: _Seen) -> _Seen:
        key, key_draw, key_gap = jax.random.split(seen.key, 3)
        arrivals = seen.now + jnp.cumsum(jax.random.exponential(key_gap, (block,), jnp.float32))
        ids = jnp.concatenate([seen.ids, draw(key_draw, (block,))])
        times = jnp.concatenate([seen.times, arrivals])
        # Unused slots of the first part would count as a class of their own: give them no rank.
        real = jnp.arange(size + block) >= jnp.where(jnp.arange(size + block) < size, size - seen.kept, 0)
        by_id, position = jax.lax.sort((jnp.where(real, ids, -1), jnp.arange(size + block)), num_keys=1, is_stable=True)
        first = starts_of_runs(by_id) & (by_id >= 0)
        first = jnp.zeros(size + block, bool).at[position].set(first, unique_indices=True)
        rank = jnp.where(first, jnp.cumsum(first) - 1, size)
        kept = jnp.minimum(jnp.sum(first), size)
        # Right-aligned, so that the unused slots come first and "earlier position" still means "earlier arrival".
        slot = jnp.where(rank < size, rank + size - kept, size)
        return _Seen(
            key,
            jnp.zeros(size, jnp.int32).at[slot].set(ids, mode="drop"),
            jnp.zeros(size, jnp.float32).at[slot].set(times, mode="drop"),
            kept,
            arrivals[-1],
        )

    empty = _Seen(key, jnp.zeros(size, jnp.int32), jnp.zeros(size, jnp.float32), jnp.int32(0), jnp.float32(0))
    # One block always runs: in a step that is compiled once, the common case pays no loop.
    seen = jax.lax.while_loop(lambda seen: seen.kept < wanted, more, more(empty))
    return Distinct(seen.ids[:num_sampled], jnp.ones(num_sampled, bool), seen.times[num_sampled])


def log_inclusion(log_prob: Float[Array, "..."], tau: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 - exp(-q tau)), the log probability that a class arrives before tau; 0 for tau = inf, -inf for q = 0."""
    possible = log_prob > -jnp.inf
    expected = jnp.where(possible, jnp.exp(log_prob), 1.0) * tau
    return jnp.where(possible, jnp.log(-jnp.expm1(-expected)), -jnp.inf)
