"""Optimizers by rows: any elementwise optax transformation, on only those rows of a table that a step has used.

The rows of the table and of the optimizer state are gathered, updated, and scattered back in place.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree

from candax.base import KeyArray, State
from candax.checks import checked, refusing
from candax.cosines import wide, widened
from candax.rows.adding import Adding, add, can_add
from candax.rows.averaging import after_rounding
from candax.rows.elementwise import check_elementwise, collects, refuse_collectors
from candax.rows.exact import Exact
from candax.rows.gradients import RowGradients, beside, filled_up, fillers, gather_rows, scatter_rows
from candax.rows.rounding import Rounding, stochastic_round, to_nearest

# There are as many slots as ids were looked up, and unique ids fill only the first of them, often a small part. With
# more slots than this, the optimizer works through the used ones in chunks of about half this size.
_CHUNK = 1024
# A table with at most this many times as many rows as there are slots is read and written whole, in one pass: for 10^5
# rows of 128 numbers that takes a tenth of the time of gathering and scattering 80,000 rows.
_MANY = 2
# How many rows are settled at a time when all rows are.
_SETTLED_AT_ONCE = 8192
_LAST_ID = 2**31 - 1
# Of stochastic rounding: the step's key, and the number that the table's first row has in a larger table.
_Noise: TypeAlias = tuple[KeyArray | None, Array | int]
# A table and its optimizer state.
_Tables: TypeAlias = tuple[Array, State]


class RowUpdate(NamedTuple):
    """A table after a step, its optimizer state, and the ids that were updated with their new rows."""

    table: Array
    state: State
    rows: Array
    ids: Array


class Rowwise(NamedTuple):
    """A row-sparse optimizer.

    Attributes:
        init: ``(table) -> state``.
        update: ``(grads, state, table, ids=None, key=None, first_row=0, write=None) -> RowUpdate``: of the rows
            ``ids``; without ids ``grads`` are ``RowGradients``, or an array of the table's shape. Where ``write`` is
            False nothing changes (``RowGradients`` of a loss that is not finite hold no rows anyway).
        update_all: ``(grads, state, table, key=None) -> (table, state)``: of all rows, by a gradient of all.
        read: ``(state, rows, ids) -> rows``: rows of the table at any ids, as they are after the latest step.
        settle: ``(state, table, at_once=False) -> (state, table)``: the same of all rows, in blocks unless ``at_once``.
            ``read`` and ``settle`` only change something with ``cx.rows.exact_adamw`` and the like: with others, rows
            that were not used have not moved.
    """

    init: Callable[[Array], State]
    update: Callable[..., RowUpdate]
    update_all: Callable[..., tuple[Array, State]]
    read: Callable[[State, Array, Array], Array]
    settle: Callable[..., tuple[State, Array]]


@refusing(optax.MultiSteps, collects("MultiSteps"))
@checked
def rowwise(transformation: optax.GradientTransformation, *, rounding: Rounding = "nearest") -> Rowwise:
    """Applies an optax transformation to only the rows that a step has used and their rows of the optimizer state.

    Leaves of the state whose first dimension follows the table's are per row, others (step counts, learning rates) are
    shared and advance with every step. Rows that a step does not use stay bit for bit as they are: moments do not decay
    and weight decay does not act until a row is used again ("lazy" semantics). With all rows used, the result is that
    of the transformation itself.

    **Narrow tables.** bfloat16 is how rows are stored, and nothing is computed in it: rows and gradients become
    float32, the optimizer state is float32 (bfloat16 moments would lose a decay of .999 to rounding), and only the new
    rows are rounded. With ``rounding="stochastic"`` that is at random and right on average (``candax.rows.rounding``);
    with "nearest" updates below half the distance between neighbouring numbers, 1/512 to 1/256 of a weight, are lost,
    and training with a small learning rate stands still. (To add the updates to a float32 copy of the rows would cost
    more memory than a float32 table; it would only save traffic, where rows are read more often than written.) On a
    CPU, XLA before JAX 0.11 has no scatter into bfloat16: every step converts the whole table to float32 and back, so
    that time and scratch grow with the number of rows there. Narrow tables are for accelerators.

    Args:
        transformation: any optax transformation that treats every number of an array by itself: sgd, adam, adamw,
            adagrad, rmsprop, lion, chains of them, schedules.
        rounding: of new rows of a bfloat16 table; float32 tables know none.

    Returns:
        ``Rowwise``: ``init(table)``; ``update(grads, state, table)`` with ``RowGradients``, or
        ``update(grads, state, table, ids)`` with gradients of the rows ``ids`` as ``unique_rows`` gives them;
        ``update_all(grads, state, table)`` with a gradient of the whole table. Stochastic rounding of a bfloat16 table
        takes a ``key`` of the step as well, and where the table is a part of a larger one the number of its
        ``first_row`` there, so that the parts are rounded like the whole. A jitted step that donates table and state
        should return them in the order in which it takes them: JAX pairs donated buffers with results of the same shape
        in that order, and a table written into the buffer of its moments is copied.

    Raises:
        ValueError: here, at construction, if the transformation mixes rows (norms of whole arrays, factored or matrix
            moments, decisions on the whole tree) or collects gradients over steps (MultiSteps, apply_every).

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from candax.rows import rowwise
        >>> sgd = rowwise(optax.sgd(0.5))
        >>> table = jnp.zeros((4, 1))
        >>> sgd.update(jnp.ones((1, 1)), sgd.init(table), table, jnp.array([2])).table.ravel().tolist()
        [0.0, 0.0, -0.5, 0.0]
    """
    if not isinstance(transformation, Exact):
        refuse_collectors(transformation)
        # Also where an optimizer is made inside jit, or with jit disabled; and the probe has a NaN in it, which is none
        # of the user's.
        with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.disable_jit(False):
            check_elementwise(transformation)

    def start(table: Array) -> State:
        if isinstance(transformation, Exact) and table.dtype != wide(table.dtype):
            raise ValueError(
                f"expected rows of float32 for an exact optimizer, got {table.dtype}, in which what rows move between "
                "two uses is lost to rounding. Take a lazy one such as optax.adam, with rounding='stochastic'."
            )
        return transformation.init(widened(table))

    def init(table: Array) -> State:
        # Compiled, so that a wide copy is never made of a table of which the state takes the shape alone.
        sharding = None if isinstance(table, jax.core.Tracer) else getattr(table, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return jax.jit(start)(table)
        # What follows the rows lies where they lie.
        everywhere = NamedSharding(sharding.mesh, PartitionSpec())
        rows = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
        per_row = _per_row(start, table.shape[1:], table.dtype)
        return jax.jit(start, out_shardings=jax.tree.map(lambda follows: rows if follows else everywhere, per_row))(
            table
        )

    def updated(
        grads: Float[Array, "U ..."], state: State, rows: Float[Array, "U ..."], noise: _Noise, ids: Array
    ) -> tuple[Array, State]:
        """New rows, rounded, and their state."""
        wider = widened(rows)
        updates, state = transformation.update(grads.astype(wider.dtype), state, wider)
        new = optax.apply_updates(wider, updates)
        if rows.dtype == wider.dtype:
            return new, state
        if rounding == "nearest":
            return new.astype(rows.dtype), after_rounding(state, to_nearest(new, rows.dtype) - new)
        if rows.dtype != jnp.bfloat16:
            raise ValueError(f"expected bfloat16 or float32 rows with stochastic rounding, got {rows.dtype}.")
        key, first_row = noise
        if key is None:
            raise ValueError("expected a key of the step with stochastic rounding of a bfloat16 table, got none.")
        rounded = stochastic_round(key, new, ids + first_row)
        return rounded, after_rounding(state, rounded.astype(new.dtype) - new)

    def update(
        grads: RowGradients | Float[Array, "U ..."],
        state: State,
        table: Array,
        ids: Int[Array, " U"] | None = None,
        key: KeyArray | None = None,
        first_row: Int[Array, ""] | int = 0,
        write: Bool[Array, ""] | None = None,
    ) -> RowUpdate:
        if isinstance(transformation, Adding) and can_add(grads, table):
            return RowUpdate(*add(transformation, grads, state, table, write))
        values, ids = (grads.rows, grads.ids) if isinstance(grads, RowGradients) else (grads, ids)
        number, old = table.shape[0], (table, state)
        if ids is None:
            new = update_all(values, state, table, key)
            if write is not None:
                new = jax.tree.map(lambda new, old: jnp.where(write, new, old), new, old)
            return RowUpdate(*new, new[0], jnp.arange(number, dtype=jnp.int32))
        if write is not None:
            ids = jnp.where(write, ids, fillers(number, ids.shape[0]))
        asked = ids.shape[0]
        update_used = update_some if asked <= _CHUNK else update_most if _MANY * asked >= number else update_chunks
        per_row = True, _per_row(start, table.shape[1:], table.dtype)
        new = update_used(values, ids, old, per_row, (key, first_row))
        if write is not None:
            # Rows are dropped already where nothing is to be written; what all rows share is not.
            new = jax.tree.map(
                lambda new, old, follows: new if follows else jnp.where(write, new, old), new, old, per_row
            )
        return RowUpdate(*new, gather_rows(new[0], ids), ids)

    def update_some(
        grads: Float[Array, "U ..."], ids: Int[Array, " U"], old: _Tables, per_row: PyTree, noise: _Noise
    ) -> _Tables:
        """The rows ``ids`` of a table and its state gathered, updated and scattered at once."""
        rows, state = _of_rows(lambda leaf: gather_rows(leaf, ids), per_row, old)
        new = updated(grads, state, rows, noise, ids)
        return _of_rows(lambda old, new: scatter_rows(old, ids, new), per_row, old, new)

    def update_chunks(
        grads: Float[Array, "U ..."], ids: Int[Array, " U"], old: _Tables, per_row: PyTree, noise: _Noise
    ) -> _Tables:
        """The same in chunks, as many as there are slots in use."""
        number = old[0].shape[0]
        size = _chunk_size(ids.shape[0])
        grads, ids = filled_up(grads, ids, number, -(-ids.shape[0] // size) * size)

        def update_chunk(i: Array, now: _Tables) -> _Tables:
            some, of = (jax.lax.dynamic_slice_in_dim(a, i * size, size) for a in (grads, ids))
            # Shared leaves advance once a step, not once a chunk: every chunk starts from the old ones.
            return update_some(some, of, _of_rows(lambda now, old: now, per_row, now, old), per_row, noise)

        chunks = jnp.maximum(1, (jnp.sum(ids < number) + size - 1) // size)
        return jax.lax.fori_loop(0, chunks, update_chunk, old)

    def update_most(
        grads: Float[Array, "U ..."], ids: Int[Array, " U"], old: _Tables, per_row: PyTree, noise: _Noise
    ) -> _Tables:
        """The same where the slots are nearly as many as rows: one pass over the whole table."""
        table, state = old
        number = table.shape[0]
        of_all = scatter_rows(jnp.zeros(table.shape, grads.dtype), ids, grads)
        used = jnp.zeros(number, bool).at[ids].set(True, mode="drop", unique_indices=True, indices_are_sorted=True)
        new = updated(of_all, state, table, noise, jnp.arange(number, dtype=jnp.int32))
        return _of_rows(lambda old, new: jnp.where(beside(used, old), new, old), per_row, old, new)

    def update_all(
        grads: Float[Array, "rows ..."], state: State, table: Array, key: KeyArray | None = None
    ) -> tuple[Array, State]:
        return updated(grads, state, table, (key, 0), jnp.arange(table.shape[0], dtype=jnp.int32))

    def read(state: State, rows: Array, ids: Int[Array, "..."]) -> Array:
        if not isinstance(transformation, Exact):
            return rows
        row_shape = rows.shape[ids.ndim :]
        flat = widened(rows).reshape(ids.size, *row_shape)
        at = jnp.where(ids < 0, _LAST_ID, ids).reshape(-1)
        # Of an id that is out of range the row is NaN, or 0, and stays so.
        state = _of_rows(
            lambda leaf: leaf.at[at].get(mode="fill", fill_value=0), _per_row(start, row_shape, rows.dtype), state
        )
        return (flat + _moved(transformation, state, flat)).astype(rows.dtype).reshape(rows.shape)

    def settle(state: State, table: Array, at_once: bool = False) -> tuple[State, Array]:
        if not isinstance(transformation, Exact):
            return state, table
        per_row = _per_row(start, table.shape[1:], table.dtype)
        size = table.shape[0] if at_once else min(table.shape[0], _SETTLED_AT_ONCE)

        def some(number: Array | int, both: tuple[State, Array]) -> tuple[State, Array]:
            # The last block may overlap the one before: rows that are settled do not move again.
            first = jnp.minimum(number * size, table.shape[0] - size)

            def take(leaf: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(leaf, first, size)

            def put(leaf: Array, new: Array) -> Array:
                return jax.lax.dynamic_update_slice_in_dim(leaf, new, first, 0)

            part, rows = _of_rows(take, (per_row, True), both)
            old = widened(rows)
            part, moved = transformation.settle(part, old)
            return _of_rows(put, (per_row, True), both, (part, (old + moved).astype(rows.dtype)))

        blocks = -(-table.shape[0] // size)
        return some(0, (state, table)) if blocks == 1 else jax.lax.fori_loop(0, blocks, some, (state, table))

    return Rowwise(init, update, update_all, read, settle)


# Outside a program, a scan over the steps that were missed would be compiled anew at every call.
@functools.partial(jax.jit, static_argnums=0)
def _moved(transformation: Exact, state: State, rows: Array) -> Array:
    return transformation.settle(state, rows)[1]


def _of_rows(function: Callable[..., Array], per_row: PyTree, *states: State) -> State:
    """``function`` of the leaves that follow the rows; others are those of the last state."""
    return jax.tree.map(lambda follows, *leaves: function(*leaves) if follows else leaves[-1], per_row, *states)


def _chunk_size(number: int) -> int:
    """At most half of ``_CHUNK``, mostly more than a quarter; one that divides the number of slots if there is any.

    Example:
        >>> _chunk_size(1280), _chunk_size(2600), _chunk_size(1031)
        (320, 325, 344)
    """
    least = -(-2 * number // _CHUNK)
    return -(-number // next((pieces for pieces in range(least, 2 * least) if number % pieces == 0), least))


def _per_row(init: Callable[[Array], State], row_shape: tuple[int, ...], dtype: Any) -> PyTree:
    """For every leaf of the optimizer state whether its first dimension follows the number of rows."""

    def leaf(path: Any, a: jax.ShapeDtypeStruct, b: jax.ShapeDtypeStruct) -> bool:
        if a.shape == b.shape:
            return False
        if a.shape[:1] == (5,) and b.shape[:1] == (7,) and a.shape[1:] == b.shape[1:]:
            return True
        raise ValueError(
            f"rowwise: expected every array of the optimizer state to have a row per table row, or a shape of its own, "
            f"but state{jax.tree_util.keystr(path)} has the shapes {a.shape} and {b.shape} for tables of 5 and 7 rows. "
            "Use an elementwise transformation such as optax.adam, optax.adagrad or optax.sgd."
        )

    shapes = [jax.eval_shape(init, jax.ShapeDtypeStruct((rows, *row_shape), dtype)) for rows in (5, 7)]
    return jax.tree_util.tree_map_with_path(leaf, *shapes)
