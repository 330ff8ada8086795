"""Averages of weights along training: an optax transformation that works row by row, too."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from candax.checks import checked
from candax.cosines import wide, widened
from candax.rows.exact import Exact
from candax.rows.rounding import to_nearest


class AveragedState(NamedTuple):
    """State of ``averaged``.

    Attributes:
        inner: of the transformation within.
        step: how many are done.
        decay: of the average.
        last: for each row the step of its last update.
        lag: the average less the weight, as it was at that step; ``decay ** (step - last)`` of it is left now.
    """

    inner: Any
    step: Int[Array, ""]
    decay: Float[Array, ""]
    last: PyTree
    lag: PyTree


@checked
def averaged(transformation: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    r"""A transformation that also keeps an exponential moving average of the weights.

    ``a_t = decay a_{t-1} + (1 - decay) w_t``, from ``a_0 = w_0`` on. What is stored is the lag ``a - w``: while a row
    is not used, w stands still and the lag falls by ``decay`` per step, so that it is brought up to date where the row
    is updated next. A step with a table of any size costs what its own rows cost, and the average is exact. It is that
    of the weights as they are stored, also in bfloat16, and is in float32 itself.

    ``candax.training.averaged_model`` gives the model with the averages for weights.

    Args:
        transformation: of which the updates are.
        decay: in (0, 1): about ``1 / (1 - decay)`` steps are averaged.

    Returns:
        An optax transformation, with the updates of the one within.

    Raises:
        ValueError: for a decay out of range, for an exact optimizer, or without ``params``.

    Example:
        >>> tx = averaged(optax.sgd(1.0), 0.5)
        >>> weight = jnp.zeros((1, 1))
        >>> state = tx.init(weight)
        >>> updates, state = tx.update(jnp.full((1, 1), -4.0), state, weight)
        >>> float(updates[0, 0] + state.lag[0, 0])  # half way from 0 to 4
        2.0

    Source: Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging (1992); the exponential form as
        in Kingma and Ba, Adam: A Method for Stochastic Optimization (2015), section 7.2.
    """
    if not 0 < decay < 1:
        raise ValueError(f"expected a decay between 0 and 1, got {decay!r}.")
    if isinstance(transformation, Exact):
        raise ValueError(
            "expected a lazy optimizer to average the weights of, got an exact one, whose rows move while they are not "
            "used."
        )

    def init(params: PyTree) -> AveragedState:
        lag = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, wide(leaf.dtype)), params)
        last = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[:1], jnp.int32), params)
        return AveragedState(transformation.init(params), jnp.zeros((), jnp.int32), jnp.float32(decay), last, lag)

    def update(updates: PyTree, state: AveragedState, params: PyTree | None = None) -> tuple[PyTree, AveragedState]:
        if params is None:
            raise ValueError("averaged: expected params, whose average is taken, got none.")
        updates, inner = transformation.update(updates, state.inner, params)
        step = state.step + 1
        lag = jax.tree.map(
            lambda lag, last, weight, move: left(lag, step - last, state.decay) - decay * _stored(weight, move),
            state.lag,
            state.last,
            params,
            updates,
        )
        # All are the step, the largest. Without the old ones in them XLA writes before it reads, and copies them first.
        last = jax.tree.map(lambda last: jnp.maximum(last, step), state.last)
        return updates, AveragedState(inner, step, state.decay, last, lag)

    return optax.GradientTransformation(init, update)


def _stored(weight: Array, move: Array) -> Array:
    """By how much an update moves a weight, which may be of a narrow type."""
    if weight.dtype == wide(weight.dtype):
        return move
    wider = widened(weight)
    return to_nearest(wider + move, weight.dtype) - wider


def after_rounding(state: Any, change: Float[Array, "..."]) -> Any:
    """An optimizer's state, where the rows that it has just updated are stored with this change.

    ``rowwise`` computes in float32 and rounds the new rows of narrow tables; the averages are of what is stored.
    """

    def followed(node: Any) -> Any:
        if not isinstance(node, AveragedState):
            return node
        # Others than that of the rows are stand-ins.
        lags, structure = jax.tree.flatten(node.lag)
        moved = [lag - node.decay * change if lag.shape == change.shape else lag for lag in lags]
        return node._replace(lag=jax.tree.unflatten(structure, moved))

    return jax.tree.map(followed, state, is_leaf=lambda node: isinstance(node, AveragedState))


def left(lag: Array, steps: Int[Array, "..."], decay: Float[Array, ""]) -> Array:
    """What is left of a lag after some steps."""
    share = decay ** steps.astype(lag.dtype)
    return lag * share.reshape(share.shape + (1,) * (lag.ndim - share.ndim))
