"""``value_and_grad`` over tables for plain pytrees, and the kernel that it shares with the one for NNX modules."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from candax.checks import checked
from candax.rows.gradients import Gradients, RowGradients
from candax.rows.lookups import Mark, TableView, Tape, new_token
from candax.rows.slots import Lagging
from candax.rows.tables import Table

# ``(views of the tables, params) -> (loss, anything else)``, run under a tape.
Run = Callable[[list[TableView], PyTree], tuple[Array, Any]]


class Differentiated(NamedTuple):
    """A loss, what else its function returned, and gradients; ``rows`` has one entry per table, None where unused."""

    loss: Float[Array, ""]
    out: Any
    params: PyTree
    rows: list[RowGradients | Array | None]
    draws: dict[str, list[Any]]
    finite: Bool[Array, ""]


def differentiate(
    run: Run,
    tables: list[Array],
    params: PyTree,
    *,
    token: int,
    originals: tuple[Table, ...] = (),
    laggings: dict[int, Lagging] | None = None,
) -> Differentiated:
    """Runs a function twice: abstractly, to see which rows it looks up, and to differentiate it.

    Args:
        run: the function. Its first result is the loss.
        tables: arrays; ``run`` gets a view of each.
        params: differentiated densely.
        token: of the views' marks, from ``new_token``.
        originals: the variables that hold the tables outside, whose use in ``run`` is an error.
        laggings: by number, tables of which rows are settled when they are read.

    Returns:
        See ``Differentiated``.
    """

    def views(arrays: list[Array]) -> list[TableView]:
        return [TableView(array, Mark(token, number)) for number, array in enumerate(arrays)]

    shapes: list[jax.ShapeDtypeStruct] = []
    looked_up: list[int] = []

    def find_lookups(whole: list[Array], sources: list[Array], params: PyTree) -> Array:
        with Tape(token, sources, originals=originals) as tape:
            loss, _ = run(views(whole), params)
        _check_loss(loss)
        shapes.extend(tape.rows)
        looked_up.extend(number for number, _ in tape.lookups)
        return loss

    traced = jax.make_jaxpr(find_lookups)(tables, tables, params)
    dense = _reaching(traced.jaxpr, len(tables))
    laggings = laggings or {}
    tables = [
        laggings[number].whole() if number in dense and number in laggings else table
        for number, table in enumerate(tables)
    ]
    # Lookups of a table that is used whole have no delta: zeros without elements keep their place.
    deltas = [
        jnp.zeros((0,) if number in dense else shape.shape, shape.dtype)
        for number, shape in zip(looked_up, shapes, strict=True)
    ]

    def objective(whole: dict[int, Array], params: PyTree, deltas: list[Array]) -> tuple[Array, Any]:
        arrays = [whole.get(number, array) for number, array in enumerate(tables)]
        with Tape(token, arrays, deltas, dense, originals, laggings) as tape:
            loss, out = run(views(arrays), params)
        if len(tape.lookups) != len(deltas):
            raise ValueError(
                f"expected the differentiated function to look up rows {len(deltas)} times each time it is called, got "
                f"{len(tape.lookups)} the second time. Let nothing in it depend on how often it was called."
            )
        return loss, (out, tape.lookups, tape.finite, tape.draws)

    whole = {number: tables[number] for number in dense}
    (loss, (out, lookups, finite, draws)), grads = jax.value_and_grad(objective, argnums=(0, 1, 2), has_aux=True)(
        whole, params, deltas
    )
    all_finite = functools.reduce(jnp.logical_and, finite, jnp.isfinite(loss))
    rows: list[RowGradients | Array | None] = [
        grads[0][number] if number in dense else _join(number, table, lookups, grads[2], all_finite)
        for number, table in enumerate(tables)
    ]
    of_heads: dict[str, list[Any]] = {}
    for name, draw in draws:
        of_heads.setdefault(name, []).append(draw)
    return Differentiated(loss, out, grads[1], rows, of_heads, all_finite)


@checked
def value_and_grad(f: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., tuple[Any, Gradients]]:
    """``jax.value_and_grad`` with row gradients for tables, for functions of plain pytrees.

    ``f(tables, params, *args) -> loss``, or ``(loss, aux)``: ``tables`` a pytree of arrays that are read by rows,
    ``params`` one of ordinary parameters. In ``f`` each table is a view: ``cx.rows.lookup(view, ids)`` reads rows, a
    ``cx.Classes`` of views is a head whose rows ``cx.sampled_loss`` reads, and any use of a view as an array
    (``view[...]``) makes its gradient dense.

    Args:
        f: the function; only its first two arguments are differentiated.
        has_aux: ``f`` returns something beside the loss. A ``Draw`` for ``update_sampler`` goes there.

    Returns:
        ``(tables, params, *args) -> (value, Gradients)`` with ``Gradients.rows`` in the structure of ``tables``.

    Raises:
        ValueError: where the function is called, if its loss is no scalar, or rows are looked up inside a
            transformation within it.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> def f(tables, scale, ids):
        ...     return scale * jnp.sum(cx.rows.lookup(tables["words"], ids))
        >>> value, grads = cx.rows.value_and_grad(f)({"words": jnp.ones((9, 1))}, 2.0, jnp.array([4, 7, 4]))
        >>> float(value), float(grads.params)
        (6.0, 3.0)
        >>> grads.rows["words"].ids.tolist(), grads.rows["words"].rows.ravel().tolist()
        ([4, 7, 11], [4.0, 2.0, 0.0])
    """

    @functools.wraps(f)
    def differentiated(tables: PyTree, params: PyTree, *args: Any, **kwargs: Any) -> tuple[Any, Gradients]:
        leaves, structure = jax.tree.flatten(tables, is_leaf=lambda leaf: isinstance(leaf, Lagging))
        laggings = {number: leaf for number, leaf in enumerate(leaves) if isinstance(leaf, Lagging)}
        arrays = [jnp.asarray(leaf.table if isinstance(leaf, Lagging) else leaf) for leaf in leaves]

        def run(views: list[TableView], params: PyTree) -> tuple[Array, Any]:
            out = f(jax.tree.unflatten(structure, views), params, *args, **kwargs)
            return out if has_aux else (out, None)

        found = differentiate(run, arrays, params, token=new_token(), laggings=laggings)
        rows = [
            RowGradients.of(jnp.zeros(0, jnp.int32), jnp.zeros((0, *array.shape[1:])), array.shape[0])
            if entry is None
            else entry
            for entry, array in zip(found.rows, arrays, strict=True)
        ]
        value = (found.loss, found.out) if has_aux else found.loss
        grads = Gradients(found.params, jax.tree.unflatten(structure, rows), found.draws, found.finite)
        return value, grads

    return differentiated


def _check_loss(loss: Any) -> None:
    shape = jnp.shape(loss)
    if shape != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise ValueError(
            f"expected the differentiated function to return one floating-point number, got {jnp.result_type(loss)}"
            f'{list(shape)}. Take a mean, or leave out reduction="none"; with something beside the loss, has_aux=True.'
        )


def _reaching(jaxpr: Any, number: int) -> frozenset[int]:
    """Which of the first ``number`` inputs the first output can have a gradient to."""
    reached = {jaxpr.outvars[0]} if not hasattr(jaxpr.outvars[0], "val") else set()
    for equation in reversed(jaxpr.eqns):
        if equation.primitive.name != "stop_gradient" and any(out in reached for out in equation.outvars):
            reached.update(var for var in equation.invars if not hasattr(var, "val"))
    return frozenset(i for i, var in enumerate(jaxpr.invars[:number]) if var in reached)


def _join(
    number: int, table: Array, lookups: list[tuple[int, Array]], deltas: list[Array], finite: Bool[Array, ""]
) -> RowGradients | None:
    """The gradients of all lookups of a table, equal ids added up."""
    ids = [ids.reshape(-1) for of, ids in lookups if of == number]
    if not ids:
        return None
    rows = [delta.reshape(-1, *table.shape[1:]) for (of, _), delta in zip(lookups, deltas, strict=True) if of == number]
    # Where an id is out of range nothing is written, so a delta that reached a row of zeros or NaN counts for nothing.
    return RowGradients.of(jnp.concatenate(ids), jnp.concatenate(rows), table.shape[0], finite)
