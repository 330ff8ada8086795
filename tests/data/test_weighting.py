"""TF-IDF weights against their definition."""

import dataclasses

import numpy as np
import pytest
from scipy.sparse import csr_array

from candax.data import Dataset, Examples, tf_idf


def dataset(train, test):
    def examples(counts):
        return Examples(csr_array(np.array(counts, np.float32)), csr_array(np.ones((len(counts), 1), bool)))

    return Dataset("tiny", examples(train), examples(test))


def test_weights_are_those_of_the_definition():
    train = [[3, 1, 0, 0], [0, 1, 2, 0], [0, 1, 0, 0]]
    weighed = tf_idf(dataset(train, [[1, 0, 4, 5]]))
    rarity = np.log(3 / np.array([1, 3, 1, 1]))
    expected = np.array([(1 + np.log(1)), 0, 1 + np.log(4), 1 + np.log(5)]) * rarity
    np.testing.assert_allclose(weighed.test.features.toarray()[0], expected / np.linalg.norm(expected), rtol=1e-6)
    np.testing.assert_allclose(weighed.train.features.toarray(), [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])


def test_a_stored_zero_is_no_feature():
    plain = dataset([[3, 1, 0], [0, 1, 2]], [[1, 0, 4]])
    stored = np.array([3, 1, 0, 0, 1, 2], np.float32), np.array([0, 1, 2] * 2), np.array([0, 3, 6])
    train = Examples(csr_array(stored, shape=(2, 3)), plain.train.labels)
    weighed = tf_idf(dataclasses.replace(plain, train=train))
    for part in ("train", "test"):
        found, expected = (getattr(of, part).features.toarray() for of in (weighed, tf_idf(plain)))
        np.testing.assert_array_equal(found, expected)


def test_weights_that_are_no_counts_are_refused():
    with pytest.raises(ValueError, match=r"feature values of 1 or more \(counts\), got 0\.5"):
        tf_idf(dataset([[0.5, 1]], [[1, 1]]))
