"""Expected counts of samplers that return the best classes they find, and nothing at random."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Query


def log_count_of_returned(candidates: Candidates, ids: Int[Array, "G n"], query: Query) -> Float[Array, "G n"]:
    """0 for the candidates of a group and for its labels, -inf for all others.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> found = cx.Candidates(jnp.array([[3, 4]]), jnp.zeros((1, 2)), jnp.array([[True, False]]))
        >>> classes = cx.Classes(jnp.zeros((9, 2)), None, None, jnp.int32(9))
        >>> query = cx.Query(jnp.zeros((1, 2)), jnp.array([[7]]), classes)
        >>> log_count_of_returned(found, jnp.array([[3, 4, 7]]), query).tolist()
        [[0.0, -inf, 0.0]]
    """
    returned = (ids[:, :, None] == candidates.ids[:, None, :]) & candidates.mask[:, None, :]
    labels = query.labels.reshape(ids.shape[0], 1, -1)
    known = returned.any(axis=-1) | (ids[:, :, None] == labels).any(axis=-1)
    return jnp.where(known, 0.0, -jnp.inf)
