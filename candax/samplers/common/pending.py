"""Changed rows that wait for an index: remembered step by step and handed over together, each in its latest form."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Classes, pytree
from candax.runs import starts_of_runs
from candax.samplers.common.found import EMPTY

# Rows move this many at a time, so that the cost goes by the rows that wait and not by the room for them.
_CHUNK = 2048

Index = TypeVar("Index")


@pytree
class Pending:
    """Rows in the order in which they changed; a row may have changed several times.

    Attributes:
        ids: of the rows; only the first ``number`` places are in use.
        rows: their vectors after that change.
        number: places in use.
    """

    ids: Int[Array, " room"]
    rows: Float[Array, "room dim"]
    number: Int[Array, ""]


def wait_or_move(
    pending: Pending | None,
    updates: Int[Array, ""],
    ids: Int[Array, " U"],
    rows: Float[Array, "U dim"],
    num_valid: Int[Array, ""],
    *,
    every: int | None,
    move: Callable[[Index, Int[Array, " some"], Float[Array, "some dim"]], Index],
    index: Index,
) -> tuple[Index, Pending | None]:
    """Remembers the rows that a step changed; moves all every so many steps, or when another step may not find room.

    Args:
        pending: rows that wait already; None: rows move at once.
        updates: how many steps there were since the index was built, this one included.
        ids: of the rows that this step changed; those >= num_valid are ignored.
        rows: their new vectors.
        num_valid: classes.
        every: steps; unused where rows move at once.
        move: ``(index, ids, rows) -> index``: distinct ids, sorted, fillers behind them; called for parts of the rows.
        index: what ``move`` changes, in place if donated; it must hold all arrays that ``move`` both reads and writes.

    Returns:
        The index, and what waits from now on.

    Raises:
        ValueError: if a step may change more rows than there is room for.

    Example:
        >>> import jax.numpy as jnp
        >>> add = lambda total, ids, rows: total + jnp.sum(jnp.where(ids < 9, rows[:, 0], 0))
        >>> pending = nothing_pending(4, Classes(jnp.zeros((9, 1))), every=2)
        >>> total = jnp.float32(0)
        >>> for step, row in enumerate([0.5, 0.7]):
        ...     total, pending = wait_or_move(
        ...         pending, jnp.int32(step + 1), jnp.array([3, 10]), jnp.full((2, 1), row), jnp.int32(9),
        ...         every=2, move=add, index=total,
        ...     )
        ...     print(round(float(total), 2), int(pending.number))
        0.0 1
        0.7 0
    """
    if pending is None:
        return move(index, ids, rows), None
    assert every is not None
    room = pending.ids.shape[0]
    if ids.shape[0] > room:
        raise ValueError(
            f"expected pending_rows of at least {ids.shape[0]}, the most rows that a step may change, got {room}. Pass "
            "a larger pending_rows, or update_every=1."
        )
    pending = remember(pending, ids, rows, ids < num_valid)
    due = (updates % every == 0) | (pending.number + ids.shape[0] > room)

    def move_all(_: Array, index: Index) -> Index:
        distinct, place = latest(pending)
        size = min(room, _CHUNK)
        number = jnp.sum(distinct < num_valid, dtype=jnp.int32)
        missing = -room % size
        distinct = jnp.concatenate([distinct, EMPTY - room + jnp.arange(missing, dtype=jnp.int32)])
        place = jnp.pad(place, (0, missing))

        def move_some(i: Array, index: Index) -> Index:
            some, at = (jax.lax.dynamic_slice_in_dim(a, i * size, size) for a in (distinct, place))
            return move(index, some, pending.rows[at])

        return jax.lax.fori_loop(0, (number + size - 1) // size, move_some, index)

    # A loop of one round or none instead of a condition, because a loop changes its carry in place.
    index = jax.lax.fori_loop(0, due.astype(jnp.int32), move_all, index)
    return index, Pending(pending.ids, pending.rows, jnp.where(due, 0, pending.number))


def nothing_pending(room: int, classes: Classes, every: int | None) -> Pending | None:
    """Room for so many rows, all of it free; None where rows move after each step, or never."""
    if every in (None, 1):
        return None
    rows = jnp.zeros((room, classes.vectors.shape[1]), classes.vectors.dtype)
    return Pending(jnp.zeros(room, jnp.int32), rows, jnp.int32(0))


def remember(pending: Pending, ids: Int[Array, " U"], rows: Float[Array, "U dim"], real: Bool[Array, " U"]) -> Pending:
    """Adds the real ones of some rows, in place if donated; there must be room for them.

    Example:
        >>> import jax.numpy as jnp
        >>> pending = nothing_pending(4, Classes(jnp.zeros((9, 1))), every=2)
        >>> pending = remember(pending, jnp.array([5, 9]), jnp.array([[0.5], [0.9]]), jnp.array([True, False]))
        >>> int(pending.number), int(pending.ids[0])
        (1, 5)
    """
    room = pending.ids.shape[0]
    place = jnp.where(real, pending.number + jnp.cumsum(real, dtype=jnp.int32) - 1, room)
    return Pending(
        pending.ids.at[place].set(ids.astype(jnp.int32), mode="drop"),
        pending.rows.at[place].set(rows.astype(pending.rows.dtype), mode="drop"),
        pending.number + jnp.sum(real, dtype=jnp.int32),
    )


def latest(pending: Pending) -> tuple[Int[Array, " room"], Int[Array, " room"]]:
    """The distinct ids, sorted, and the place of the last change of each; behind them fillers, distinct as well.

    Example:
        >>> import jax.numpy as jnp
        >>> pending = Pending(jnp.array([7, 2, 7, 0]), jnp.array([[1.0], [2.0], [3.0], [0.0]]), jnp.int32(3))
        >>> ids, place = latest(pending)
        >>> ids[:2].tolist(), pending.rows[place][:2, 0].tolist()
        ([2, 7], [2.0, 3.0])
    """
    room = pending.ids.shape[0]
    place = jnp.arange(room, dtype=jnp.int32)
    by_id, place = jax.lax.sort((jnp.where(place < pending.number, pending.ids, EMPTY), place), num_keys=2)
    last = starts_of_runs(by_id[::-1])[::-1] & (by_id < EMPTY)
    # Sorted again, those that count stand in front: others become large numbers that differ.
    ids, place = jax.lax.sort((jnp.where(last, by_id, EMPTY - 2 * room + jnp.arange(room, dtype=jnp.int32)), place))
    return ids, place
