"""A trained model of links as a file that needs no data; see ``common.finished``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from candax.data import Graph
from candax.models import Classifier
from candax.recipes.common import finished

TASK = "links"
# Settings of `candax links` that a model and its training depend on.
OPTIONS = (
    "sampler", "loss", "num_sampled", "labels_too", "smoothing", "regulariser", "regularisation", "dropout", "dim",
    "scale", "batch_size", "epochs", "learning_rate", "seed",
)  # fmt: skip


def save_model(folder: Path, method: str, options: Mapping[str, Any], graph: Graph, model: Classifier) -> Path:
    """Writes a model into its folder, and the triples that it was trained on.

    Args:
        folder: of the model.
        method: of `candax links`.
        options: ``OPTIONS`` by name.
        graph: what was trained on.
        model: at the end.

    Returns:
        The path of the file.
    """
    about = {"method": method, "options": dict(options), "data": graph.name}
    names = {"entities": graph.entity_names, "relations": graph.relation_names}
    return finished.save(folder, TASK, about, finished.weights_of(model), names=names, extra={"triples": graph.train})
