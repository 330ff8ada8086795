"""A model with the averages of its weights, which ``candax.rows.averaged`` keeps in the optimizer."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from candax.checks import checked
from candax.rows.averaging import AveragedState, left
from candax.rows.differentiate import name_of
from candax.training.optimizer import Optimizer


@checked
def averaged_model(model: nnx.Module, optimizer: Optimizer) -> nnx.Module:
    """A copy of a model whose weights are their averages along training.

    The copy is for predictions, not for further steps: its samplers have the states of the model in training.

    Args:
        model: the model in training.
        optimizer: of this model, made with ``candax.rows.averaged(tx, decay)`` for all or some weights; weights
            without averages keep their values.

    Returns:
        The copy, which shares no array of a trained weight with the model.

    Raises:
        ValueError: if the optimizer keeps no averages.

    Example:
        >>> import optax, candax as cx
        >>> head = cx.Head(100, 8, sampler=cx.samplers.uniform(16), rngs=nnx.Rngs(0))
        >>> optimizer = cx.Optimizer(head, cx.rows.averaged(optax.adam(1e-2), 0.99))
        >>> loss, grads = cx.value_and_grad(lambda head: head.loss(jnp.ones((4, 8)), jnp.arange(4)))(head)
        >>> optimizer.update(head, grads)
        >>> moved = cx.training.averaged_model(head, optimizer).vectors[...] - head.vectors[...]
        >>> bool(jnp.max(jnp.abs(moved)) > 0)
        True
    """
    graph, arrays = nnx.split(model)
    copy = nnx.merge(graph, jax.tree.map(jnp.array, arrays))
    found = 0
    params = nnx.to_flat_state(nnx.state(copy, optimizer.wrt))
    for path, variable in params:
        table = optimizer.table_states.get_value().get(name_of(path))
        for state in _averages(optimizer.params_state.get_value() if table is None else table):
            lags, lasts = dict(_flat(state.lag)), dict(_flat(state.last))
            if path in lags:
                variable.set_value(variable.get_value() + left(lags[path], state.step - lasts[path], state.decay))
                found += 1
    if not found:
        raise ValueError("expected an optimizer that keeps averages, see candax.rows.averaged; it keeps none.")
    nnx.update(copy, nnx.from_flat_state(params))
    return copy


def _averages(state: Any) -> list[AveragedState]:
    is_average = lambda node: isinstance(node, AveragedState)  # noqa: E731
    return [node for node in jax.tree.leaves(state, is_leaf=is_average) if is_average(node)]


def _flat(tree: Any) -> list[tuple[Any, Array]]:
    # For weights that another part of ``optax.multi_transform`` trains there are placeholders.
    return [(path, leaf) for path, leaf in nnx.to_flat_state(tree) if isinstance(leaf, jax.Array)]
