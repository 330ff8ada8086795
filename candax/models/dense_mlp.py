"""Encoder for dense inputs: layers of ReLU, and a last one without."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from candax.checks import check_positive, checked


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
