"""Options of ``ExtremeClassifier`` as settings of `candax train`."""

from typing import Any, Literal

from candax import losses
from candax.checks import checked
from candax.recipes.common.catalog import LOSSES, LossName, SamplerName
from candax.recipes.extreme.train import Train


def pair_of(settings: Train, num_classes: int) -> tuple[Any, Any]:
    """Sampler and loss; all classes are candidates where there are no more than would be drawn."""
    if settings.sampler is None:
        return None, losses.full_softmax
    if num_classes <= settings.num_sampled:
        return None, losses.over_all_classes(LOSSES[settings.loss])
    return settings.pair_of(num_classes)


@checked
def settings_of(
    *,
    sampler: SamplerName | None,
    loss: LossName,
    encoder: Literal["linear", "relu"],
    dim: int,
    epochs: float,
    batch_size: int,
    num_sampled: int,
    learning_rate: float | None,
    encoder_rate: float,
    dropout: float,
    seed: int,
) -> Train:
    """The settings of `candax train`, checked here because scikit-learn wants checks in ``fit``."""
    settings = Train(
        sampler=sampler,
        loss=loss,
        encoder=encoder,
        dim=dim,
        epochs=epochs,
        batch_size=batch_size,
        num_sampled=num_sampled,
        learning_rate=learning_rate,
        encoder_rate=encoder_rate,
        dropout=dropout,
        seed=seed,
    )
    settings.check()
    return settings
