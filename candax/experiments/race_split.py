"""Classes split into parts by what an example is about: real labels over as many classes as one likes."""

import dataclasses

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array

from candax.data import Dataset, Examples

# Knuth's multiplier: ids that are near each other, such as those of one word's forms, fall into different parts.
_MULTIPLIER = 2654435761
_WORD = 1 << 32


def split_classes(dataset: Dataset, num_classes: int) -> Dataset:
    """A data set each of whose classes is split into equally many parts, at least ``num_classes`` in all.

    Class ``j`` becomes the classes ``j P ... j P + P - 1``; of which part an example's labels are follows from its
    feature with the largest value, the first of equal ones. So the part can be learned, from the features alone, and
    is the same for all labels of an example.

    Args:
        dataset: any.
        num_classes: as many as the data set has, or more.

    Returns:
        The same examples with ``P C`` classes, ``P`` the least that makes them ``num_classes`` or more.

    Raises:
        ValueError: for fewer classes than the data set has, or more than an int32 counts.

    Example:
        >>> features = csr_array(np.array([[1, 2], [2, 1]], dtype=np.float32))
        >>> examples = Examples(features, csr_array(np.ones((2, 1), dtype=bool)))
        >>> split = split_classes(Dataset("tiny", examples, examples), 3)
        >>> split.num_classes, split.train.labels.nnz
        (3, 2)
    """
    parts = -(-num_classes // dataset.num_classes)
    most = np.iinfo(np.int32).max
    if not dataset.num_classes <= num_classes or parts * dataset.num_classes > most:
        raise ValueError(f"expected from {dataset.num_classes:,} to {most:,} classes, got {num_classes:,}.")
    train, test = (_split(examples, parts) for examples in (dataset.train, dataset.test))
    return dataclasses.replace(dataset, train=train, test=test, class_names=None)


def _split(examples: Examples, parts: int) -> Examples:
    labels, part = examples.labels, _parts(examples.features, parts)
    ids = labels.indices.astype(np.int64) * parts + np.repeat(part, np.diff(labels.indptr))
    shape = (labels.shape[0], labels.shape[1] * parts)
    return Examples(examples.features, csr_array((labels.data, ids.astype(np.int32), labels.indptr), shape=shape))


def _parts(features: csr_array, parts: int) -> Int64[np.ndarray, " examples"]:
    rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
    # lexsort is stable, so the first of equal values stays the first.
    order = np.lexsort((-features.data, rows))
    having, first = np.unique(rows[order], return_index=True)
    largest = np.zeros(features.shape[0], np.int64)
    largest[having] = features.indices[order[first]]
    return (largest * _MULTIPLIER % _WORD * parts) // _WORD
