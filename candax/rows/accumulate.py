"""Gradients of micro-batches joined into those of one large batch."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num

from candax.checks import checked
from candax.rows.gradients import Gradients, RowGradients, beside, filled_up, is_rows, map_rows


@checked
def accumulate(
    gradients: Sequence[Gradients] | Gradients,
    weights: Sequence[Num[Array, ""] | float] | Num[Array, " N"] | None = None,
) -> Gradients:
    """Joins the gradients of micro-batches into those of one large batch: ``sum_i w_i g_i / sum_i w_i``.

    Rows are concatenated, equal ids added up, and what heads have drawn becomes one draw for their samplers. A mean
    over predictions has as its weight the number of predictions that count: ``weights=[where.sum() for each]``.

    Args:
        gradients: of each micro-batch; or one ``Gradients`` with a leading axis of micro-batches, as a ``lax.scan``
            over them stacks it.
        weights: of each micro-batch; None: all equal.

    Returns:
        ``Gradients``. One micro-batch that is not finite spoils them all.

    Raises:
        ValueError: without micro-batches, or with another number of weights.

    Example:
        >>> import candax as cx
        >>> def f(table, params, ids):
        ...     return jnp.sum(cx.rows.lookup(table, ids))
        >>> parts = [cx.rows.value_and_grad(f)(jnp.ones((4, 1)), (), jnp.array([i]))[1] for i in (2, 0)]
        >>> joined = cx.accumulate(parts).rows
        >>> joined.ids.tolist(), joined.rows.ravel().tolist()
        ([0, 2], [0.5, 0.5])
    """
    if isinstance(gradients, Gradients):
        number = gradients.finite.shape[0] if gradients.finite.ndim else 0
    else:
        number = len(gradients)
    if not number:
        raise ValueError(
            "expected the gradients of at least one micro-batch: a list of candax.Gradients, or one with a leading "
            "axis of micro-batches as lax.scan stacks them; got neither."
        )
    stacked = gradients if isinstance(gradients, Gradients) else _stack(gradients)
    share = jnp.ones(number) if weights is None else jnp.asarray(weights, jnp.float32)
    if share.shape != (number,):
        raise ValueError(f"expected one weight per micro-batch, {number}, got an array of shape {list(share.shape)}.")
    total = share.sum()
    share = share / jnp.where(total > 0, total, 1)

    def mean(leaf: Array) -> Array:
        return jnp.einsum("n,n...->...", share.astype(leaf.dtype), leaf)

    finite = jnp.all(stacked.finite)

    def join(entry: RowGradients | Array) -> RowGradients | Array:
        if not isinstance(entry, RowGradients):
            return mean(entry)
        weighted = entry.rows * beside(share.astype(entry.rows.dtype), entry.rows)
        flat = weighted.reshape(-1, *entry.rows.shape[2:])
        return RowGradients.of(entry.ids.reshape(-1), flat, entry.num_rows).where(finite)

    draws = {name: [draw.joined() for draw in of_head] for name, of_head in stacked.draws.items()}
    params = jax.tree.map(mean, stacked.params)
    return dataclasses.replace(stacked, params=params, rows=map_rows(join, stacked.rows), draws=draws, finite=finite)


def _stack(gradients: Sequence[Gradients]) -> Gradients:
    """Stacks micro-batches along a new first axis; where they have different numbers of rows, fills them up."""

    def stack(*leaves: Any) -> Any:
        if not isinstance(leaves[0], RowGradients):
            return jnp.stack(leaves)
        if len(sizes := {leaf.num_rows for leaf in leaves}) > 1:
            raise ValueError(f"tables of {sorted(sizes)} rows.")
        slots = max(leaf.rows.shape[0] for leaf in leaves)
        rows, ids = zip(*(filled_up(leaf.rows, leaf.ids, leaf.num_rows, slots) for leaf in leaves), strict=True)
        return RowGradients(jnp.stack(ids), jnp.stack(rows), leaves[0].num_rows)

    try:
        return jax.tree.map(stack, *gradients, is_leaf=is_rows)
    except ValueError as error:
        raise ValueError(
            "expected the gradients of micro-batches of one shape, by one function, whose heads all draw alike; got "
            f"gradients of different structure or shape: {error}"
        ) from error
