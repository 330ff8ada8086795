"""Weights for counted features."""

import dataclasses

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from candax.checks import checked
from candax.data.examples import Dataset, Examples


@checked
def tf_idf(dataset: Dataset) -> Dataset:
    r"""Weighs counts by how rare a feature is: (1 + log count) * log(N / N_f), rows scaled to Euclidean length 1.

    N_f is how many of the N training examples have feature f (at least 1), so a feature of every example gets weight 0.
    N and N_f are those of the training set for the test set too.

    Args:
        dataset: With feature values >= 1: counts. A stored 0 is no feature.

    Returns:
        The same data set with other feature values.

    Raises:
        ValueError: If another value is below 1.

    Example:
        >>> counts = csr_array(np.array([[2, 1], [0, 1]], np.float32))
        >>> examples = Examples(counts, csr_array(np.eye(2, dtype=bool)))
        >>> tf_idf(Dataset("tiny", examples, examples)).train.features.toarray().tolist()
        [[1.0, 0.0], [0.0, 0.0]]

    Source: Salton and Buckley, Term-weighting approaches in automatic text retrieval (1988).
    """
    rarity = rarity_of(dataset.train.features)

    def weigh(examples: Examples) -> Examples:
        advice = "they are weighted already. Leave the weighting out."
        return Examples(weighted(examples.features, rarity, advice), examples.labels)

    return dataclasses.replace(dataset, train=weigh(dataset.train), test=weigh(dataset.test))


def rarity_of(counts: csr_array) -> Float32[np.ndarray, " num_features"]:
    """``log(N / N_f)`` of each feature of training examples; see ``tf_idf``."""
    frequency = np.bincount(counts.indices[counts.data != 0], minlength=counts.shape[1])
    return np.log(counts.shape[0] / np.maximum(frequency, 1)).astype(np.float32)


def weighted(
    features: csr_array,
    rarity: Float32[np.ndarray, " num_features"],
    advice: str = "give counts, as in training.",
) -> csr_array:
    """Counts, weighed by how rare features are among training examples; see ``tf_idf``. Errors end in ``advice``."""
    if not features.data.all():
        features = features.copy()
        features.eliminate_zeros()
    if features.nnz and features.data.min() < 1:
        raise ValueError(f"tf_idf: expected feature values of 1 or more (counts), got {features.data.min()}: {advice}")
    values = (1 + np.log(features.data)) * rarity[features.indices]
    rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
    length = np.sqrt(np.bincount(rows, values**2, minlength=features.shape[0]))
    values /= np.where(length > 0, length, 1)[rows]
    return csr_array((values.astype(np.float32), features.indices, features.indptr), shape=features.shape)
