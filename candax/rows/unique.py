"""The distinct rows of a step: which they are, and how they are read from a table and written back in place."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from candax.checks import check_positive, checked
from candax.rows.rounding import wide


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
    slots = jnp.arange(n, dtype=jnp.int32)
    by_id, origin = _sorted_with_origin(jnp.where(flat < 0, num_rows, flat).astype(jnp.int32), num_rows)
    first = jnp.concatenate([jnp.ones(min(n, 1), bool), by_id[1:] != by_id[:-1]])
    slot = jnp.cumsum(first, dtype=jnp.int32) - 1
    # Fillers continue from num_rows on by slot, so they are unique and sorted behind every real id.
    target = jnp.where(first & (by_id < num_rows), slot, n)
    unique = (num_rows + slots).at[target].set(by_id, mode="drop", indices_are_sorted=False)
    positions = jnp.zeros(n, jnp.int32).at[origin].set(slot, unique_indices=True)
    return UniqueRows(unique, positions.reshape(ids.shape))


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
def gather_wide(table: Num[Array, "rows ..."], ids: Int[Array, " U"]) -> Array:
    """``gather_rows`` in float32 if the table is narrower, so that gradients of the rows are summed in it."""
    return gather_rows(table, ids).astype(wide(table.dtype))


@checked
def scatter_rows(table: Num[Array, " rows *row"], ids: Int[Array, " U"], rows: Num[Array, " U *row"]) -> Array:
    """Writes rows back at the ids of ``unique_rows``; fillers are dropped. In place when ``table`` is donated."""
    return table.at[ids].set(rows.astype(table.dtype), mode="drop", unique_indices=True, indices_are_sorted=True)
