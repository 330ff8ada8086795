from . import (
    base as base,
    blocks as blocks,
    cosines as cosines,
    data as data,
    diagnostics as diagnostics,
    losses as losses,
    models as models,
    recipes as recipes,
    rows as rows,
    samplers as samplers,
    testing as testing,
    training as training,
)
from .base import (
    Candidates as Candidates,
    Classes as Classes,
    Facts as Facts,
    Query as Query,
    Retriever as Retriever,
    SampledLogits as SampledLogits,
    Sampler as Sampler,
)
from .models.embed import Embed as Embed
from .models.head import Head as Head
from .models.sampled import sampled_loss as sampled_loss
from .rows.accumulate import accumulate as accumulate
from .rows.differentiate import value_and_grad as value_and_grad
from .rows.gradients import Gradients as Gradients
from .training.checking import check as check
from .training.optimizer import Optimizer as Optimizer
from .training.refreshing import refresh as refresh
