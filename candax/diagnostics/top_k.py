"""The share of an example's best classes that candidates hold."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates


def which_count(
    scores: Float[Array, "B k"], top_ids: Int[Array, "B k"], labels: Int[Array, "B T"]
) -> Bool[Array, "B k"]:
    """Which of the best classes count: real classes (no score of -inf) that are not labels of the example.

    Labels do not count because they are scored whatever was sampled.
    """
    is_label = jnp.any(top_ids[:, :, None] == labels[:, None, :], axis=2)
    return (scores > -jnp.inf) & ~is_label


def top_k_share(
    candidates: Candidates, top_ids: Int[Array, "B k"], top_counts: Bool[Array, "B k"]
) -> Float[Array, " B"]:
    """Of those best classes that count, the share that are candidates; 0 where none of them counts."""
    groups, num_sampled = candidates.ids.shape
    batch_size, top_k = top_ids.shape
    if not num_sampled:
        return jnp.zeros(batch_size)
    nowhere = jnp.iinfo(jnp.int32).max
    by_id = jnp.sort(jnp.where(candidates.mask, candidates.ids, nowhere), axis=1)
    wanted = top_ids.reshape(groups, -1)
    place = jnp.minimum(jax.vmap(jnp.searchsorted)(by_id, wanted), num_sampled - 1)
    held = (jnp.take_along_axis(by_id, place, axis=1) == wanted).reshape(batch_size, top_k)
    count = jnp.sum(top_counts, axis=1)
    return jnp.sum(held & top_counts, axis=1) / jnp.maximum(count, 1)
