"""What `candax train` and ``ExtremeClassifier`` share: options, and the model as a file that needs no data set."""

from pathlib import Path
from typing import Any

import numpy as np

from candax import losses
from candax.data import Dataset
from candax.models import Classifier
from candax.recipes.common import finished
from candax.recipes.common.catalog import LOSSES

TASK = "extreme"
# Settings of `candax train` that ``ExtremeClassifier`` has too.
OPTIONS = (
    "sampler", "loss", "encoder", "dim", "epochs", "batch_size", "num_sampled", "learning_rate", "encoder_rate",
    "dropout", "seed",
)  # fmt: skip


def probability_of(sampler: str | None, loss: str) -> str:
    """How logits become probabilities after training with a loss: each by itself, or among all classes."""
    return "sigmoid" if sampler is not None and loss == "one_vs_all" else "softmax"


def pair_of(settings: Any, num_classes: int) -> tuple[Any, Any]:
    """Sampler and loss of the classifier; all classes are candidates where there are no more than would be drawn."""
    if settings.sampler is not None and num_classes <= settings.num_sampled:
        return None, losses.over_all_classes(LOSSES[settings.loss])
    return settings.pair_of(num_classes)


def save_run(
    folder: Path,
    settings: Any,
    dataset: Dataset,
    model: Classifier,
    *,
    max_features: int,
    step: int,
    rarity: np.ndarray | None,
) -> None:
    """Writes the model of a run into its folder; see ``common.finished``.

    Args:
        folder: of the run.
        settings: of `candax train`.
        dataset: that was trained on.
        model: at the end.
        max_features: feature slots of an example in training, for versions of candax that predicted from as many.
        step: the last one.
        rarity: of features, if their counts were weighted by it.
    """
    about: dict[str, Any] = {
        "options": {name: getattr(settings, name) for name in OPTIONS},
        "step": step,
        "data": dataset.name,
        "multilabel": True,
        "num_features": dataset.num_features,
        "num_classes": dataset.num_classes,
        "max_features": max_features,
        "probability": probability_of(settings.sampler, settings.loss),
        "dim": settings.dim,
        "encoder": settings.encoder,
    }
    names = {} if dataset.class_names is None else {"classes": dataset.class_names}
    extra = {} if rarity is None else {"rarity": rarity}
    finished.save(folder, TASK, about, finished.weights_of(model), names=names, extra=extra)
