from . import (
    base as base,
)
from . import (
    blocks as blocks,
)
from . import (
    cosines as cosines,
)
from . import (
    data as data,
)
from . import (
    diagnostics as diagnostics,
)
from . import (
    losses as losses,
)
from . import (
    models as models,
)
from . import (
    recipes as recipes,
)
from . import (
    rows as rows,
)
from . import (
    samplers as samplers,
)
from . import (
    testing as testing,
)
from . import (
    training as training,
)
from .base import (
    Candidates as Candidates,
)
from .base import (
    Classes as Classes,
)
from .base import (
    Facts as Facts,
)
from .base import (
    Query as Query,
)
from .base import (
    SampledLogits as SampledLogits,
)
from .base import (
    Sampler as Sampler,
)
from .models.embed import Embed as Embed
from .models.head import Head as Head
from .models.sampled import sampled_loss as sampled_loss
from .rows.gradients import Gradients as Gradients
from .rows.gradients import accumulate as accumulate
from .rows.modules import value_and_grad as value_and_grad
from .training.checking import check as check
from .training.optimizer import Optimizer as Optimizer
from .training.refreshing import refresh as refresh
