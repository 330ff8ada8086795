"""Random projection: a softmax over all classes in few dimensions."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from candax.checks import checked
from candax.rows import Constant, Table


class RandomProjection(nnx.Module):
    """An encoder whose embeddings are shortened by a fixed random matrix: ``R^T e``, R of [dim, m].

    Before a ``Head`` of dim m this is the slimmed model that random projection trains in place of the full one. Any
    sampler and loss can be used with it; the paper uses ``full_softmax``, whose products then cost m / dim of what they
    cost in the full model. The entries of R are independent and normal with variance 1 / m, so that inner products keep
    their mean. R is not trained.

    A full classifier with the same logits has the class vectors ``R v_c``, because ``e . R v = R^T e . v``.

    Args:
        encoder: any encoder; its tables are this one's as well. Its embeddings have ``dim`` coordinates.
        dim: of the encoder's embeddings.
        num_projected: m (the paper's 100), at most ``dim``.
        rngs: ``rngs.params`` draws R.

    Raises:
        ValueError: for numbers out of range, or an encoder with a table called "encoder" or "projection".

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> encoder = cx.models.RandomProjection(
        ...     cx.models.SparseMLP(500, 64, rngs=nnx.Rngs(0)), 64, num_projected=16, rngs=nnx.Rngs(1)
        ... )
        >>> slim = cx.models.Classifier(encoder, cx.Head(1000, 16, rngs=nnx.Rngs(2)))

    Source: Yuan, Guo, Yu, Wang, Yang, Accelerating Deep Learning with Millions of Classes (2020), as described by Zhao
        et al., ANN Softmax (PVLDB 2022), sections 2.1 and 4.
    """

    @checked
    def __init__(self, encoder: Callable[..., Any], dim: int, num_projected: int = 100, *, rngs: nnx.Rngs) -> None:
        if not 1 <= num_projected <= dim:
            raise ValueError(
                f"expected 1 <= num_projected <= dim, the width of the encoder's embeddings, got num_projected="
                f"{num_projected} and dim={dim}. With few dimensions train the full classifier instead."
            )
        tables = {name: value for name, value in vars(encoder).items() if isinstance(value, Table)}
        if taken := tables.keys() & {"encoder", "projection"}:
            raise ValueError(f"expected an encoder without tables called {sorted(taken)}: rename them.")
        self.encoder: Any = encoder
        self.projection = Constant(jax.random.normal(rngs.params(), (dim, num_projected)) / num_projected**0.5)
        for name, table in tables.items():
            setattr(self, name, table)

    def __call__(self, batch: Any) -> Float[Array, "B m"]:
        """The encoder's embeddings, projected."""
        return self.project(self.encoder(batch))

    def project(self, embeddings: Float[Array, "B dim"]) -> Float[Array, "B m"]:
        """``R^T e`` for every row."""
        return embeddings @ self.projection[...]
