"""``value_and_grad`` for functions of Flax NNX modules: tables get row gradients, other parameters ordinary ones."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PyTree

from candax.checks import checked
from candax.rows.differentiate import differentiate
from candax.rows.gradients import Gradients
from candax.rows.lookups import MARK, Mark, TableView, new_token
from candax.rows.slots import SUFFIX, Lagging, Slots, rule_of
from candax.rows.tables import DrawCount, Table


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
        beside = {path: slots for path, slots in nnx.to_flat_state(other) if isinstance(slots, Slots)}
        laggings = {
            number: Lagging(variable, slots.get_raw_value(), rule_of(slots))
            for number, (path, variable) in enumerate(of_path)
            if (slots := beside.get((*path[:-1], f"{path[-1]}{SUFFIX}"))) is not None
        }

        def run(views: list[TableView], params: PyTree) -> tuple[Array, Any]:
            marked = [
                (path, variable.copy(view.array, **{MARK: view.mark}))
                for path, variable, view in zip(paths, variables, views, strict=True)
            ]
            copies = nnx.merge(graph, nnx.from_flat_state(marked), params, other, copy=True)
            counts = _counts_of(copies, wrt)
            for path, count in counts.items():
                count.set_metadata(MARK, Mark(token, _name(path[:-1])))
            inner = list(leaves)
            for place, copy in zip(places, copies, strict=True):
                inner[place] = copy
            inner_args, inner_kwargs = jax.tree.unflatten(structure, inner)
            out = f(*inner_args, **inner_kwargs)
            loss, aux = out if has_aux else (out, None)
            for count in counts.values():
                count.del_metadata(MARK)
            return loss, (aux, nnx.state(copies, nnx.Not(nnx.Any(is_table, is_param))))

        found = differentiate(
            run,
            [variable.get_raw_value() for variable in variables],
            params,
            token=token,
            originals=_tables_of(nodes),
            laggings=laggings,
        )
        aux, changed = found.out
        nnx.update(nodes, _finite(found.finite, changed, other))
        grads = tuple(_of_argument(number, paths, found) for number in wrt)
        value = (found.loss, aux) if has_aux else found.loss
        return value, grads[0] if isinstance(argnums, int) else grads

    return differentiated


def _finite(finite: Array, changed: PyTree, before: PyTree) -> PyTree:
    """Running statistics stay as they were where the loss is not finite."""
    old = dict(nnx.to_flat_state(before))

    def kept(path: tuple[Any, ...], variable: Any) -> Any:
        if path not in old or not isinstance(variable, nnx.BatchStat):
            return variable
        return variable.replace(jnp.where(finite, variable.get_raw_value(), old[path].get_raw_value()))

    return nnx.from_flat_state([(path, kept(path, variable)) for path, variable in nnx.to_flat_state(changed)])


def _is_node(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Pytree | nnx.Variable)


def _numbers_of(args: tuple[Any, ...], argnums: tuple[int, ...], nodes: tuple[Any, ...]) -> list[int]:
    """Which of the nodes the arguments to differentiate are."""
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


def _counts_of(nodes: tuple[Any, ...], wrt: list[int]) -> dict[tuple[Any, ...], DrawCount]:
    return {path: node for path, node in nnx.iter_graph(nodes) if isinstance(node, DrawCount) and path[0] in wrt}


def _tables_of(nodes: tuple[Any, ...]) -> tuple[Table, ...]:
    return tuple(node for _, node in nnx.iter_graph(nodes) if isinstance(node, Table))


def _name(path: tuple[Any, ...]) -> tuple[int, str]:
    """Number of the argument's node, and the rest of the path in words."""
    return path[0], name_of(path[1:])


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
