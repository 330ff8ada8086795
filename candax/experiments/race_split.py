"""Classes split into parts by what an example is about: real labels over as many classes as one likes."""

import dataclasses

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array

from candax.data import Dataset, Examples
from candax.recipes.extreme import linear


def split_classes(dataset: Dataset, num_classes: int) -> Dataset:
    """A data set each of whose classes is split into equally many parts, at least ``num_classes`` in all.

    Class ``j`` becomes the classes ``j P ... j P + P - 1``. Of which part all labels of an example are follows from its
    features, so that it can be learned: on which side of the training examples' median it is along each of the
    first principal directions of the features, as many as tell ``P`` parts apart.

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
    if parts == 1:
        return dataset
    of_train, of_test = _parts(dataset, parts)
    train, test = _split(dataset.train, of_train, parts), _split(dataset.test, of_test, parts)
    return dataclasses.replace(dataset, train=train, test=test, class_names=None)


def _split(examples: Examples, part: Int64[np.ndarray, " examples"], parts: int) -> Examples:
    labels = examples.labels
    ids = labels.indices.astype(np.int64) * parts + np.repeat(part, np.diff(labels.indptr))
    shape = (labels.shape[0], labels.shape[1] * parts)
    return Examples(examples.features, csr_array((labels.data, ids.astype(np.int32), labels.indptr), shape=shape))


def _parts(dataset: Dataset, parts: int) -> list[Int64[np.ndarray, " examples"]]:
    """The part of every training and every test example."""
    from sklearn.preprocessing import normalize

    number = (parts - 1).bit_length()
    vectors = linear.directions(dataset, number, seed=0)
    places = [normalize(examples.features) @ vectors for examples in (dataset.train, dataset.test)]
    sides = [place > np.median(places[0], axis=0) for place in places]
    # Of more cells than parts, neighbours are one part.
    return [(side @ (1 << np.arange(number)) * parts) >> number for side in sides]
