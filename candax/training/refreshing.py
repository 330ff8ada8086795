"""Rebuilding the samplers of a model's heads when their schedules say so."""

from typing import Any

import jax
from flax import nnx

from candax.base import Classes, KeyArray, Sampler, State
from candax.checks import checked
from candax.models.computed import ComputedVectors
from candax.models.head import INIT, Head, Refreshes


@checked
def refresh(model: nnx.Module, step: int, *, donate: bool = False) -> bool:
    """Rebuilds the samplers of a model's heads that are due at this step; to be called on the host, before each step.

    It is a compiled call of its own: inside the training step, every step would need the memory of a rebuild.

    Args:
        model: a module with heads anywhere in it.
        step: of training, from 0; ``sampler.schedule(step)`` decides. Samplers without a schedule are never due.
        donate: reuse the memory of the samplers' states. Not where others hold them too, as clones of the model do.

    Returns:
        Whether any head was refreshed.

    Example:
        >>> import candax as cx
        >>> from flax import nnx
        >>> sampler = cx.samplers.every(cx.samplers.uniform(16), 100)
        >>> head = cx.Head(1000, 8, sampler=sampler, rngs=nnx.Rngs(0))
        >>> [step for step in range(250) if cx.refresh(head, step)]
        [100, 200]
    """
    Refreshes.called = True
    done = False
    if step < 0:
        raise ValueError(f"expected step >= 0, got {step}.")
    for _, head in nnx.iter_graph(model):
        if isinstance(head, Head) and head.sampler is not None and head.sampler.schedule(step):
            _refresh_head(head, donate)
            done = True
    return done


def _refresh_head(head: Head, donate: bool) -> None:
    if isinstance(head.vectors, ComputedVectors) and head.vectors.snapshot is not None:
        head.vectors.keep()
    classes, state = head.classes(), head.state
    assert head.sampler is not None
    assert state is not None
    refreshed = _refreshed_in_place if donate else _refreshed
    new = refreshed(head.sampler, state.get_value(), head.step_key(), classes)
    of_classes = {id(leaf) for leaf in jax.tree.leaves(classes)}
    # An array of the classes that the sampler keeps as it is would be donated twice by the next step: copy it.
    state.set_value(jax.tree.map(lambda leaf: leaf.copy() if id(leaf) in of_classes else leaf, new))


def _refresh(sampler: Sampler, state: State, key: KeyArray, classes: Classes) -> Any:
    return sampler.refresh(state, jax.random.fold_in(key, INIT), classes)


_refreshed = jax.jit(_refresh, static_argnums=0)
_refreshed_in_place = jax.jit(_refresh, static_argnums=0, donate_argnums=1)
