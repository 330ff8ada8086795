"""Gradients of parameters and of table rows, and what may be done with them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from candax.base import pytree
from candax.checks import checked
from candax.rows.unique import unique_rows


@jax.tree_util.register_pytree_with_keys_class
class RowGradients:
    """Gradients of the rows of a table that a step has used.

    ``ids`` are sorted and unique, their fillers at the end are >= num_rows; ``rows`` are the gradients in float32 or
    wider, zeros at fillers; ``num_rows`` is the table's. ``unsummed`` are ids and rows as they came, in any order and
    with equal ids (num_rows where they count for nothing); None once the gradients have been changed or taken apart. As
    leaves of a pytree the ids are stored as key data, whose type knows no arithmetic: ``jax.tree.map(jnp.add, ...)``
    and ``optax.global_norm`` raise a TypeError instead of counting ids as numbers.

    Example:
        >>> grads = RowGradients.of(jnp.array([3, 1, 3]), jnp.ones((3, 2)), num_rows=5)
        >>> grads.ids.tolist(), grads.rows.tolist()
        ([1, 3, 7], [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]])
    """

    def __init__(self, ids: Int[Array, "..."], rows: Float[Array, "..."], num_rows: int) -> None:
        data = jnp.stack([ids.astype(jnp.uint32), jnp.zeros(ids.shape, jnp.uint32)], axis=-1)
        self._ids = jax.random.wrap_key_data(data, impl="threefry2x32")
        self.rows, self.num_rows = rows, num_rows
        self.unsummed: tuple[Array, Array] | None = None

    @classmethod
    def of(
        cls,
        ids: Int[Array, " n"],
        rows: Float[Array, "n ..."],
        num_rows: int,
        condition: Bool[Array, ""] | bool = True,
    ) -> "RowGradients":
        """From ids in any order: rows of equal ids are added; ids out of range count for nothing.

        Without the ``condition`` they are gradients of no rows, as after ``where`` but for its two passes over them.
        """
        inside = (ids >= 0) & (ids < num_rows)
        unique = unique_rows(jnp.where(inside, ids, -1), num_rows)
        # Those that count for nothing are dropped, not added to one filler: adding up at one place is slow on a GPU.
        kept = inside & condition
        places = jnp.where(kept, unique.positions, ids.shape[0])
        fillers = num_rows + jnp.arange(ids.shape[0], dtype=jnp.int32)
        added = jnp.zeros_like(rows).at[places].add(rows, mode="drop")
        made = cls(jnp.where(condition, unique.ids, fillers), added, num_rows)
        made.unsummed = jnp.where(kept, ids, num_rows).astype(jnp.int32), rows
        return made

    @property
    def ids(self) -> Int[Array, "..."]:
        """Of the rows."""
        return jax.random.key_data(self._ids)[..., 0].astype(jnp.int32)

    def where(self, condition: Bool[Array, ""]) -> "RowGradients":
        """These, or gradients of no rows."""
        fillers = self.num_rows + jnp.arange(self.rows.shape[0], dtype=jnp.int32)
        return RowGradients(jnp.where(condition, self.ids, fillers), jnp.where(condition, self.rows, 0), self.num_rows)

    def summed(self) -> "RowGradients":
        """These, without what is ``unsummed``."""
        return RowGradients(self.ids, self.rows, self.num_rows)

    def __mul__(self, factor: Array | float) -> "RowGradients":
        return RowGradients(self.ids, self.rows * factor, self.num_rows)

    def __add__(self, other: object) -> "RowGradients":
        raise TypeError(
            "row gradients cannot be added with +: their rows belong to different ids. Join the gradients of "
            "micro-batches with candax.accumulate."
        )

    __rmul__ = __mul__
    __radd__ = __sub__ = __rsub__ = __add__

    def __repr__(self) -> str:
        return f"RowGradients(slots={self.rows.shape[0]}, row_shape={self.rows.shape[1:]}, num_rows={self.num_rows})"

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, Any], int]:
        """Ids as keys, rows; the number of rows as structure."""
        key = jax.tree_util.GetAttrKey
        return ((key("ids"), self._ids), (key("rows"), self.rows)), self.num_rows

    @classmethod
    def tree_unflatten(cls, num_rows: int, children: tuple[Any, Any]) -> "RowGradients":
        """The inverse of ``tree_flatten_with_keys``."""
        made = object.__new__(cls)
        made._ids, made.rows = children
        made.num_rows, made.unsummed = num_rows, None
        return made


@pytree
class Gradients:
    """What ``value_and_grad`` returns: gradients of parameters and of table rows, and what heads have drawn.

    Attributes:
        params: of the parameters that are no tables, in their own structure.
        rows: by name of the table (its path, joined by dots), or in the tables' own structure: ``RowGradients``, or an
            array of the table's shape where the function used the whole table. Tables that were not used are absent.
        draws: by name of the head: the ``Draw`` of each call of its loss.
        finite: the loss and all rows looked up are finite. Where it is False the row gradients hold no rows.
    """

    params: PyTree
    rows: PyTree
    draws: dict[str, list[Any]]
    finite: Bool[Array, ""]

    def norm(self) -> Float[Array, ""]:
        """The global norm, each row of a table counted once: sqrt of the sum of all squares."""
        rows = [entry.rows if isinstance(entry, RowGradients) else entry for entry in row_leaves(self.rows)]
        squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in [*jax.tree.leaves(self.params), *rows]]
        return jnp.sqrt(jnp.sum(jnp.asarray(squares)))

    def __mul__(self, factor: Array | float) -> "Gradients":
        def times(leaf: Any) -> Any:
            return leaf * factor if isinstance(leaf, RowGradients) else (leaf * factor).astype(leaf.dtype)

        params = jax.tree.map(times, self.params)
        return dataclasses.replace(self, params=params, rows=map_rows(times, self.rows))

    def __add__(self, other: object) -> "Gradients":
        raise TypeError("gradients with rows cannot be added with +: join those of micro-batches by candax.accumulate.")

    __rmul__ = __mul__
    __radd__ = __sub__ = __rsub__ = __add__


def _is_rows(node: Any) -> bool:
    return isinstance(node, RowGradients)


def row_leaves(rows: PyTree) -> list[Any]:
    """The entries of ``Gradients.rows``."""
    return jax.tree.leaves(rows, is_leaf=_is_rows)


def map_rows(function: Any, *rows: PyTree) -> PyTree:
    """``jax.tree.map`` over entries of ``Gradients.rows``."""
    return jax.tree.map(function, *rows, is_leaf=_is_rows)


@checked
def accumulate(
    gradients: Sequence[Gradients] | Gradients,
    weights: Sequence[Num[Array, ""] | float] | Num[Array, " N"] | None = None,
) -> Gradients:
    """Joins the gradients of micro-batches into those of one large batch: ``sum_i w_i g_i / sum_i w_i``.

    Rows are concatenated, equal ids added up, and what heads have drawn becomes one draw for their samplers. A mean
    over predictions has as its weight the number of predictions that count: ``weights=[where.sum() for each]``.

    Args:
        gradients: of each micro-batch; or one ``Gradients`` with a leading axis of micro-batches, as a ``lax.scan``
            over them stacks it.
        weights: of each micro-batch; None: all equal.

    Returns:
        ``Gradients``. One micro-batch that is not finite spoils them all.

    Raises:
        ValueError: without micro-batches, or with another number of weights.

    Example:
        >>> import candax as cx
        >>> def f(table, params, ids):
        ...     return jnp.sum(cx.rows.lookup(table, ids))
        >>> parts = [cx.rows.value_and_grad(f)(jnp.ones((4, 1)), (), jnp.array([i]))[1] for i in (2, 0)]
        >>> joined = cx.accumulate(parts).rows
        >>> joined.ids.tolist(), joined.rows.ravel().tolist()
        ([0, 2], [0.5, 0.5])
    """
    if isinstance(gradients, Gradients):
        number = gradients.finite.shape[0] if gradients.finite.ndim else 0
    else:
        number = len(gradients)
    if not number:
        raise ValueError(
            "expected the gradients of at least one micro-batch: a list of candax.Gradients, or one with a leading "
            "axis of micro-batches as lax.scan stacks them; got neither."
        )
    stacked = gradients if isinstance(gradients, Gradients) else _stack(gradients)
    share = jnp.ones(number) if weights is None else jnp.asarray(weights, jnp.float32)
    if share.shape != (number,):
        raise ValueError(f"expected one weight per micro-batch, {number}, got an array of shape {list(share.shape)}.")
    total = share.sum()
    share = share / jnp.where(total > 0, total, 1)

    def mean(leaf: Array) -> Array:
        return jnp.einsum("n,n...->...", share.astype(leaf.dtype), leaf)

    finite = jnp.all(stacked.finite)

    def join(entry: RowGradients | Array) -> RowGradients | Array:
        if not isinstance(entry, RowGradients):
            return mean(entry)
        weighted = entry.rows * share.astype(entry.rows.dtype).reshape(-1, *[1] * (entry.rows.ndim - 1))
        flat = weighted.reshape(-1, *entry.rows.shape[2:])
        return RowGradients.of(entry.ids.reshape(-1), flat, entry.num_rows).where(finite)

    draws = {name: [draw.joined() for draw in of_head] for name, of_head in stacked.draws.items()}
    params = jax.tree.map(mean, stacked.params)
    return dataclasses.replace(stacked, params=params, rows=map_rows(join, stacked.rows), draws=draws, finite=finite)


def _stack(gradients: Sequence[Gradients]) -> Gradients:
    """A leading axis of micro-batches; rows may be of different numbers, and are filled up."""

    def stack(*leaves: Any) -> Any:
        if not isinstance(leaves[0], RowGradients):
            return jnp.stack(leaves)
        slots = max(leaf.rows.shape[0] for leaf in leaves)
        filled = [_fill(leaf, slots) for leaf in leaves]
        return jax.tree.map(lambda *parts: jnp.stack(parts), *filled)

    try:
        return jax.tree.map(stack, *gradients, is_leaf=_is_rows)
    except ValueError as error:
        raise ValueError(
            "expected the gradients of micro-batches of one shape, by one function, whose heads all draw alike; got "
            f"gradients of different structure or shape: {error}"
        ) from error


def _fill(entry: RowGradients, slots: int) -> RowGradients:
    missing = slots - entry.rows.shape[0]
    fillers = entry.num_rows + entry.rows.shape[0] + jnp.arange(missing, dtype=jnp.int32)
    rows = jnp.pad(entry.rows, ((0, missing), *[(0, 0)] * (entry.rows.ndim - 1)))
    return RowGradients(jnp.concatenate([entry.ids, fillers]), rows, entry.num_rows)
