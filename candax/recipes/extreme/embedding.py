"""Embeddings of examples with all their features, in batches of bounded memory, and what is measured by them.

Training cuts the longest examples, since its batches have one shape; here none is cut.
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int
from scipy.sparse import csr_array

from candax.data import Dataset, Examples, FlatBatch
from candax.models import Classifier
from candax.recipes.common.search import power_of_two
from candax.recipes.extreme.arrays import in_range
from candax.training import embed, evaluate

# Examples, and coordinates of their features' rows, that are looked up together; slots of the smallest batch.
_MOST_EXAMPLES, _MOST_NUMBERS, _LEAST_SLOTS = 1024, 1 << 25, 256


def embedded(model: Any, features: csr_array) -> Float32[np.ndarray, "n dim"]:
    """Embeddings of examples, of which every feature is read.

    Examples that have many features come in smaller batches. One that has more than fit into any is looked up alone,
    and takes at most as much memory as the table of features: it has each of them at most once.

    Args:
        model: with an encoder that reads a ``FlatBatch``.
        features: ids sorted and distinct within a row, finite.

    Returns:
        An embedding of each row.
    """
    features = in_range(features)
    number, (num_features, dim) = features.shape[0], model.encoder.bag.shape
    found = np.zeros((number, dim), np.float32)
    most = max(_LEAST_SLOTS, power_of_two(_MOST_NUMBERS // dim + 1) // 2)
    size = min(_MOST_EXAMPLES, power_of_two(number))
    for rows in _together(np.diff(features.indptr), size, most):
        part = features[rows]
        # Powers of two are few shapes to compile.
        slots = max(_LEAST_SLOTS, power_of_two(part.nnz))
        slots = slots if slots <= most else min(slots, num_features)
        found[rows] = np.asarray(embed(model, _flat(part, size, slots)))[: part.shape[0]]
    return found


def measured(model: Classifier, dataset: Dataset, rows: Int[np.ndarray, " n"] | None = None) -> dict[str, float]:
    """What ``candax.training.evaluate`` says of a model, which reads all features of the examples.

    Args:
        model: trained on the data set.
        dataset: it is measured on its test set.
        rows: of the test set; None: all of them.
    """
    test = dataset.test
    if rows is not None:
        test = Examples(test.features[rows], test.labels[rows])
    size = min(_MOST_EXAMPLES, max(1, len(test)))

    def parts() -> Iterator[tuple[np.ndarray, slice]]:
        for at in range(0, len(test), size):
            part = embedded(model, test.features[at : at + size])
            yield np.pad(part, ((0, size - len(part)), (0, 0))), slice(at, at + len(part))

    counts = dataset.label_counts(dataset.train)
    return evaluate(jnp.asarray, model.head.classes(), parts(), test.labels, counts, len(dataset.train))


def _together(counts: Int[np.ndarray, " n"], size: int, slots: int) -> Iterator[slice]:
    """Rows that are embedded together: at most ``size``, with at most ``slots`` features, or one with more."""
    ends = np.cumsum(counts, dtype=np.int64)
    start = 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        fit = int(np.searchsorted(ends, before + slots, side="right"))
        stop = max(start + 1, min(fit, start + size, len(counts)))
        yield slice(start, stop)
        start = stop


def _flat(features: csr_array, size: int, slots: int) -> FlatBatch:
    """All features of some examples, without labels."""
    missing = (0, slots - features.nnz)
    examples = np.repeat(np.arange(features.shape[0], dtype=np.int32), np.diff(features.indptr))
    return FlatBatch(
        np.pad(features.indices.astype(np.int32), missing, constant_values=-1),
        np.pad(features.data, missing),
        np.pad(examples, missing, constant_values=size - 1),
        np.full((size, 1), -1, np.int32),
        np.zeros((0, 2), np.int32),
    )
