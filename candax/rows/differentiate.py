"""``value_and_grad`` of functions of NNX modules: tables get row gradients, other parameters ordinary ones.

``differentiate`` is what it shares with ``value_and_grad`` for plain pytrees (``candax.rows.pytrees``).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PyTree

from candax.checks import checked, refusing
from candax.rows.gradients import Gradients, RowGradients
from candax.rows.lookups import MARK, Mark, TableView, Tape, new_token
from candax.rows.tables import DrawCount, Lagging, Table, rule_of, slots_of_tables

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

    ``run`` gets a view of each table, marked with the token. ``originals`` are the variables that hold the tables
    outside, whose use in ``run`` is an error; ``laggings`` are, by number, the tables whose rows are settled when they
    are read.
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

    tables = [jnp.asarray(table) for table in tables]  # they may be NumPy's
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


@refusing(nnx.DiffState, "expected argnums of integers, got a DiffState: choose what is trained by cx.Optimizer(wrt=).")
@checked
def value_and_grad(
    f: Callable[..., Any], *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """``nnx.value_and_grad`` with row gradients for tables: in place of it, around any function of NNX modules.

    Works in the user's own ``nnx.jit``, or ``jax.jit`` with ``nnx.merge``, and in a ``lax.scan`` over micro-batches.
    Random streams, batch statistics and the counts of heads advance in the modules that are given, as with
    ``nnx.value_and_grad``. Lookups (``cx.Embed``, ``head.loss``, ``cx.rows.lookup``) must stand directly in ``f`` and
    not in a transformation within it. A table that ``f`` also uses as a whole array (``head(h)``, an L2 penalty) gets
    a dense gradient.

    Args:
        f: ``f(module, *args) -> loss``, or ``(loss, aux)``.
        argnums: number of the argument to differentiate, a module; or several.
        has_aux: ``f`` returns something beside the loss, a pytree of arrays.

    Returns:
        ``(*args) -> (value, Gradients)`` for ``cx.Optimizer``; for several ``argnums`` a tuple of ``Gradients``.

    Raises:
        ValueError: where the function is called: if an argument to differentiate is no module, the loss no scalar, or
            rows are looked up inside a transformation, or of a model that is not the function's argument.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> from flax import nnx
        >>> words = cx.Embed(1000, 4, rngs=nnx.Rngs(0))
        >>> value, grads = cx.value_and_grad(lambda words: jnp.sum(words(jnp.array([7, 3]))))(words)
        >>> grads.rows["embedding"].ids.tolist()
        [3, 7]
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_node)
        places = [place for place, leaf in enumerate(leaves) if _is_node(leaf)]
        # What arguments share is filed under the first of them: that has to be one that is differentiated.
        chosen = {id(args[number]) for number in numbers if -len(args) <= number < len(args)}
        places.sort(key=lambda place: id(leaves[place]) not in chosen)
        nodes = tuple(leaves[place] for place in places)
        wrt = _numbers_of(args, numbers, nodes)

        def is_table(path: tuple[Any, ...], variable: Any) -> bool:
            return path[0] in wrt and isinstance(variable, Table)

        def is_param(path: tuple[Any, ...], variable: Any) -> bool:
            return path[0] in wrt and isinstance(variable, nnx.Param)

        graph, tables, params, other = nnx.split(nodes, is_table, is_param, ...)
        of_path = nnx.to_flat_state(tables)
        paths = [path for path, _ in of_path]
        variables = [variable for _, variable in of_path]
        token = new_token()
        in_nodes, beside = dict(nnx.iter_graph(nodes)), slots_of_tables(nodes)
        laggings = {
            number: Lagging(variable, slots.get_raw_value(), rule_of(slots))
            for number, (path, variable) in enumerate(of_path)
            if (slots := beside.get(id(in_nodes[path]))) is not None
        }

        def run(views: list[TableView], params: PyTree) -> tuple[Array, Any]:
            marked = [
                (path, variable.copy(view.array, **{MARK: view.mark}))
                for path, variable, view in zip(paths, variables, views, strict=True)
            ]
            copies = nnx.merge(graph, nnx.from_flat_state(marked), params, other, copy=True)
            counts = [
                (path, node) for path, node in nnx.iter_graph(copies) if isinstance(node, DrawCount) and path[0] in wrt
            ]
            for path, count in counts:  # marked with their argument's number, and the name of their head within it
                count.set_metadata(MARK, Mark(token, (path[0], name_of(path[1:-1]))))
            inner = list(leaves)
            for place, copy in zip(places, copies, strict=True):
                inner[place] = copy
            inner_args, inner_kwargs = jax.tree.unflatten(structure, inner)
            out = f(*inner_args, **inner_kwargs)
            loss, aux = out if has_aux else (out, None)
            for _, count in counts:
                count.del_metadata(MARK)
            return loss, (aux, nnx.state(copies, nnx.Not(nnx.Any(is_table, is_param))))

        found = differentiate(
            run,
            [variable.get_raw_value() for variable in variables],
            params,
            token=token,
            originals=tuple(node for _, node in nnx.iter_graph(nodes) if isinstance(node, Table)),
            laggings=laggings,
        )
        aux, changed = found.out
        nnx.update(nodes, _finite(found.finite, changed, other))
        grads = tuple(_of_argument(number, paths, found) for number in wrt)
        value = (found.loss, aux) if has_aux else found.loss
        return value, grads[0] if isinstance(argnums, int) else grads

    return differentiated


