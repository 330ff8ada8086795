"""The output layer of a ``Classifier`` that ``training.build`` trains: what ``cx.Head`` is made of there."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from candax.base import Classes
from candax.rows import Constant, Table
from candax.rows.tables import normal_table


class Head(nnx.Module):
    """The output layer: class vectors, biases, and what is known of the classes.

    Args:
        num_classes: classes of the output space.
        dim: coordinates of a class vector, those of the encoder's embeddings.
        use_biases: one bias a class, or none. Default: unless ``normalized``.
        counts: label frequencies [num_classes], for samplers that follow them.
        num_rows: rows of the table, padded beyond ``num_classes`` (to divide it over devices, say).
        dtype: of vectors and biases; logits are accumulated in float32.
        normalized: logits are the cosines of embeddings and class vectors, whatever their lengths, and there are no
            biases: the head that margins (``candax.losses.arcface``) are for.
        rngs: ``rngs.params`` initialises the vectors: normal with standard deviation 0.1 / sqrt(dim), so that logits
            start near 0 and rare classes are not led by their initial values; of a normalised head 1 / sqrt(dim), for
            an update turns a short vector further than a long one.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> cx.models.Head(1000, 16, rngs=nnx.Rngs(0)).classes().vectors.shape
        (1000, 16)
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        use_biases: bool | None = None,
        counts: Float[Array | np.ndarray, "num_classes"] | None = None,
        num_rows: int | None = None,
        dtype: DTypeLike = jnp.float32,
        normalized: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        num_rows = num_classes if num_rows is None else num_rows
        if num_classes < 1 or dim < 1 or num_rows < num_classes:
            raise ValueError(
                "expected num_classes >= 1, dim >= 1 and num_rows >= num_classes, "
                f"got {num_classes}, {dim} and {num_rows}."
            )
        if normalized and use_biases:
            raise ValueError("expected no biases with normalized=True, whose logits are cosines: leave use_biases out.")
        if counts is not None and counts.shape != (num_classes,):
            raise ValueError(f"expected counts of shape ({num_classes},), one per class, got {counts.shape}.")
        self.num_classes = num_classes
        self.normalized = normalized
        length = 1.0 if normalized else 0.1
        self.vectors = Table(normal_table(rngs.params(), (num_rows, dim), length / dim**0.5, jnp.dtype(dtype)))
        use_biases = not normalized if use_biases is None else use_biases
        self.biases = Table(jnp.zeros(num_rows, dtype)) if use_biases else None
        padding = num_rows - num_classes
        self.counts = None if counts is None else Constant(jnp.pad(jnp.asarray(counts, jnp.float32), (0, padding)))

    def classes(self) -> Classes:
        """The output layer as samplers and full-softmax losses see it."""
        return Classes(
            vectors=self.vectors[...],
            biases=None if self.biases is None else self.biases[...],
            counts=None if self.counts is None else self.counts[...],
            num_valid=jnp.int32(self.num_classes),
            normalized=self.normalized,
        )
