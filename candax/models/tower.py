"""Encoder for users: a bag of their history's items and a perceptron, before a head whose classes are the items."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from candax.checks import check_positive, checked
from candax.models.head import Head
from candax.rows import Table
from candax.rows.lookups import lookup_in


class HistoryTower(nnx.Module):
    """The user's side of a two-tower model: A u + W2 relu(W1 u + b1) + b2 with u = sum_i v_i x_i / sum_i |v_i|.

    x_i are vectors of the history's items and v_i their values. The other tower is the head: its class vectors are the
    items to find. With ``tied`` both are one table, trained by rows from both uses, so that what is learned about an
    item as an answer also serves where it is part of a history.

    The batch must have ``feature_ids`` int32[B, F], the items (-1 pads), and ``feature_values`` float32[B, F], as
    ``candax.data.Batches`` of ``candax.data.next_items`` has.

    Args:
        head: whose classes are the items.
        hidden_dim: width of the hidden layer.
        tied: whether histories are read from the head's class vectors, or from a table of their own.
        rngs: ``rngs.params`` initialises the matrices, and the table: normal with standard deviation 0.1. A starts as
            the identity.

    Raises:
        ValueError: if ``hidden_dim`` is not positive.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> head = cx.Head(1000, 16, rngs=nnx.Rngs(0))
        >>> model = cx.models.Classifier(cx.models.HistoryTower(head, 32, rngs=nnx.Rngs(1)), head)
        >>> model.encoder.items is head.vectors  # one table for both towers
        True

    Source: the two towers of Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations
        (2019), with item ids as the item's only feature.
    """

    @checked
    def __init__(self, head: Head, hidden_dim: int, *, tied: bool = True, rngs: nnx.Rngs) -> None:
        check_positive("hidden_dim", hidden_dim)
        dim = head.vectors.shape[1]
        own = None if tied else Table(0.1 * jax.random.normal(rngs.params(), (head.num_classes, dim)))
        self.items: Table = head.vectors if own is None else own
        self.linear = nnx.Param(jnp.eye(dim))
        self.hidden = nnx.Linear(dim, hidden_dim, rngs=rngs)
        self.output = nnx.Linear(hidden_dim, dim, rngs=rngs)

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """Embeddings of the users."""
        values = jnp.asarray(batch.feature_values)
        total = jnp.sum(jnp.abs(values), axis=1, keepdims=True)
        pooled = jnp.einsum(
            "bf,bfd->bd", values / jnp.where(total > 0, total, 1), lookup_in(self, "items", batch.feature_ids)
        )
        return pooled @ self.linear[...] + self.output(jax.nn.relu(self.hidden(pooled)))
