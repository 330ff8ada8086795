"""An encoder before a head."""

from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from candax.models.heads import Head
from candax.rows import Table


class Encoder(Protocol):
    """What stands before the head: any NNX module with these two methods.

    The encoder names the rows of its tables that a batch needs and computes from those rows, so that the same code runs
    on gathered rows in training and on the whole table in prediction.
    """

    def lookups(self, batch: Any) -> dict[str, Int[Array | np.ndarray, "..."]]:
        """For each ``Table`` attribute by name, the row ids that the batch needs (-1: none). May be empty."""
        ...

    def encode(self, batch: Any, rows: dict[str, Float[Array, "..."]]) -> Float[Array, "B dim"]:
        """Embeddings from the rows of each lookup: ``rows[name]`` is [*ids.shape, dim], zeros where the id is -1."""
        ...


class Classifier(nnx.Module):
    """An encoder and a head: all that is trained.

    Args:
        encoder: see ``Encoder``. A table that it shares with the head (``encoder.words is head.vectors``) is tied: it
            is trained from both of its uses.
        head: see ``Head``.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> model = cx.models.Classifier(
        ...     cx.models.SparseMLP(500, 16, rngs=nnx.Rngs(0)), cx.models.Head(1000, 16, rngs=nnx.Rngs(1))
        ... )
        >>> sorted(cx.models.tables_of(model))
        ['class_biases', 'class_vectors', 'encoder.bag']
    """

    def __init__(self, encoder: Any, head: Head) -> None:
        self.encoder = encoder
        self.head = head

    def embed(self, batch: Any) -> Float[Array, "B dim"]:
        """Embeddings of a batch, from the whole tables: for prediction."""
        rows = {
            name: jnp.where((ids >= 0)[..., None], getattr(self.encoder, name)[...][jnp.maximum(ids, 0)], 0)
            for name, ids in self.encoder.lookups(batch).items()
        }
        return self.encoder.encode(batch, rows)


def encoder_tables(model: Classifier) -> dict[str, str]:
    """Attribute name of each table of the encoder -> its name in ``tables_of``."""
    return {
        name: "class_vectors" if value is model.head.vectors else f"encoder.{name}"
        for name, value in vars(model.encoder).items()
        if isinstance(value, Table)
    }


def tables_of(model: Classifier) -> dict[str, Table]:
    """All tables of a model by name: the head's, and each of the encoder's as ``encoder.<attribute>`` unless tied."""
    tables = {"class_vectors": model.head.vectors}
    if model.head.biases is not None:
        tables["class_biases"] = model.head.biases
    for attribute, name in encoder_tables(model).items():
        tables[name] = getattr(model.encoder, attribute)
    return tables
