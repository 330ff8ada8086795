"""Baselines without training: the most frequent labels, those of the nearest training examples; mixed with models."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Int
from scipy.sparse import csr_array

from candax import losses
from candax.data import Dataset, Examples
from candax.data.progress import progress_bar
from candax.models import Classifier
from candax.recipes.extreme.embedding import embedded
from candax.training.metrics import KS, inverse_propensities, nonzero_pattern, ranking_metrics

_MOST = max(KS)
_NEIGHBOURS = 100
# Test and training examples that are compared at a time: more cosines than the processor's caches hold take longer.
_AT_A_TIME, _SEARCHED = 256, 32_768
_THREADS = min(8, os.cpu_count() or 1)  # each takes some 300 MB
# Powers of the cosine to choose from, and the most examples that the choice is made by.
_POWERS, _MOST_QUESTIONS = (2.0, 4.0, 8.0), 2000
# Of a mixture: test examples, and scores of all their classes, at a time.
_MOST_EXAMPLES, _SCORES_AT_A_TIME = 1024, 1 << 25


def most_frequent(dataset: Dataset) -> dict[str, float]:
    """Ranking metrics of the most frequent labels of the training set, the same for each test example.

    Args:
        dataset: to learn from and to test on.

    Returns:
        What ``candax.training.evaluate_dataset`` returns, without a log-likelihood.
    """
    best = np.argsort(-dataset.label_counts(dataset.train), kind="stable")[:_MOST]
    return measure_ranking(dataset, np.broadcast_to(best, (len(dataset.test), len(best))))


def best_shares(dataset: Dataset, shares: csr_array) -> dict[str, float]:
    """Ranking metrics of the labels with the largest shares."""
    return measure_ranking(dataset, _best(shares, _MOST))


def neighbour_shares(dataset: Dataset, *, number: int = _NEIGHBOURS, power: float = 4.0) -> csr_array:
    """For each test example the share of its neighbours that have each label: ``sum_i cos_i^power [label] / sum_i``.

    Args:
        dataset: neighbours are those training examples whose features have the largest cosine with the test example's.
        number: of neighbours.
        power: of the cosine, by which they are weighted.

    Returns:
        ``[test examples, num_classes]``, sparse.
    """
    return _shares(dataset, *neighbours(dataset, number), power)


def best_power(held_out: Dataset) -> float:
    """The power of the cosine with which labels of neighbours rank best: of 2, 4 and 8 the one of highest P@5.

    Args:
        held_out: a data set whose test examples are a part of a training set, and whose training examples are the rest.

    Returns:
        The power, for ``neighbour_shares``.
    """
    some = np.unique(np.linspace(0, len(held_out.test) - 1, _MOST_QUESTIONS).astype(int))
    asked = Examples(held_out.test.features[some], held_out.test.labels[some])
    dataset = dataclasses.replace(held_out, test=asked)
    cosines, ids = neighbours(dataset, _NEIGHBOURS)
    return max(_POWERS, key=lambda power: best_shares(dataset, _shares(dataset, cosines, ids, power))["p_at_5"])


def neighbours(dataset: Dataset, number: int) -> tuple[Float32[np.ndarray, "N n"], Int[np.ndarray, "N n"]]:
    """For each test example the cosines of its neighbours, and which training examples these are.

    Of training examples with equal cosines the earlier ones are taken.

    scikit-learn's search finds the same and takes four times as long among 590,000 examples on two cores: it sorts all
    cosines of an example, most of which are below those of the first neighbours that are found, in one thread.
    """
    from sklearn.preprocessing import normalize

    train, test = (normalize(of.features.astype(np.float32)) for of in (dataset.train, dataset.test))
    parts = [(at, train[at : at + _SEARCHED].T.tocsr()) for at in range(0, len(dataset.train), _SEARCHED)]
    asked = (test[start : start + _AT_A_TIME] for start in range(0, test.shape[0], _AT_A_TIME))
    nearest = functools.partial(_nearest, parts=parts, number=min(number, len(dataset.train)))
    found = []
    with (
        progress_bar("nearest neighbours", test.shape[0]) as done,
        ThreadPoolExecutor(_THREADS) as threads,
        # Closed lest an interrupted search waits for all that it would have asked for.
        contextlib.closing(cast(Generator[Any], threads.map(nearest, asked))) as answers,
    ):
        for one in answers:
            found.append(one)
            done(len(found) * _AT_A_TIME)
    cosines, ids = (np.concatenate(of) for of in zip(*found, strict=True))
    return np.maximum(cosines, 0), ids


def _nearest(
    asked: csr_array, parts: Sequence[tuple[int, csr_array]], number: int
) -> tuple[Float32[np.ndarray, "n k"], Int[np.ndarray, "n k"]]:
    """The largest products of some rows with the columns of all parts, where there are so many above 0."""
    size = asked.shape[0]
    best, ids = np.zeros((size, number), np.float32), np.zeros((size, number), np.int64)
    for first, part in parts:
        products = csr_array(asked @ part)
        rows = np.repeat(np.arange(size), np.diff(products.indptr))
        least = best[:, -1]
        if first == 0 and part.shape[1] > number:  # none is known yet: without this all would be sorted
            least = np.nextafter(-np.partition(-products.toarray(), number - 1)[:, number - 1], -1, dtype=np.float32)
        better = np.flatnonzero(products.data > np.maximum(least, 0)[rows])
        rows = np.concatenate([rows[better], np.repeat(np.arange(size), number)])
        values = np.concatenate([products.data[better], best.ravel()])
        columns = np.concatenate([products.indices[better] + first, ids.ravel()])
        order = np.lexsort((columns, -values, rows))
        starts = np.searchsorted(rows[order], np.arange(size))
        kept = order[starts[:, None] + np.arange(number)]
        best, ids = values[kept], columns[kept]
    return best, ids


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


def measure_mixture(
    models: Sequence[Classifier],
    dataset: Dataset,
    *,
    loss: Any,
    shares: csr_array | None = None,
    weight: float = 0.0,
) -> dict[str, float]:
    """Ranking metrics by ``mean_m p_m(c | x) + weight share(c | x)``.

    Args:
        models: of the same data.
        dataset: the models are measured on its test set.
        loss: that the models were trained with: after ``one_vs_all`` p is the sigmoid, after others the softmax.
        shares: of ``neighbour_shares``.
        weight: of the shares.

    Returns:
        What ``ranking_metrics`` returns.
    """
    size = max(1, min(_MOST_EXAMPLES, len(dataset.test), _SCORES_AT_A_TIME // dataset.num_classes))
    found = []
    for at in range(0, len(dataset.test), size):
        rows = slice(at, at + size)
        features = dataset.test.features[rows]
        each = [_probabilities(model.head(embedded(model, features)), loss) for model in models]
        scores = np.mean(each, axis=0)
        if shares is not None:
            scores = scores + weight * shares[rows].toarray()
        best = np.asarray(jax.lax.top_k(scores, min(_MOST, dataset.num_classes))[1])
        found.append(np.pad(best, ((0, 0), (0, _MOST - best.shape[1])), constant_values=-1))
    return measure_ranking(dataset, np.concatenate(found))


def _probabilities(logits: Float[Array, "B num_classes"], loss: Any) -> Float[np.ndarray, "B num_classes"]:
    return np.asarray(jax.nn.sigmoid(logits) if loss is losses.one_vs_all else jax.nn.softmax(logits))


def _best(scores: csr_array, k: int) -> Int[np.ndarray, "N k"]:
    """The columns of the k largest entries of each row, largest first; -1 where there are fewer."""
    rows = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    order = np.lexsort((scores.indices, -scores.data, rows))
    places = np.arange(len(rows)) - scores.indptr[rows]
    first = places < k
    best = np.full((scores.shape[0], k), -1)
    best[rows[first], places[first]] = scores.indices[order[first]]
    return best
