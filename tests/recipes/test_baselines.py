"""What needs no training is what a loop over examples gives."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from candax.data import Dataset, Examples
from candax.recipes.extreme.baselines import most_frequent, nearest_neighbours


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)

    def examples(number):
        features = rng.random((number, 12)) * (rng.random((number, 12)) < 0.5)
        labels = rng.random((number, 9)) < 0.15
        labels[np.arange(number), rng.integers(0, 9, number)] = True
        return Examples(csr_array(features.astype(np.float32)), csr_array(labels))

    return Dataset("random", examples(40), examples(25))


def precision(dataset, scores, k):
    """Of the k classes with the largest scores; equal ones by number, classes without a score are none."""
    hits = []
    for of_example, truth in zip(scores, dataset.test.labels.toarray(), strict=True):
        best = np.argsort(-of_example, kind="stable")[:k]
        hits.append(sum(truth[c] > 0 for c in best if of_example[c] > 0) / k)
    return np.mean(hits)


def test_most_frequent_labels(dataset):
    counts = np.asarray(dataset.train.labels.sum(axis=0)).ravel()
    found = most_frequent(dataset)
    for k in (1, 3, 5):
        assert found[f"p_at_{k}"] == pytest.approx(precision(dataset, np.tile(counts, (25, 1)), k))


@pytest.mark.parametrize("number", [1, 4, 100])
def test_labels_of_nearest_neighbours(dataset, number):
    train, test = (part.features.toarray().astype(np.float64) for part in (dataset.train, dataset.test))
    cosines = (test / np.linalg.norm(test, axis=1, keepdims=True)) @ (
        train / np.linalg.norm(train, axis=1, keepdims=True)
    ).T
    near = np.argsort(-cosines, axis=1)[:, :number]
    votes = np.zeros((25, 9))
    for row, chosen in enumerate(near):
        for i in chosen:
            votes[row] += cosines[row, i] * (dataset.train.labels.toarray()[i] > 0)
    found = nearest_neighbours(dataset, number=number)
    for k in (1, 3, 5):
        assert found[f"p_at_{k}"] == pytest.approx(precision(dataset, votes, k))
