"""The output layer as it was for the published figures."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Shaped

import candax as cx
from candax import losses
from candax.blocks import DEFAULT_BLOCK_SIZE

_MOST_BYTES = 2e9
FULL_SOFTMAX_IN_BLOCKS = functools.partial(losses.full_softmax, block_size=DEFAULT_BLOCK_SIZE)


def plain_head(
    num_classes: int, dim: int, counts: Shaped[np.ndarray, " num_classes"], *, seed: int, rngs: nnx.Rngs
) -> cx.Head:
    """A ``cx.Head`` whose biases start at 0, and whose draws follow from a seed.

    Args:
        num_classes: see ``cx.Head``.
        dim: see ``cx.Head``.
        counts: see ``cx.Head``.
        seed: of the candidates.
        rngs: for the class vectors; its next key is taken.

    Returns:
        The head, without a sampler.
    """
    head = cx.Head(num_classes, dim, sampler=None, counts=counts, rngs=nnx.clone(rngs))
    rngs.params()  # takes one key only (draws have their own): published encoders were made with the next
    # The papers' output layers start without the log prior, and so do the published figures.
    assert head.biases is not None
    head.biases[...] = jnp.zeros_like(head.biases[...])
    head.key_data.set_value(jax.random.key_data(jax.random.key(seed)))
    return head


def full_softmax_for(batch_size: int, num_classes: int) -> Callable[..., Any]:
    """The loss: all logits at once where they fit into memory, which is a little faster, else in blocks."""
    fits = 3 * 4 * batch_size * num_classes < _MOST_BYTES
    return losses.full_softmax if fits else FULL_SOFTMAX_IN_BLOCKS
