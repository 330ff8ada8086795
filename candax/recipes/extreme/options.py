"""Options of ``ExtremeClassifier`` as settings of `candax train`."""

from typing import Any

from candax import losses
from candax.recipes.common.catalog import LOSSES
from candax.recipes.extreme.train import Train


def pair_of(settings: Train, num_classes: int) -> tuple[Any, Any]:
    """Sampler and loss; all classes are candidates where there are no more than would be drawn."""
    if settings.sampler is None:
        return None, losses.full_softmax
    if num_classes <= settings.num_sampled:
        return None, losses.over_all_classes(LOSSES[settings.loss])
    return settings.pair_of(num_classes)
