"""One call that loads a finished run of any task."""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from candax import data
from candax.checks import checked
from candax.data.streams import MODULES
from candax.files import WrongFileError
from candax.recipes.common import finished


class Task(NamedTuple):
    """A task whose runs can be used.

    Attributes:
        command: that trains it.
        loaded: module and class of what is loaded, with ``of(finished)``.
        answers: the module beside this one that answers lines of text.
        names: what the names of classes are called in what is loaded.
    """

    command: str
    loaded: tuple[str, str]
    answers: str
    names: str


# By the task's name in the file of a run; word vectors have files of their own.
TASKS: dict[str, Task] = {
    name: Task(command, (f"candax.{module}", kind), answers, names)
    for name, command, module, kind, answers, names in (
        ("extreme", "candax train", "recipes.extreme.classifier", "ExtremeClassifier", "examples", "classes_"),
        ("sequences", "candax sequences", "recipes.sequences.recommender", "SequenceRecommender", "histories", "items"),
        ("retrieve", "candax retrieve", "recipes.retrieval.recommender", "TwoTowerRecommender", "histories", "items"),
        ("links", "candax links", "recipes.links.predictor", "LinkPredictor", "questions", "entities"),
        ("language", "candax language", "recipes.language.next_words", "NextWords", "texts", "words"),
        ("words", "candax word2vec", "data", "WordVectors", "words", "words"),
    )
}
_WORDS = "words"
_VECTORS = ("vectors.safetensors", "vectors.bin", "vectors.txt")
_VECTOR_FILES = (".bin", ".txt", ".vec", ".safetensors")


@checked
def load(run: str | Path) -> Any:
    """Loads what a finished run has trained, for use; the data it was trained on need not be there.

    Args:
        run: folder of a run of `candax train`, `sequences`, `retrieve`, `links`, `language` or `word2vec`, or one
            that ``save`` of what is returned here has written; or a file of word vectors.

    Returns:
        An ``ExtremeClassifier``, a ``SequenceRecommender``, a ``TwoTowerRecommender``, a ``LinkPredictor``, for a
        language model a ``NextWords`` (``complete(texts, k)``), or a ``candax.data.WordVectors``.

    Raises:
        ValueError: if there is no finished run, one of a newer version, or one that is damaged.
        OSError: if it cannot be read.

    Example:
        >>> import tempfile, numpy as np, candax as cx
        >>> classifier = cx.recipes.ExtremeClassifier(dim=4).fit(np.eye(4).repeat(4, 0), np.arange(4).repeat(4))
        >>> _ = classifier.save(folder := tempfile.mkdtemp())
        >>> load(folder).predict(np.eye(4)).tolist()
        [0, 1, 2, 3]
    """
    return load_task(Path(run))[1]


def load_task(run: Path) -> tuple[str, Any]:
    """The name of the run's task, and what was trained."""
    commands = ", ".join(f"`{task.command}`" for task in TASKS.values())
    if (vectors := _vectors(run)) is not None:
        return _WORDS, data.WordVectors.load(vectors)
    path = finished.find(run, commands)
    try:
        saved = finished.read(path)
    except WrongFileError as error:
        raise ValueError(f"expected {path} to be the model of a finished run of {commands}: {error}") from error
    if saved.task not in TASKS:
        raise ValueError(f"expected a run of {commands}, got {path} of the task {saved.task!r}: update candax.")
    module, kind = TASKS[saved.task].loaded
    return saved.task, getattr(importlib.import_module(module), kind).of(saved)


def _vectors(run: Path) -> Path | None:
    """The file of word vectors that a path means; None for other runs."""
    if run.is_file():
        name = run.stem if run.suffix.lower() in MODULES else run.name
        return run if name.endswith(_VECTOR_FILES) and name != finished.FILE else None
    return next((run / name for name in _VECTORS if (run / name).is_file()), None)
