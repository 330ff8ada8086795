"""The users' tower: a bag of the items up to each place of packed histories, and the user's features."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from candax.models.computed import ComputedVectors
from candax.models.dropout import Dropout
from candax.models.head import Head
from candax.rows import Table
from candax.rows.lookups import lookup_in

# Class vectors are small, but the inputs of a tower should be near 1.
_SCALE = 25.0


class UserTower(nnx.Module):
    """Embeddings of users after each item of their histories: ``norm(A u + W2 gelu(W1 u + b1) + b2 + f(user))``.

    ``u_t = scale sum_s r^(t - s) x_s / sqrt(sum_s r^(2 (t - s)))`` over the items s up to t of the same
    user; with r = 1 it is a bag, where order does not count. One product of matrices computes all places of a row, so
    that a user's whole history costs as much as its last place.

    Batches have ``items`` and ``segments``, int32 [R, L], as ``PackedBatches`` of sequences; where there are features
    of users, ``users`` too.

    Args:
        head: the head, whose classes are the items.
        hidden_dim: width of the hidden layer.
        tied: whether histories are read from the items' tower instead of a table of their own.
        recency: r.
        item_dropout: the probability that a whole item is not read in training.
        dropout: the probability that a coordinate of u or of the hidden layer is dropped.
        users: features of users, ``f(ids) -> [..., dim]``; None: a user is known by the history alone.
        rngs: ``params`` and ``dropout``.

    Source: the bag of Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019).
    """

    def __init__(
        self,
        head: Head,
        hidden_dim: int,
        *,
        tied: bool = True,
        recency: float = 1.0,
        item_dropout: float = 0.0,
        dropout: float = 0.0,
        users: Callable[..., Any] | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        dim = head.dim
        own = None if tied else Table(0.04 * jax.random.normal(rngs.params(), (head.num_classes, dim)))
        # If tied, either the table of the items' tower, or the module that computes its vectors.
        self.items: Any = head.vectors if own is None else own
        self.recency = recency
        self.linear = nnx.Param(jnp.eye(dim))
        self.hidden = nnx.Linear(dim, hidden_dim, rngs=rngs)
        self.output = nnx.Linear(hidden_dim, dim, rngs=rngs)
        self.norm = nnx.LayerNorm(dim, rngs=rngs)
        self.dropouts = nnx.List([Dropout(dropout, rngs=rngs) for _ in range(2)])
        self.whole = Dropout(item_dropout, rngs=rngs)
        self.users = users

    def __call__(self, batch: Any) -> Float[Array, "R L dim"]:
        """An embedding for each place: of the user after taking that item and those before it."""
        items, segments = jnp.asarray(batch.items), jnp.asarray(batch.segments)
        x = _SCALE * self._read(items)
        kept = self.whole(jnp.ones(items.shape, x.dtype)) > 0
        pooled = jnp.einsum("rts,rsd->rtd", _weights(segments, kept, self.recency), x)
        pooled = self.dropouts[0](pooled)
        found = pooled @ self.linear[...] + self.output(self.dropouts[1](jax.nn.gelu(self.hidden(pooled))))
        if self.users is not None:
            found = found + self.users(jnp.asarray(batch.users))
        return self.norm(found)

    def _read(self, items: Int[Array, "R L"]) -> Float[Array, "R L dim"]:
        """Vectors of the items; a place without an item gets some vector, which later has no weight."""
        if isinstance(self.items, ComputedVectors):
            return self.items.of(jnp.maximum(items, 0).reshape(-1)).reshape(*items.shape, -1)
        return lookup_in(self, "items", items)


def _weights(segments: Int[Array, "R L"], kept: Any, recency: float) -> Float[Array, "R L L"]:
    """The weights, at each place, of itself and earlier places of its segment; their squares sum to 1."""
    place = jnp.arange(segments.shape[1])
    age = place[:, None] - place
    same = (segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] >= 0) & kept[:, None, :] & (age >= 0)
    weights = jnp.where(same, recency ** jnp.maximum(age, 0).astype(jnp.float32), 0.0)
    return weights / jnp.sqrt(jnp.maximum(jnp.sum(weights**2, axis=2, keepdims=True), 1e-30))
