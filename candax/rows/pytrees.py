"""``value_and_grad`` over tables for functions of plain pytrees."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from candax.checks import checked
from candax.rows.differentiate import differentiate
from candax.rows.gradients import Gradients, RowGradients
from candax.rows.lookups import TableView, new_token
from candax.rows.tables import Lagging


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
            RowGradients.none(array) if entry is None else entry
            for entry, array in zip(found.rows, arrays, strict=True)
        ]
        value = (found.loss, found.out) if has_aux else found.loss
        grads = Gradients(found.params, jax.tree.unflatten(structure, rows), found.draws, found.finite)
        return value, grads

    return differentiated
