"""The rows of a table that a step uses: which they are, how they are read and written back, and their gradients."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from candax.base import pytree
from candax.checks import check_positive, checked
from candax.cosines import wide, widened
from candax.runs import starts_of_runs

# Up to so many times as many rows as ids, marking the rows that are wanted finds the distinct ids sooner than sorting:
# on a CPU in 1 ms where the sort of 80,000 ids takes 17. So no array has more elements than twice the ids of a step.
_COUNTED = 2


def beside(of_each: Array, rows: Array) -> Array:
    """One number per row, in a shape in which it can be multiplied with the rows."""
    return of_each.reshape(-1, *[1] * (rows.ndim - 1))


def all_finite(rows: Float[Array, "..."], where: Bool[Array, "*n"]) -> Bool[Array, ""]:
    """Whether no number is infinite or NaN, of the rows ``[*n, ...]`` where ``where`` is True.

    Example:
        >>> bool(all_finite(jnp.array([[1.0, 2.0], [jnp.nan, 0.0]]), jnp.array([True, False])))
        True
    """
    if rows.ndim == where.ndim + 1 and rows.dtype == jnp.float32:
        # A product is several times as quick on a CPU as a look at each number. The power of two keeps a sum of finite
        # numbers finite.
        width = rows.shape[-1]
        sums = jnp.matmul(rows, jnp.full(width, 2.0 ** -width.bit_length()), precision=jax.lax.Precision.HIGHEST)
        return jnp.all(jnp.isfinite(jnp.where(where, sums, 0)))
    # NaN passes through a maximum, and is not below infinity.
    chosen = where.reshape(where.shape + (1,) * (rows.ndim - where.ndim))
    return jnp.max(jnp.abs(rows), initial=0, where=chosen) < jnp.inf


def fillers(num_rows: int, slots: int) -> Int[Array, " slots"]:
    """Ids of slots without a row: from ``num_rows`` on, rising and unique."""
    return num_rows + jnp.arange(slots, dtype=jnp.int32)


def filled_up(
    rows: Float[Array, "U ..."], ids: Int[Array, " U"], num_rows: int, slots: int
) -> tuple[Float[Array, "V ..."], Int[Array, " V"]]:
    """Rows and their ids with so many slots, the last of them without a row."""
    used = ids.shape[0]
    if slots == used:
        return rows, ids
    padded = jnp.pad(rows, ((0, slots - used), *[(0, 0)] * (rows.ndim - 1)))
    return padded, jnp.concatenate([ids, fillers(num_rows, slots)[used:]])


class UniqueRows(NamedTuple):
    """The distinct row ids of a step and where each requested id found its row.

    ``ids`` are sorted and unique; fillers at the end are >= num_rows and unique too. ``positions`` has the shape of the
    requested ids: ``ids[positions]`` are the ids again, except that a requested -1 points at some filler.
    """

    ids: Int[Array, " U"]
    positions: Int[Array, "..."]


@checked
def unique_rows(ids: Int[Array, "..."], num_rows: int) -> UniqueRows:
    """The distinct ids >= 0 of ``ids``, sorted, in a static size: as many slots as ids were given.

    Args:
        ids: int32 of any shape, -1 where there is none.
        num_rows: rows of the table; fillers start here.

    Returns:
        ``UniqueRows``.

    Example:
        >>> import jax.numpy as jnp
        >>> from candax.rows import unique_rows
        >>> unique_rows(jnp.array([7, 2, 7, -1]), num_rows=10).ids.tolist()
        [2, 7, 12, 13]
    """
    check_positive("num_rows", num_rows)
    flat = ids.reshape(-1)
    n = flat.shape[0]
    wanted = jnp.where(flat < 0, num_rows, flat).astype(jnp.int32)
    find = _distinct_by_counting if num_rows <= _COUNTED * n else _distinct_by_sorting
    row, slot, positions = find(wanted, num_rows)
    # Fillers continue from num_rows on by slot, so they are unique and sorted behind every real id.
    unique = fillers(num_rows, n).at[slot].set(row, mode="drop")
    return UniqueRows(unique, positions.reshape(ids.shape))


def _distinct_by_counting(wanted: Int[Array, " n"], num_rows: int) -> tuple[Array, Array, Array]:
    """All rows, the slot of each (n where it is not wanted), and the slot of each wanted id."""
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    used = jnp.zeros(num_rows, bool).at[wanted].set(True, mode="drop")
    slot = jnp.cumsum(used, dtype=jnp.int32) - 1
    positions = jnp.where(wanted < num_rows, slot[jnp.minimum(wanted, num_rows - 1)], slot[-1] + 1)
    return rows, jnp.where(used, slot, wanted.shape[0]), positions


def _distinct_by_sorting(wanted: Int[Array, " n"], num_rows: int) -> tuple[Array, Array, Array]:
    """The wanted ids in rising order, the slot of each (n but for the first of equal ones), and of each as given."""
    n = wanted.shape[0]
    by_id, origin = _sorted_with_origin(wanted, num_rows)
    first = starts_of_runs(by_id)
    slot = jnp.cumsum(first, dtype=jnp.int32) - 1
    positions = jnp.zeros(n, jnp.int32).at[origin].set(slot, unique_indices=True)
    return by_id, jnp.where(first & (by_id < num_rows), slot, n), positions


def _sorted_with_origin(ids: Int[Array, " n"], largest: int) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """Ids from 0 to ``largest`` in rising order, and where each stood before."""
    n = ids.shape[0]
    bits = max(1, (n - 1).bit_length())
    if (largest + 1) << bits > 1 << 32:
        by_id, origin = jax.lax.sort((ids, jnp.arange(n, dtype=jnp.int32)), num_keys=1)
        return by_id, origin
    # Both in one integer: sorting one array of numbers is several times as quick on a CPU as sorting pairs.
    packed = jnp.sort((ids.astype(jnp.uint32) << bits) | jnp.arange(n, dtype=jnp.uint32))
    return (packed >> bits).astype(jnp.int32), (packed & ((1 << bits) - 1)).astype(jnp.int32)


@checked
def gather_rows(table: Num[Array, "rows ..."], ids: Int[Array, " U"]) -> Array:
    """Rows of ``table`` at the ids of ``unique_rows``; zeros at fillers."""
    if not table.shape[0]:
        raise ValueError(f"expected a table with rows, got one of the shape {table.shape}.")
    return table.at[ids].get(mode="fill", fill_value=0, unique_indices=True, indices_are_sorted=True)


@checked
def scatter_rows(table: Num[Array, " rows *row"], ids: Int[Array, " U"], rows: Num[Array, " U *row"]) -> Array:
    """Writes rows back at the ids of ``unique_rows``; fillers are dropped. In place when ``table`` is donated."""
    if not ids.shape[0]:
        return table
    return table.at[ids].set(rows.astype(table.dtype), mode="drop", unique_indices=True, indices_are_sorted=True)


class _Scalable:
    """What may be multiplied by a number, but not added up."""

    def __mul__(self, factor: Array | float) -> Any:
        raise NotImplementedError

    def __rmul__(self, factor: Array | float) -> Any:
        return self * factor

    def __truediv__(self, divisor: Array | float) -> Any:
        return self * (1 / divisor)

    def __add__(self, other: object) -> Any:
        raise TypeError(
            "gradients of rows cannot be added with +: their rows belong to different ids. Join the gradients of "
            "micro-batches with candax.accumulate."
        )

    __radd__ = __sub__ = __rsub__ = __add__


@jax.tree_util.register_pytree_with_keys_class
class RowGradients(_Scalable):
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

        Where the ``condition`` is False they are gradients of no rows; ``where`` would pass over the rows twice more.
        """
        inside = (ids >= 0) & (ids < num_rows)
        unique = unique_rows(jnp.where(inside, ids, -1), num_rows)
        # Those that count for nothing are dropped, not added to one filler: adding up at one place is slow on a GPU.
        kept = inside & condition
        places = jnp.where(kept, unique.positions, ids.shape[0])
        added = jnp.zeros_like(rows).at[places].add(rows, mode="drop")
        made = cls(jnp.where(condition, unique.ids, fillers(num_rows, ids.shape[0])), added, num_rows)
        made.unsummed = jnp.where(kept, ids, num_rows).astype(jnp.int32), rows
        return made

    @classmethod
    def none(cls, table: Array) -> "RowGradients":
        """Those of a table that a step has not used."""
        rows = jnp.zeros((0, *table.shape[1:]), wide(table.dtype))
        return cls(jnp.zeros(0, jnp.int32), rows, table.shape[0])

    @property
    def ids(self) -> Int[Array, "..."]:
        return jax.random.key_data(self._ids)[..., 0].astype(jnp.int32)

    def where(self, condition: Bool[Array, ""]) -> "RowGradients":
        """These gradients where the condition is True, else gradients of no rows."""
        ids = jnp.where(condition, self.ids, fillers(self.num_rows, self.rows.shape[0]))
        return RowGradients(ids, jnp.where(condition, self.rows, 0), self.num_rows)

    def summed(self) -> "RowGradients":
        """These, without what is ``unsummed``."""
        return RowGradients(self.ids, self.rows, self.num_rows)

    def __mul__(self, factor: Array | float) -> "RowGradients":
        return RowGradients(self.ids, self.rows * factor, self.num_rows)

    def __repr__(self) -> str:
        return f"RowGradients(slots={self.rows.shape[0]}, row_shape={self.rows.shape[1:]}, num_rows={self.num_rows})"

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, Any], int]:
        """Ids (as key data) and rows; the number of rows is structure."""
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
class Gradients(_Scalable):
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
        rows = map_rows(lambda entry: entry.rows if isinstance(entry, RowGradients) else entry, self.rows)
        squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves((self.params, rows))]
        return jnp.sqrt(jnp.sum(jnp.asarray(squares)))

    def __mul__(self, factor: Array | float) -> "Gradients":
        def times(leaf: Any) -> Any:
            return leaf * factor if isinstance(leaf, RowGradients) else (widened(leaf) * factor).astype(leaf.dtype)

        params = jax.tree.map(times, self.params)
        return dataclasses.replace(self, params=params, rows=map_rows(times, self.rows))


def is_rows(node: Any) -> bool:
    return isinstance(node, RowGradients)


def map_rows(function: Any, *rows: PyTree) -> PyTree:
    """``jax.tree.map`` over entries of ``Gradients.rows``."""
    return jax.tree.map(function, *rows, is_leaf=is_rows)
