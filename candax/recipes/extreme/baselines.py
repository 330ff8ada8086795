"""What needs no training: the most frequent labels for everybody, and those of the nearest training examples."""

import numpy as np
from jaxtyping import Float32, Int
from scipy.sparse import csr_array

from candax.data import Dataset
from candax.data.progress import progress_bar
from candax.training.metrics import KS, inverse_propensities, nonzero_pattern, ranking_metrics

_MOST = max(KS)
# Test examples: it may take minutes, and somebody waits.
_AT_A_TIME = 512


def most_frequent(dataset: Dataset) -> dict[str, float]:
    """Ranking metrics of the most frequent labels of the training set, the same for each test example.

    Args:
        dataset: to learn from and to test on.

    Returns:
        What ``candax.training.evaluate_dataset`` returns, without a log-likelihood.
    """
    best = np.argsort(-dataset.label_counts(dataset.train), kind="stable")[:_MOST]
    return measure_ranking(dataset, np.broadcast_to(best, (len(dataset.test), len(best))))


def nearest_neighbours(dataset: Dataset) -> dict[str, float]:
    """Ranking metrics of the labels that the nearest training examples have, see ``neighbour_shares``.

    Args:
        dataset: to learn from and to test on.

    Returns:
        What ``candax.training.evaluate_dataset`` returns, without a log-likelihood.
    """
    return best_shares(dataset, neighbour_shares(dataset))


def best_shares(dataset: Dataset, shares: csr_array) -> dict[str, float]:
    """Ranking metrics of the labels with the largest shares."""
    return measure_ranking(dataset, _best(shares, _MOST))


def neighbour_shares(dataset: Dataset, *, number: int = 100, power: float = 4.0) -> csr_array:
    """For each test example the share of its neighbours that have each label: ``sum_i cos_i^power [label] / sum_i``.

    Args:
        dataset: neighbours are those training examples whose features have the largest cosine with the test example's.
        number: of neighbours.
        power: of the cosine, by which they are weighted.

    Returns:
        ``[test examples, num_classes]``, sparse.
    """
    from sklearn.neighbors import NearestNeighbors

    train, test = dataset.train, dataset.test
    index = NearestNeighbors(n_neighbors=min(number, len(train)), metric="cosine", algorithm="brute")
    index.fit(train.features)
    parts = []
    with progress_bar("nearest neighbours", len(test)) as done:
        for start in range(0, len(test), _AT_A_TIME):
            parts.append(index.kneighbors(test.features[start : start + _AT_A_TIME]))
            done(start + _AT_A_TIME)
    distances, ids = (np.concatenate(of) for of in zip(*parts, strict=True))
    weights: Float32[np.ndarray, "N n"] = np.maximum(1 - distances, 0).astype(np.float32) ** power
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    starts = np.arange(len(test) + 1) * ids.shape[1]
    votes = csr_array((weights.ravel(), ids.ravel(), starts), shape=(len(test), len(train)))
    return csr_array(votes @ nonzero_pattern(train.labels).astype(np.float32))


def measure_ranking(dataset: Dataset, top_ids: Int[np.ndarray, "N k"]) -> dict[str, float]:
    """P@k, nDCG@k and PSP@k of the classes that are ranked first for each test example."""
    inverse = inverse_propensities(dataset.label_counts(dataset.train), len(dataset.train))
    ks = tuple(k for k in KS if k <= top_ids.shape[1])
    return ranking_metrics(top_ids, nonzero_pattern(dataset.test.labels), inverse, ks=ks)


def _best(scores: csr_array, k: int) -> Int[np.ndarray, "N k"]:
    """The columns of the k largest entries of each row, largest first; -1 where there are fewer."""
    rows = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    order = np.lexsort((scores.indices, -scores.data, rows))
    places = np.arange(len(rows)) - scores.indptr[rows]
    first = places < k
    best = np.full((scores.shape[0], k), -1)
    best[rows[first], places[first]] = scores.indices[order[first]]
    return best
