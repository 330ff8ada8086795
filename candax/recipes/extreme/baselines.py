"""What needs no training: the most frequent labels for everybody, and those of the nearest training examples."""

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_array

from candax.data import Dataset
from candax.training.metrics import KS, inverse_propensities, nonzero_pattern, ranking_metrics

_MOST = max(KS)


def most_frequent(dataset: Dataset) -> dict[str, float]:
    """Ranking metrics of the most frequent labels of the training set, the same for each test example.

    Args:
        dataset: to learn from and to test on.

    Returns:
        What ``candax.training.evaluate_dataset`` returns, without a log-likelihood.
    """
    best = np.argsort(-dataset.label_counts(dataset.train), kind="stable")[:_MOST]
    return _metrics(dataset, np.broadcast_to(best, (len(dataset.test), len(best))))


def nearest_neighbours(dataset: Dataset, *, number: int = 10) -> dict[str, float]:
    """Ranking metrics of the labels of the training examples whose features have the largest cosine.

    Args:
        dataset: to learn from and to test on.
        number: of neighbours, each of which votes for its labels with its cosine.

    Returns:
        What ``candax.training.evaluate_dataset`` returns, without a log-likelihood.
    """
    from sklearn.neighbors import NearestNeighbors

    train, test = dataset.train, dataset.test
    index = NearestNeighbors(n_neighbors=min(number, len(train)), metric="cosine", algorithm="brute")
    distances, ids = index.fit(train.features).kneighbors(test.features)
    starts = np.arange(len(test) + 1) * ids.shape[1]
    weights = csr_array((1 - distances.ravel(), ids.ravel(), starts), shape=(len(test), len(train)))
    return _metrics(dataset, _best(weights @ nonzero_pattern(train.labels).astype(np.float64), _MOST))


def _best(scores: csr_array, k: int) -> Int[np.ndarray, "N k"]:
    """The columns of the k largest entries of each row, largest first; -1 where there are fewer."""
    rows = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    order = np.lexsort((scores.indices, -scores.data, rows))
    places = np.arange(len(rows)) - scores.indptr[rows]
    first = places < k
    best = np.full((scores.shape[0], k), -1)
    best[rows[first], places[first]] = scores.indices[order[first]]
    return best


def _metrics(dataset: Dataset, top_ids: Int[np.ndarray, "N k"]) -> dict[str, float]:
    inverse = inverse_propensities(dataset.label_counts(dataset.train), len(dataset.train))
    ks = tuple(k for k in KS if k <= top_ids.shape[1])
    return ranking_metrics(top_ids, nonzero_pattern(dataset.test.labels), inverse, ks=ks)