def _finite(finite: Array, changed: PyTree, before: PyTree) -> PyTree:
    """What the function has changed, but batch statistics as they were before where the loss is not finite."""
    old = dict(nnx.to_flat_state(before))

    def kept(path: tuple[Any, ...], variable: Any) -> Any:
        if path not in old or not isinstance(variable, nnx.BatchStat):
            return variable
        return variable.replace(jnp.where(finite, variable.get_raw_value(), old[path].get_raw_value()))

    return nnx.from_flat_state([(path, kept(path, variable)) for path, variable in nnx.to_flat_state(changed)])


def _is_node(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Pytree | nnx.Variable)


def _numbers_of(args: tuple[Any, ...], argnums: tuple[int, ...], nodes: tuple[Any, ...]) -> list[int]:
    """For each argument to differentiate, its number among the nodes."""
    found = []
    for argnum in argnums:
        if not -len(args) <= argnum < len(args):
            raise ValueError(f"expected argnums of the {len(args)} positional arguments given, got {argnum}.")
        argument = args[argnum]
        if not isinstance(argument, nnx.Module):
            raise ValueError(
                f"expected argument {argnum} of the differentiated function to be an nnx.Module, got "
                f"{type(argument).__name__}. For plain pytrees of arrays use candax.rows.value_and_grad."
            )
        found.append(next(number for number, node in enumerate(nodes) if node is argument))
    return found


def name_of(path: tuple[Any, ...]) -> str:
    """A path within a module in words: ``("layers", 0, "embedding")`` is "layers.0.embedding"."""
    return ".".join(str(part) for part in path)


def _of_argument(number: int, paths: list[tuple[Any, ...]], found: Any) -> Gradients:
    rows = {
        name_of(path[1:]): entry
        for path, entry in zip(paths, found.rows, strict=True)
        if path[0] == number and entry is not None
    }
    draws = {name: of_head for (node, name), of_head in found.draws.items() if node == number}
    params = found.params[number] if number in found.params else nnx.State({})
    return Gradients(params, rows, draws, found.finite)


def _check_loss(loss: Any) -> None:
    if not jax.tree_util.all_leaves([loss]):
        raise ValueError(
            f"expected the differentiated function to return one number, got a {type(loss).__name__}: with something "
            "beside the loss, has_aux=True."
        )
    shape = jnp.shape(loss)
    if shape != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise ValueError(
            f"expected the differentiated function to return one floating-point number, got {jnp.result_type(loss)}"
            f'{list(shape)}. Take a mean, or leave out reduction="none"; with something beside the loss, has_aux=True.'
        )


def _reaching(jaxpr: Any, number: int) -> frozenset[int]:
    """Which of the first ``number`` inputs the first output can have a gradient to: none goes through integers."""

    def can_have_gradient(var: Any) -> bool:
        return not hasattr(var, "val") and jnp.issubdtype(getattr(var.aval, "dtype", bool), jnp.inexact)

    reached = set(filter(can_have_gradient, jaxpr.outvars[:1]))
    for equation in reversed(jaxpr.eqns):
        if equation.primitive.name != "stop_gradient" and any(out in reached for out in equation.outvars):
            reached.update(filter(can_have_gradient, equation.invars))
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
