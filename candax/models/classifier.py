"""An encoder before a head."""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from candax.checks import checked
from candax.models.head import Head


class Classifier(nnx.Module):
    """An encoder and a head: all that is trained.

    Args:
        encoder: a module that makes embeddings [B, dim] of a batch; rows of its tables by ``cx.Embed`` or
            ``cx.rows.lookup``. A table that it shares with the head (``encoder.words is head.vectors``) is tied: it
            is trained from both of its uses.
        head: see ``cx.Head``.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> head = cx.Head(1000, 16, sampler=cx.samplers.uniform(64), rngs=nnx.Rngs(1))
        >>> model = cx.models.Classifier(cx.models.SparseMLP(500, 16, rngs=nnx.Rngs(0)), head)
        >>> [table.shape for table in (model.encoder.bag, model.head.vectors)]
        [(500, 16), (1000, 16)]
    """

    @checked
    def __init__(self, encoder: Callable[..., Any], head: Head) -> None:
        self.encoder: Any = encoder
        self.head = head

    def __call__(self, batch: Any) -> Float[Array, "... dim"]:
        """Embeddings of a batch, from the rows that it looks up."""
        return self.encoder(batch)
