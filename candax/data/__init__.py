"""Data sets and batches: the Extreme Classification Repository's files and Python's own standard library."""

import os

from candax.data.batches import Batch, Batches, batch, evaluation_batches, num_batches
from candax.data.examples import Dataset, Examples
from candax.data.prefetching import prefetch
from candax.data.python_stdlib import python_stdlib
from candax.data.weighting import tf_idf
from candax.data.xml_repository import xml_repository

__all__ = [
    "Batch",
    "Batches",
    "Dataset",
    "Examples",
    "batch",
    "evaluation_batches",
    "load",
    "num_batches",
    "prefetch",
    "python_stdlib",
    "tf_idf",
    "xml_repository",
]


def load(name_or_folder: str | os.PathLike[str]) -> Dataset:
    """Loads a data set: the first time from its source, later from the cache.

    Args:
        name_or_folder: ``"python-stdlib"``, or a folder with a training and a test file in the text format of the
            Extreme Classification Repository.

    Returns:
        The data set.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> load("no-such-data")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: no data set 'no-such-data': expected 'python-stdlib' or a folder with a training and a test file ...
    """
    name = os.fspath(name_or_folder)
    if name == "python-stdlib":
        return python_stdlib()
    if os.path.isdir(name):
        return xml_repository(name)
    raise ValueError(
        f"no data set {name!r}: expected 'python-stdlib' or a folder with a training and a test file in the text "
        "format of the Extreme Classification Repository (train.txt and test.txt, plain or .gz, .bz2, .xz); "
        "there is no folder of this name"
    )
