"""Baselines without training: the most frequent labels for each example, and those of the nearest training examples."""

import dataclasses

import numpy as np
from jaxtyping import Float32, Int
from scipy.sparse import csr_array

from candax.data import Dataset, Examples
from candax.data.progress import progress_bar
from candax.training.metrics import KS, inverse_propensities, nonzero_pattern, ranking_metrics

_MOST = max(KS)
# Test examples between two updates of the progress bar: the search may take minutes.
_AT_A_TIME = 512
# Powers of the cosine to choose from, and the most examples that the choice is made by.
_POWERS, _MOST_QUESTIONS = (2.0, 4.0, 8.0), 2000


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
    return _shares(dataset, *_neighbours(dataset, number), power)


def best_power(held_out: Dataset, *, number: int = 100) -> float:
    """The power of the cosine with which labels of neighbours rank best: of 2, 4 and 8 the one of highest P@5.

    Args:
        held_out: a data set whose test examples are a part of a training set, and whose training examples are the rest.
        number: of neighbours.

    Returns:
        The power, for ``neighbour_shares``.
    """
    some = np.unique(np.linspace(0, len(held_out.test) - 1, _MOST_QUESTIONS).astype(int))
    asked = Examples(held_out.test.features[some], held_out.test.labels[some])
    dataset = dataclasses.replace(held_out, test=asked)
    cosines, ids = _neighbours(dataset, number)
    return max(_POWERS, key=lambda power: best_shares(dataset, _shares(dataset, cosines, ids, power))["p_at_5"])


def _neighbours(dataset: Dataset, number: int) -> tuple[Float32[np.ndarray, "N n"], Int[np.ndarray, "N n"]]:
    """For each test example the cosines of its neighbours, and which training examples these are."""
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
    return np.maximum(1 - distances, 0).astype(np.float32), ids


def _shares(
    dataset: Dataset, cosines: Float32[np.ndarray, "N n"], ids: Int[np.ndarray, "N n"], power: float
) -> csr_array:
    weights = cosines**power
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    starts = np.arange(len(ids) + 1) * ids.shape[1]
    votes = csr_array((weights.ravel(), ids.ravel(), starts), shape=(len(ids), len(dataset.train)))
    return csr_array(votes @ nonzero_pattern(dataset.train.labels).astype(np.float32))


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
