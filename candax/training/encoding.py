"""The encoder's side of a training step: forward from gathered rows, and gradients of all parameters and rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from candax.models import Classifier, Table, encoder_tables, tables_of
from candax.rows import UniqueRows, gather_wide, unique_rows


class Encoded(NamedTuple):
    """A batch's embeddings, and the way back to what they came from.

    Attributes:
        embeddings: of the batch.
        other: the encoder's variables that are not trained, after this batch.
        unique: rows of each looked-up table, by the encoder's own names, as the gradients of ``vjp``.
        vjp: from the embeddings' gradient to those of parameters and looked-up rows.
    """

    embeddings: Float[Array, "B dim"]
    other: PyTree
    unique: dict[str, UniqueRows]
    vjp: Callable[[Float[Array, "B dim"]], tuple[PyTree, dict[str, Array]]]


# For every table its row ids (None: all of them) and the gradients of these rows.
RowGradients = dict[str, tuple[Int[Array, "..."] | None, Array]]


class EncoderSide:
    """A model's encoder as pure functions of its arrays.

    Attributes:
        params: its trained parameters, as ``nnx.split`` gives them.
        other: its other variables.
        table_name: its tables' attribute names -> their names in ``tables_of``.
        num_rows: rows of every table of the model.
    """

    def __init__(self, model: Classifier) -> None:
        self._graph, tables, self.params, self.other = nnx.split(model.encoder, Table, nnx.Param, ...)
        # The encoder computes from gathered rows: its own tables stay empty.
        self._no_tables = jax.tree.map(lambda _: jax.ShapeDtypeStruct((0,), jnp.float32), tables)
        self.table_name = encoder_tables(model)
        self.num_rows = {name: table.shape[0] for name, table in tables_of(model).items()}

    def encode(self, params: PyTree, other: PyTree, tables: dict[str, Array], batch: Any) -> Encoded:
        """Embeddings of a batch, from the rows of the tables that it needs."""
        lookups = self._encoder(params, other).lookups(batch)
        unique, rows = {}, {}
        for attribute, ids in lookups.items():
            table = tables[self.table_name[attribute]]
            unique[attribute] = unique_rows(ids, table.shape[0])
            rows[attribute] = gather_wide(table, unique[attribute].ids)

        def forward(params: PyTree, rows: dict[str, Array]) -> tuple[Array, PyTree]:
            encoder = self._encoder(params, other)
            embeddings = encoder.encode(batch, {name: rows[name][unique[name].positions] for name in lookups})
            return embeddings, nnx.split(encoder, Table, nnx.Param, ...)[3]

        embeddings, vjp, new_other = jax.vjp(forward, params, rows, has_aux=True)
        return Encoded(embeddings, new_other, unique, vjp)

    def gradients(
        self,
        encoded: Encoded,
        embeddings_grad: Float[Array, "B dim"],
        head_rows: RowGradients,
        clip: optax.GradientTransformation,
    ) -> tuple[PyTree, RowGradients]:
        """Gradients of the encoder's parameters and of every table's rows, clipped together."""
        params_grad, looked_up = encoded.vjp(embeddings_grad)
        rows = dict(head_rows)
        for attribute, grad in looked_up.items():
            name, ids = self.table_name[attribute], encoded.unique[attribute].ids
            # Fillers have no row, whatever the encoder made of them: they must not count in the norm.
            grad = jnp.where((ids < self.num_rows[name]).reshape(-1, *[1] * (grad.ndim - 1)), grad, 0)
            rows[name] = _add_rows(rows[name], ids, grad, self.num_rows[name]) if name in rows else (ids, grad)
        grads = {name: grad for name, (_, grad) in rows.items()}
        (params_grad, grads), _ = clip.update((params_grad, grads), clip.init((params_grad, grads)))
        return params_grad, {name: (rows[name][0], grads[name]) for name in rows}

    def lookups(self, encoder: Any, batch: Any) -> dict[str, tuple[Any, int]]:
        """The ids that a batch looks up in each table, and the table's number of rows."""
        return {name: (ids, self.num_rows[self.table_name[name]]) for name, ids in encoder.lookups(batch).items()}

    def _encoder(self, params: PyTree, other: PyTree) -> Any:
        return nnx.merge(self._graph, jax.tree.map(lambda _: jnp.zeros(0), self._no_tables), params, other)


def _add_rows(
    rows: tuple[Int[Array, "U"] | None, Float[Array, "U dim"]],
    ids: Int[Array, "V"],
    grads: Float[Array, "V dim"],
    num_rows: int,
) -> tuple[Int[Array, "W"] | None, Float[Array, "W dim"]]:
    """Adds the row gradients of a second use of the same table: a table gets one update a step."""
    first_ids, first_grads = rows
    if first_ids is None:
        return None, first_grads.at[ids].add(grads, mode="drop", unique_indices=True, indices_are_sorted=True)
    both = jnp.concatenate([first_ids, ids])
    unique = unique_rows(jnp.where(both < num_rows, both, -1), num_rows)
    total = jnp.zeros((both.shape[0], *grads.shape[1:]), grads.dtype)
    return unique.ids, total.at[unique.positions].add(jnp.concatenate([first_grads, grads]))
