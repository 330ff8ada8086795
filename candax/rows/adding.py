"""SGD by rows whose updates are added where they fall: equal ids need not be found and summed first."""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from candax.base import State
from candax.checks import checked
from candax.rows.gradients import RowGradients, all_finite, gather_rows
from candax.rows.missed import Rate


class Adding(optax.GradientTransformation):
    """An optax transformation whose update is the gradient times a number that depends on the step alone."""

    def __new__(cls, init: Any, update: Any) -> "Adding":
        """An optax pair."""
        return super().__new__(cls, init, update)


@checked
def adding_sgd(rate: Rate) -> Adding:
    """``optax.sgd`` that, on a CPU, adds every lookup's update to its row without a sum over equal ids before.

    A row r that a step looks up several times has several gradients g_i. Any other optimizer needs their sum, for which
    ids are sorted and gradients added up in an array of their own. SGD is linear: ``- rate sum_i g_i`` is
    ``sum_i (- rate g_i)``, up to rounding, and a CPU adds at equal places in order. Elsewhere (on a GPU adding at equal
    places is slow, and its order not fixed), for tables over a mesh, in bfloat16, with a clip_norm, and for gradients
    of several micro-batches, it is ``optax.sgd``.

    Args:
        rate: the learning rate, or an optax schedule of it.

    Returns:
        A transformation for ``cx.Optimizer``; alone, not in a chain.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> from flax import nnx
        >>> words = cx.Embed(4, 1, rngs=nnx.Rngs(0))
        >>> words.embedding[...] = jnp.zeros((4, 1))
        >>> optimizer = cx.Optimizer(words, cx.rows.adding_sgd(0.5))
        >>> _, grads = cx.value_and_grad(lambda words: jnp.sum(words(jnp.array([2, 2, 1]))))(words)
        >>> optimizer.update(words, grads)
        >>> words.embedding[...].ravel().tolist()
        [0.0, -0.5, -1.0, 0.0]
    """
    return Adding(*optax.sgd(rate))


def can_add(grads: Any, table: Array) -> TypeGuard[RowGradients]:
    """Whether a step of an ``Adding`` optimizer may add without summing first."""
    return (
        isinstance(grads, RowGradients)
        and grads.unsummed is not None
        and table.dtype == jnp.float32
        and jax.default_backend() == "cpu"
    )


def finite(grads: RowGradients) -> Bool[Array, ""]:
    """Whether all gradients are finite that ``add`` writes: those of lookups that count for nothing may be NaN."""
    assert grads.unsummed is not None
    ids, values = grads.unsummed
    return all_finite(values, ids < grads.num_rows)


def add(
    transformation: Adding, grads: RowGradients, state: State, table: Array, write: Bool[Array, ""] | None
) -> tuple[Array, State, Array, Array]:
    """A ``RowUpdate``: the table, its state, the rows that have changed and their ids."""
    assert grads.unsummed is not None
    ids, values = grads.unsummed
    updates, new = transformation.update(values, state, values)
    if write is not None:
        ids = jnp.where(write, ids, table.shape[0])
        new = jax.tree.map(lambda new, old: jnp.where(write, new, old), new, state)
        grads = grads.where(write)
    added = table.at[ids].add(updates, mode="drop")
    return added, new, gather_rows(added, grads.ids), grads.ids
