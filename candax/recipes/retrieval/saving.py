"""Two trained towers as a file that needs no data; see ``common.finished``."""

from pathlib import Path
from typing import Any

import numpy as np

from candax.models import Classifier
from candax.recipes.common import finished
from candax.recipes.sequences.files import Sequences

TASK = "retrieve"
# Settings of `candax retrieve` that a model and its training depend on.
OPTIONS = (
    "sampler", "in_batch", "hard", "loss", "num_sampled", "smoothing", "dim", "hidden_dim", "separate_tables",
    "recency", "item_dropout", "dropout", "length", "num_rows", "epochs", "learning_rate", "decay", "seed",
)  # fmt: skip


def save_model(
    folder: Path, settings: Any, found: Sequences, model: Classifier, counts: np.ndarray | None = None
) -> Path:
    """Writes a model into its folder.

    Args:
        folder: of the model.
        settings: of `candax retrieve`.
        found: what was trained on.
        model: at the end.
        counts: how often each item was trained on; None: those of ``found``.

    Returns:
        The path of the file.
    """
    about = {"options": {name: getattr(settings, name) for name in OPTIONS}, "data": found.name}
    extra = {"counts": found.counts() if counts is None else counts}
    return finished.save(
        folder, TASK, about, finished.weights_of(model), names={"items": found.item_names}, extra=extra
    )
