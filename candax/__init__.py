"""candax: train JAX models with huge output layers without computing all classes."""

from candax import data, diagnostics, losses, models, samplers, training
from candax.base import Candidates, Classes, Facts, Query, SampledLogits, Sampler

__all__ = [
    "Candidates",
    "Classes",
    "Facts",
    "Query",
    "SampledLogits",
    "Sampler",
    "data",
    "diagnostics",
    "losses",
    "models",
    "samplers",
    "training",
]
