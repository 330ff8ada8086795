"""Lookups: reads of table rows that carry their own gradients.

Inside ``value_and_grad`` a lookup is ``stop_gradient(table)[ids] + delta`` with zeros as ``delta``. The loss is
differentiated with respect to the deltas, and the ids come out beside their gradients: so any function of looked-up
rows has row gradients, whatever stands around it. Outside, a lookup is a plain gather with a dense gradient.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Float, Int, Integer, Num

from candax.checks import checked, described
from candax.cosines import widened
from candax.rows.gradients import all_finite
from candax.rows.tables import DrawCount, Lagging, Table, lagging, num_rows

# The name under which a variable of a differentiated copy carries its ``Mark``.
MARK = "candax_mark"
_TOKENS = itertools.count()


class Mark(NamedTuple):
    """Which differentiation a table or a head belongs to, and which of its tables (a number) or heads (a path) it is.

    It is part of the structure of what it marks, so that an inner ``jit`` that was traced without it is traced again.
    """

    token: int
    name: Any


@jax.tree_util.register_pytree_node_class
class TableView:
    """A table inside ``candax.rows.value_and_grad``: ``lookup(view, ids)`` reads rows, ``view[...]`` all of it."""

    def __init__(self, array: Array, mark: Mark) -> None:
        self.array, self.mark = array, mark

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __getitem__(self, key: Any) -> Array:
        return self.array[key]

    def __jax_array__(self) -> Array:
        return self.array

    def tree_flatten(self) -> tuple[tuple[Array], Mark]:
        """The array; the mark is structure."""
        return (self.array,), self.mark

    @classmethod
    def tree_unflatten(cls, mark: Mark, children: tuple[Array]) -> "TableView":
        """The inverse of ``tree_flatten``."""
        return cls(children[0], mark)


class Longer:
    """A table that stands for one with more rows, of which those beyond its own are never looked up."""

    def __init__(self, table: "Table | Lagging", number: int) -> None:
        self.table, self.shape = table, (number, *table.shape[1:])


AnyTable: TypeAlias = Table | TableView | Lagging | Longer | Array | Num[np.ndarray, "..."]


def current_trace() -> Any:
    """What JAX is tracing now, to compare with what it traced before."""
    return jax.extend.core.get_opaque_trace_state(convention="nnx")


class _Active(threading.local):
    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.checks: list[Callable[[Any, Array, int], None]] = []
        self.muted = 0  # how many of the tapes, the outer ones, record nothing now


_ACTIVE = _Active()


class Tape:
    """What one run of a differentiated function looks up and draws; make it inside that function.

    Attributes:
        token: of this differentiation, in the marks of its tables and heads.
        sources: the tables' arrays, read without a gradient; those of ``dense`` tables with their gradient.
        deltas: what is added to the rows of each lookup in turn; None while their shapes are found out.
        dense: numbers of the tables that the function also uses as whole arrays. Their lookups are plain gathers.
        originals: the table variables of the model that was copied to be differentiated.
        laggings: by number, the tables of which rows are settled when they are read.
        lookups: number of the table and ids of each lookup.
        rows: shape and type of the rows of each lookup, float32 or wider.
        finite: of each lookup whether all its rows were finite.
        draws: name of the head and ``Draw`` of each call of a head's loss in training.
    """

    def __init__(
        self,
        token: int,
        sources: list[Array],
        deltas: list[Array] | None = None,
        dense: frozenset[int] = frozenset(),
        originals: tuple[Table, ...] = (),
        laggings: dict[int, Lagging] | None = None,
    ) -> None:
        self.token, self.sources, self.deltas, self.dense, self.originals = token, sources, deltas, dense, originals
        self.laggings = laggings or {}
        self.trace = current_trace()
        self.lookups: list[tuple[int, Array]] = []
        self.rows: list[jax.ShapeDtypeStruct] = []
        self.finite: list[Array] = []
        self.draws: list[tuple[str, Any]] = []

    def __enter__(self) -> "Tape":
        _ACTIVE.tapes.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _ACTIVE.tapes.pop()

    def look_up(self, table: int, ids: Int[Array, "*n"]) -> Float[Array, "..."]:
        """Rows with their delta."""
        source = self.sources[table]
        if any(self is tape for tape in _ACTIVE.tapes[: _ACTIVE.muted]):
            rows = gather(jax.lax.stop_gradient(source), ids)
            return self.laggings[table].read(rows, ids) if table in self.laggings and table not in self.dense else rows
        self.check_trace("a lookup of table rows")
        number = len(self.lookups)
        if table in self.dense:
            rows = gather(source, ids)
        else:
            rows, finite = _read(jax.lax.stop_gradient(source), ids)
            if table in self.laggings:
                rows = self.laggings[table].read(rows, ids)
        if table in self.dense or table in self.laggings:
            finite = all_finite(jax.lax.stop_gradient(rows), jnp.ones(ids.shape, bool))
        self.finite.append(finite)
        self.lookups.append((table, ids))
        wider = widened(rows)
        self.rows.append(jax.ShapeDtypeStruct(wider.shape, wider.dtype))
        if table in self.dense or self.deltas is None:
            return rows
        if number >= len(self.deltas) or self.deltas[number].shape != wider.shape:
            raise ValueError(
                "expected the differentiated function to look up the same rows each time it is called, got other "
                "lookups the second time. Let nothing in it depend on how often it was called."
            )
        return (jax.lax.stop_gradient(wider) + self.deltas[number]).astype(rows.dtype)

    def check_trace(self, what: str) -> None:
        """Raises ValueError inside a transformation that stands within the differentiated function."""
        if current_trace() != self.trace:
            raise ValueError(
                f"expected {what} directly in the function that value_and_grad differentiates, got one inside jit, "
                "scan, vmap, cond, remat or another transformation within it, from which its row gradients cannot "
                "come out. Look the rows up before and pass them in; or put value_and_grad inside the transformation, "
                "as for micro-batches in a scan."
            )


def new_token() -> int:
    """A token that no other differentiation has."""
    return next(_TOKENS)


@checked
def lookup(table: AnyTable, ids: Integer[Array | np.ndarray, "*n"]) -> Float[Array, "..."]:
    """Rows of a table, ``table[ids]``: with row gradients inside ``value_and_grad``, with a dense gradient elsewhere.

    An id of -1 means "none" and gives zeros. Any other id out of range gives NaN: inside jit nothing else can be said,
    and the optimizer then writes nothing. ``candax.check`` finds such ids on the host.

    Args:
        table: a ``Table``, an array, or what ``candax.rows.value_and_grad`` hands to the function for one.
        ids: of rows, of any integer type and any shape.

    Returns:
        ``[*ids.shape, *row_shape]``, of the table's type.

    Raises:
        ValueError: for ids that are no integers; inside a transformation within the differentiated function; for a
            table of the model outside the function instead of the copy that the function was given.

    Example:
        >>> import jax.numpy as jnp
        >>> from candax.rows import lookup
        >>> lookup(jnp.array([[1.0], [2.0]]), jnp.array([1, -1, 2])).ravel().tolist()
        [2.0, 0.0, nan]
    """
    wanted = integer_ids(ids, "ids to look up")
    if isinstance(table, Longer):
        return lookup(table.table, wanted)
    if isinstance(table, Lagging):
        rows = lookup(table.table, wanted)
        # Inside ``value_and_grad`` they have been settled.
        return table.read(rows, wanted) if _tape_of(table.table) is None else rows
    if not (jnp.ndim(_array(table)) and table.shape[0]) or not jnp.issubdtype(_array(table).dtype, jnp.number):
        raise ValueError(f"expected a table with rows of numbers, got {described(_array(table))}.")
    number = num_rows(table)
    report_ids(table, wanted, number)
    if number < table.shape[0]:  # ids of padding rows are out of range, too
        wanted = jnp.where(wanted < number, wanted, table.shape[0])
    if (found := _tape_of(table)) is not None:
        tape, number = found
        return tape.look_up(number, wanted)
    if _ACTIVE.tapes and any(table is original for original in _ACTIVE.tapes[-1].originals):
        raise ValueError(
            "expected a table of the model that the differentiated function was given, got one of the model outside "
            "it, whose gradient would be lost. Use the function's own argument: def loss_fn(model): ... model ..."
        )
    return gather(_array(table), wanted)


def lookup_in(owner: Any, name: str, ids: Any) -> Float[Array, "..."]:
    """``lookup`` in the table that is an attribute of a module, settled where an exact optimizer trains it."""
    return lookup(lagging(owner, name) or getattr(owner, name), ids)


def whole(owner: Any, name: str) -> Array:
    """All rows of the table that is an attribute of a module, settled where an exact optimizer trains it."""
    table, slow, found = getattr(owner, name), lagging(owner, name), _tape_of(getattr(owner, name))
    # Inside ``value_and_grad`` a table that has a dense gradient is settled already.
    is_settled = slow is None or (found is not None and found[1] in found[0].dense)
    return jnp.asarray(table[...]) if slow is None or is_settled else slow.whole()


def gather(table: Float[Array, "rows ..."], ids: Int[Array, "*n"]) -> Float[Array, "..."]:
    """Rows of an array; zeros where an id is -1, NaN where it is out of range."""
    # A negative index would count from the end.
    rows = table.at[jnp.where(ids < 0, table.shape[0], ids)].get(mode="fill", fill_value=0)
    wrong = ((ids < -1) | (ids >= table.shape[0])).reshape(ids.shape + (1,) * (table.ndim - 1))
    return jnp.where(wrong, _nan(wrong, table.dtype), rows)


def _read(table: Float[Array, "rows ..."], ids: Int[Array, "*n"]) -> tuple[Float[Array, "..."], Bool[Array, ""]]:
    """``gather`` for rows without a gradient (which it would add to the first row for ids that are no rows).

    It chooses once per number and ``gather`` twice; XLA repeats these choices at every use of the rows. So whether all
    rows are finite, the second result, is asked before.
    """
    inside = (ids >= 0) & (ids < table.shape[0])
    rows = table.at[jnp.where(inside, ids, 0)].get(mode="promise_in_bounds")
    wrong = (ids < -1) | (ids >= table.shape[0])
    per_row = ids.shape + (1,) * (table.ndim - 1)
    chosen = jnp.where(inside.reshape(per_row), rows, _nan(wrong, table.dtype).reshape(per_row))
    return chosen, all_finite(rows, inside) & ~jnp.any(wrong)


def _nan(where: Bool[Array, "..."], dtype: Any) -> Array:
    """NaN there and 0 elsewhere: none where all ids are right, or ``jax_debug_nans`` would stop a healthy model."""
    return jnp.where(where, jnp.nan, 0).astype(dtype)


def integer_ids(ids: Any, what: str) -> Int[Array, "*n"]:
    """Ids as int32, from any integer type; ValueError for anything else."""
    if not isinstance(ids, jax.Array):
        ids = _narrow(np.asarray(ids))
    else:
        sharding = jax.typeof(ids).sharding
        if AxisType.Explicit in sharding.mesh.axis_types and any(sharding.spec):
            raise ValueError(
                f"expected {what} that lie over axes of the type Auto, got {jax.typeof(ids)} on a mesh with Explicit "
                "ones, which jax.make_mesh makes unless told otherwise: give it "
                "axis_types=(jax.sharding.AxisType.Auto,) * len(names)."
            )
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(
            f"expected integer {what}, got {ids.dtype}{list(ids.shape)}. One-hot or probability arrays are no ids: "
            "take jnp.argmax(array, axis=-1), or jnp.where(mask, ids, -1) for a mask."
        )
    return jnp.asarray(_narrow(ids), jnp.int32)


def _narrow(ids: Any) -> Any:
    """Integers that 32 bits do not hold become the nearest that they do: cut off, they could be another row's id."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        return ids
    numbers = np if isinstance(ids, np.ndarray) else jnp
    if jnp.issubdtype(ids.dtype, jnp.unsignedinteger):
        return numbers.minimum(ids, 2**31 - 1).astype(numbers.int32) if ids.dtype.itemsize >= 4 else ids
    if ids.dtype.itemsize > 4:
        return numbers.clip(ids, -(2**31), 2**31 - 1).astype(numbers.int32)
    return ids


