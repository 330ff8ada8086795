"""Losses: pure functions from ``SampledLogits`` to one number an example; any loss goes with any sampler.

``full_softmax`` is the reference that they approximate. It needs every class, so it is no loss on ``SampledLogits``.
"""

from candax.losses.full import full_softmax
from candax.losses.likelihood import css, sampled_softmax, subset_softmax

__all__ = ["css", "full_softmax", "sampled_softmax", "subset_softmax"]
