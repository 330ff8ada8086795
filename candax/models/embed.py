"""The input embedding whose rows are trained by rows: ``nnx.Embed`` with a table."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from candax.checks import check_positive, checked
from candax.rows.lookups import lookup_in, whole
from candax.rows.tables import num_rows, placement, table_of

default_embed_init = nnx.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


class Embed(nnx.Module):
    """In place of ``nnx.Embed``, with the same arguments: inside ``cx.value_and_grad`` it has row gradients.

    ``embedding`` is a ``Table`` (a kind of ``nnx.Param``) of the same name and shape as in ``nnx.Embed``, so that a
    checkpoint of either can be read into the other. An id of -1 gives zeros, any other id out of range NaN.

    Args:
        num_embeddings: rows.
        features: coordinates of a row.
        dtype: of what is returned; None: the table's.
        param_dtype: of the table.
        embedding_init: as in ``nnx.Embed``: normal with standard deviation 1 / sqrt(features). A head that shares the
            table (``cx.Head(table=embed)``) starts from these values too.
        mesh: devices over which the rows are dealt, along its axis ``axis``.
        axis: a name of the mesh's axes.
        num_shards: the table is padded to a multiple of it; default: the size of the axis. A head that shares the table
            takes all three from here.
        rngs: ``rngs.params`` initialises the table.

    Raises:
        ValueError: for arguments that do not fit each other.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> from flax import nnx
        >>> cx.Embed(1000, 16, rngs=nnx.Rngs(0))(jnp.array([[3, 7, -1]])).shape
        (1, 3, 16)
    """

    @checked
    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        embedding_init: Any = default_embed_init,
        mesh: Mesh | None = None,
        axis: str = "classes",
        num_shards: int | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_positive("num_embeddings", num_embeddings)
        check_positive("features", features)
        values = embedding_init(rngs.params(), (num_embeddings, features), param_dtype)
        self.embedding = table_of(values, placement(mesh, axis, num_shards, num_embeddings))
        self.dtype = dtype

    @property
    def num_embeddings(self) -> int:
        """Rows of the table, without padding; more after a head that shares it has grown."""
        return num_rows(self.embedding)

    @property
    def features(self) -> int:
        """Coordinates of a row."""
        return self.embedding.shape[1]

    def __call__(self, inputs: Int[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
        """Rows ``[*inputs.shape, features]`` of integer ids."""
        rows = lookup_in(self, "embedding", inputs)
        return rows if self.dtype is None else rows.astype(self.dtype)

    def attend(self, query: Float[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
        """Products with every row, ``query @ embedding.T``: a use of the whole table, whose gradient is dense.

        There are none with the rows by which a table over shards is padded.
        """
        table = whole(self, "embedding")
        dtype = jnp.promote_types(query.dtype, table.dtype) if self.dtype is None else self.dtype
        products = jnp.asarray(query, dtype) @ table.T.astype(dtype)
        return products[..., : self.num_embeddings]
