"""Losses: pure functions from ``SampledLogits`` to one number an example; any loss goes with any sampler.

``full_softmax`` is the reference that they approximate. It needs every class, so it is no loss on ``SampledLogits``.
"""

from candax.losses.contrastive import blackout, gbce, nce, negative_sampling
from candax.losses.full import full_softmax
from candax.losses.importance import importance_sampling
from candax.losses.likelihood import css, sampled_softmax, subset_softmax
from candax.losses.ranking import ranking

__all__ = [
    "blackout",
    "css",
    "full_softmax",
    "gbce",
    "importance_sampling",
    "nce",
    "negative_sampling",
    "ranking",
    "sampled_softmax",
    "subset_softmax",
]
