"""An encoder before a head."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from candax.rows import Table


class Classifier(nnx.Module):
    """An encoder and a head: all that is trained.

    Args:
        encoder: a module that makes embeddings [B, dim] of a batch; rows of its tables by ``cx.Embed`` or
            ``cx.rows.lookup``. A table that it shares with the head (``encoder.words is head.vectors``) is tied: it
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

    def __init__(self, encoder: Any, head: Any) -> None:
        self.encoder = encoder
        self.head = head

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """Embeddings of a batch, from the rows that it looks up."""
        return self.encoder(batch)


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