@contextlib.contextmanager
def checking_ids(check: Callable[[Any, Array, int], None]) -> Iterator[None]:
    """Calls ``check(of, ids, number)`` at every lookup inside, and for labels: ids must be below ``number``."""
    _ACTIVE.checks.append(check)
    try:
        yield
    finally:
        _ACTIVE.checks.pop()


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Lookups inside are plain reads for each ``value_and_grad`` that is at work already: in any transformation."""
    before, _ACTIVE.muted = _ACTIVE.muted, len(_ACTIVE.tapes)
    try:
        yield
    finally:
        _ACTIVE.muted = before


def report_ids(of: Any, ids: Array, number: Any) -> None:
    """For ``checking_ids``: ids of a table, or labels ("labels")."""
    for check in _ACTIVE.checks:
        check(of, ids, number)


def record_draw(count: DrawCount, draw: Any) -> None:
    """Tells the active tape what a head has drawn, for its sampler to follow the step."""
    if (found := _tape_of(count)) is not None:
        tape, name = found
        tape.check_trace("head.loss")
        tape.draws.append((name, draw))


def _tape_of(marked: Any) -> tuple[Tape, Any] | None:
    """The active tape of a table or a head's count, if there is one, and the name that the mark gives it there."""
    mark: Mark | None = None
    if isinstance(marked, TableView):
        mark = marked.mark
    elif isinstance(marked, Table | DrawCount):
        mark = marked.get_metadata(MARK, None)
    if mark is None:
        return None
    return next(((tape, mark.name) for tape in reversed(_ACTIVE.tapes) if tape.token == mark.token), None)


def _array(table: Table | TableView | Array | np.ndarray) -> Array:
    return jnp.asarray(table[...] if isinstance(table, Table | TableView) else table)
