"""Perceptrons: of sparse features, whose first layer is a bag of embeddings, and of dense inputs."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from candax.checks import check_positive, check_rate, checked
from candax.models.dropout import Dropout
from candax.rows import Table
from candax.rows.lookups import lookup_in


class SparseMLP(nnx.Module):
    """relu(sum_f value_f / |value| * bag[f] + bias): a one-hidden-layer perceptron on sparse input.

    With ``linear=True`` there is no relu: a projection of the input, for an output layer that does the rest.

    Inputs are scaled to Euclidean length 1, so that long documents do not drown short ones.

    The batch must have ``feature_ids`` int32[B, F] (-1 pads) and ``feature_values`` float32[B, F] (``data.Batch``); or
    both of shape [N], ``feature_examples`` int32[N], rising, and ``labels`` [B, T] (``data.FlatBatch``).

    Args:
        num_features: rows of the bag.
        dim: width of the hidden layer, which is the embedding that the head sees.
        linear: whether the sum is the embedding.
        dropout: of the embedding's coordinates, in training.
        rngs: ``rngs.params`` initialises the bag: normal with standard deviation 0.1. Starting
            small matters where most classes are rare: what is learned then outweighs what was random.
            ``rngs.dropout`` draws what is left out.

    Raises:
        ValueError: if a size is not positive, or ``dropout`` is negative or not below 1.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> cx.models.SparseMLP(500, 16, rngs=nnx.Rngs(0)).bag.shape
        (500, 16)
    """

    @checked
    def __init__(
        self, num_features: int, dim: int, *, linear: bool = False, dropout: float = 0.0, rngs: nnx.Rngs
    ) -> None:
        check_positive("num_features", num_features)
        check_positive("dim", dim)
        check_rate("dropout", dropout)
        self.linear = linear
        self.bag = Table(0.1 * jax.random.normal(rngs.params(), (num_features, dim)))
        self.bias = nnx.Param(jnp.zeros(dim))
        self.dropout = Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """Embeddings, from the rows of the bag that the batch looks up."""
        rows = lookup_in(self, "bag", batch.feature_ids)
        values = jnp.asarray(batch.feature_values)
        if values.ndim == 1:
            return self._hidden(self._flat_sum(values, batch, rows))
        length = jnp.sqrt(jnp.sum(values * values, axis=1, keepdims=True))
        values = values / jnp.where(length > 0, length, 1)
        return self._hidden(jnp.einsum("bf,bfd->bd", values, rows))

    def _hidden(self, total: Float[Array, "B dim"]) -> Float[Array, "B dim"]:
        total = total + self.bias[...]
        hidden = total if self.linear else jax.nn.relu(total)
        return hidden if self.dropout is None else self.dropout(hidden)

    def _flat_sum(self, values: Float[Array, " N"], batch: Any, rows: Float[Array, "N dim"]) -> Float[Array, "B dim"]:
        examples, number = jnp.asarray(batch.feature_examples), batch.labels.shape[0]
        total = partial(jax.ops.segment_sum, segment_ids=examples, num_segments=number, indices_are_sorted=True)
        length = jnp.sqrt(total(values * values))
        values = values / jnp.where(length > 0, length, 1)[examples]
        return total(values[:, None] * rows)


class DenseMLP(nnx.Module):
    """W_n relu(... relu(W_1 x + b_1) ...) + b_n: a perceptron on vectors.

    The batch must have ``inputs`` float32[B, num_features].

    Args:
        num_features: coordinates of an input.
        hidden: widths of the hidden layers, the first one first; none: a linear map.
        dim: coordinates of the embedding.
        rngs: ``rngs.params`` initialises the layers: normal with variance 2 / inputs of the layer, biases 0.

    Raises:
        ValueError: if a width is not positive.

    Example:
        >>> from types import SimpleNamespace
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> import candax as cx
        >>> encoder = cx.models.DenseMLP(6, (32,), 4, rngs=nnx.Rngs(0))
        >>> encoder(SimpleNamespace(inputs=jnp.ones((5, 6)))).shape
        (5, 4)
    """

    @checked
    def __init__(self, num_features: int, hidden: Sequence[int], dim: int, *, rngs: nnx.Rngs) -> None:
        widths = (num_features, *hidden, dim)
        for width in widths:
            check_positive("each width", width)
        init = nnx.initializers.he_normal()
        self.layers = nnx.List(
            [nnx.Linear(width, after, kernel_init=init, rngs=rngs) for width, after in itertools.pairwise(widths)]
        )

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """Embeddings of the inputs."""
        hidden = jnp.asarray(batch.inputs)
        for layer in self.layers[:-1]:
            hidden = jax.nn.relu(layer(hidden))
        return self.layers[-1](hidden)
