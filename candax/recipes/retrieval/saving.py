"""Two trained towers as a file that needs no data; see ``common.finished``."""

from pathlib import Path
from typing import Any

import numpy as np

from candax.models import Classifier
from candax.recipes.common import finished
from candax.recipes.retrieval.features import Features, Known
from candax.recipes.sequences.files import Sequences

TASK = "retrieve"
# Settings of `candax retrieve` that a model and its training depend on.
OPTIONS = (
    "sampler", "in_batch", "hard", "loss", "num_sampled", "smoothing", "dim", "hidden_dim", "separate_tables",
    "recency", "item_dropout", "dropout", "length", "num_rows", "epochs", "learning_rate", "decay", "seed",
)  # fmt: skip

_NOTHING = Known()


def known_of(saved: finished.Finished) -> Known:
    """What was known; users whose histories are read later have no features, which is the mean of numbers."""
    items = users = None
    if "item_words" in saved.about:
        items = Features(saved.extra["item_words"], saved.extra["item_numbers"], saved.about["item_words"])
    if "user_features" in saved.about:
        num_words, width = saved.about["user_features"]
        users = Features(np.full((1, 1), -1, np.int32), np.zeros((1, width), np.float32), num_words)
    return Known(items, users)


def save_model(
    folder: Path,
    settings: Any,
    found: Sequences,
    model: Classifier,
    counts: np.ndarray | None = None,
    known: Known = _NOTHING,
) -> Path:
    """Writes a model into its folder.

    Args:
        folder: of the model.
        settings: of `candax retrieve`.
        found: what was trained on.
        model: at the end.
        counts: how often each item was trained on; None: those of ``found``.
        known: about items and users; of users nothing but its shape is kept.

    Returns:
        The path of the file.
    """
    about: dict[str, Any] = {"options": {name: getattr(settings, name) for name in OPTIONS}, "data": found.name}
    extra = {"counts": found.counts() if counts is None else counts}
    if known.items is not None:
        about["item_words"] = known.items.num_words
        extra |= {"item_words": known.items.words, "item_numbers": known.items.numbers}
    if known.users is not None:
        about["user_features"] = [known.users.num_words, known.users.numbers.shape[1]]
    return finished.save(
        folder, TASK, about, finished.weights_of(model), names={"items": found.item_names}, extra=extra
    )
