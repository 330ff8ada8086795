"""Checks on the host of what goes into a model: inside jit an id out of range can only become NaN."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from candax.checks import check_ids, checked
from candax.models.head import Head
from candax.rows.differentiate import name_of
from candax.rows.lookups import checking_ids
from candax.rows.tables import Table


@checked
def check(
    model: nnx.Module,
    *inputs: Any,
    labels: Any = None,
    call: Callable[..., Any] | None = None,
) -> None:
    """Runs a model on a batch without jit and without changing it, and checks every id that it looks up.

    Args:
        model: with tables or heads anywhere in it.
        *inputs: what the model is called with.
        labels: the labels of the batch, to check too; for a model with one head.
        call: ``call(model, *inputs)``, where the model is not used by calling it, such as a loss function.

    Raises:
        ValueError: for ids or labels of the wrong type or out of range, with the table's name and the id.

    Example:
        >>> import numpy as np, candax as cx
        >>> from flax import nnx
        >>> words = cx.Embed(100, 4, rngs=nnx.Rngs(0))
        >>> cx.check(words, np.array([1, 99]))
        >>> cx.check(words, np.array([1, 100]))
        Traceback (most recent call last):
        ValueError: expected ids of embedding in 0 ... 99 (-1: none), got 100. Check the data, or the sizes
        given to the model.
    """
    graph, state = nnx.split(model)
    copy = nnx.merge(graph, state, copy=True)
    names = {id(node): f"ids of {name_of(path)}" for path, node in nnx.iter_graph(copy) if isinstance(node, Table)}
    heads = [node for _, node in nnx.iter_graph(copy) if isinstance(node, Head)]

    def checked(of: Any, ids: Any, number: Any) -> None:
        if not isinstance(ids, jax.core.Tracer):  # they are traced in transformations inside the model
            is_labels = isinstance(of, str) and of == "labels"
            check_ids(ids, number, names.get(id(of), "labels" if is_labels else "ids of a table"))

    with checking_ids(checked):
        copy(*inputs) if call is None else call(copy, *inputs)
    if labels is None:
        return
    if len(heads) != 1:
        raise ValueError(
            f"expected a model with one head to check labels= for, got {len(heads)}. Check its loss instead: "
            "candax.check(model, batch, call=loss_fn)."
        )
    check_ids(labels, heads[0].num_classes, "labels")


def has_nan(model: nnx.Module) -> bool:
    """Whether a weight of a model is NaN."""
    weights = jax.tree.leaves(nnx.state(model, nnx.Param))  # some may be numbers of Python, as a callback sets them
    weights = [leaf for leaf in weights if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return bool(_any_nan(weights))


@jax.jit
def _any_nan(weights: list[Array]) -> Array:
    return jnp.any(jnp.array([jnp.isnan(of).any() for of in weights]))
