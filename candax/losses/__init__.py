"""Losses: pure functions from ``SampledLogits`` to one number per example; any loss goes with any sampler.

``full_softmax`` is the reference that they approximate. It needs every class, so it is no loss on ``SampledLogits``;
``over_all_classes`` makes the reference of any other loss. Margins map ``SampledLogits`` of cosines to scaled logits.
"""

from candax.losses.contrastive import blackout, gbce, nce, negative_sampling, one_vs_all
from candax.losses.d_softmax import d_softmax, d_softmax_b
from candax.losses.full import full_softmax, over_all_classes
from candax.losses.likelihood import css, importance_sampling, sampled_softmax, subset_softmax
from candax.losses.margins import arcface, cosface, with_margin
from candax.losses.ranking import ranking
from candax.losses.wrappers import each_label, with_smoothing

__all__ = [
    "arcface",
    "blackout",
    "cosface",
    "css",
    "d_softmax",
    "d_softmax_b",
    "each_label",
    "full_softmax",
    "gbce",
    "importance_sampling",
    "nce",
    "negative_sampling",
    "one_vs_all",
    "over_all_classes",
    "ranking",
    "sampled_softmax",
    "subset_softmax",
    "with_margin",
    "with_smoothing",
]
