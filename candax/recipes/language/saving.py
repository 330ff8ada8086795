"""A trained language model as a file that needs no data; see ``common.finished``."""

from pathlib import Path
from typing import Any

from candax.models import Classifier
from candax.recipes.common import finished
from candax.recipes.language.files import Text

TASK = "language"
# Settings of `candax language` that a model's parts depend on.
OPTIONS = ("model", "dim", "num_layers", "num_heads", "context", "num_streams", "length", "pairs")


def save_model(folder: Path, settings: Any, text: Text, model: Classifier) -> Path:
    """Writes a model into its folder.

    Args:
        folder: of the model.
        settings: of `candax language`.
        text: what was trained on.
        model: at the end.

    Returns:
        The path of the file.
    """
    about = {"options": {name: getattr(settings, name) for name in OPTIONS}, "data": text.name}
    return finished.save(folder, TASK, about, finished.weights_of(model), names={"words": text.words})
