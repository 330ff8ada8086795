"""candax: train JAX models with huge output layers without computing all classes."""

from candax import data, diagnostics, losses, models, recipes, rows, samplers, testing, training
from candax.base import Candidates, Classes, Facts, Query, SampledLogits, Sampler
from candax.models.embed import Embed
from candax.models.head import Head
from candax.models.sampled import sampled_loss
from candax.rows.gradients import Gradients, accumulate
from candax.rows.modules import value_and_grad
from candax.training.checking import check
from candax.training.optimizer import Optimizer
from candax.training.refreshing import refresh

__all__ = [
    "Candidates",
    "Classes",
    "Embed",
    "Facts",
    "Gradients",
    "Head",
    "Optimizer",
    "Query",
    "SampledLogits",
    "Sampler",
    "accumulate",
    "check",
    "data",
    "diagnostics",
    "losses",
    "models",
    "recipes",
    "refresh",
    "rows",
    "sampled_loss",
    "samplers",
    "testing",
    "training",
    "value_and_grad",
]
