"""Groups: runs of consecutive examples that share one candidate set, and which of them the set is for."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from candax.base import Query


def count_groups(num_groups: int | None, query: Query) -> int:
    """The number of groups of this batch: ``num_groups``, or one per example where that is None; 1 for no examples."""
    batch_size = query.embeddings.shape[0]
    groups = max(batch_size, 1) if num_groups is None else num_groups
    if batch_size % groups:
        raise ValueError(
            f"expected num_groups to divide the batch size, got num_groups={groups} for a batch of {batch_size}. "
            "Change either, or pass num_groups=None for one candidate set per example."
        )
    return groups


def counting(query: Query, groups: int) -> Bool[Array, "G each"]:
    """Which examples of each group its candidates are for: those with a label, or all of a group without labels.

    Positions that the loss leaves out, such as padding, have no label, and must not change what the others share. A
    label of another shard is one too. Where no example of a group has a label, as in prediction, all of them count.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> labels = jnp.array([[3], [-1], [-1], [-1]])
        >>> counting(cx.Query(jnp.ones((4, 2)), labels, cx.Classes(jnp.ones((5, 2)))), 2).tolist()
        [[True, False], [True, True]]
    """
    real = query.labels >= 0
    if query.elsewhere is not None:
        real = real | query.elsewhere
    labelled = jnp.any(real, axis=1).reshape(groups, real.shape[0] // groups)
    return labelled | ~jnp.any(labelled, axis=1, keepdims=True)


def mean_of_groups(values: Float[Array, "B n"], query: Query, groups: int) -> Float[Array, "G n"]:
    """The mean over the examples of each group that count, see ``counting``; the others may hold NaN."""
    counts = counting(query, groups)
    values = jnp.where(counts[:, :, None], values.reshape(*counts.shape, values.shape[1]), 0)
    return jnp.sum(values, axis=1) / jnp.sum(counts, axis=1, keepdims=True).astype(values.dtype)


def only_counting(query: Query, groups: int) -> Query:
    """Examples that do not count are replaced by the first one of their group that does, see ``counting``."""
    counts = counting(query, groups)
    if not counts.size:
        return query
    each = counts.shape[1]
    place = jnp.where(counts, jnp.arange(each), jnp.argmax(counts, axis=1)[:, None])
    place = (place + each * jnp.arange(groups)[:, None]).reshape(-1)
    elsewhere = None if query.elsewhere is None else query.elsewhere[place]
    return dataclasses.replace(
        query, embeddings=query.embeddings[place], labels=query.labels[place], elsewhere=elsewhere
    )
