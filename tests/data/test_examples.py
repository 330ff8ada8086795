import numpy as np
import pytest
from data_helpers import random_examples
from scipy.sparse import csr_array, csr_matrix

from candax.data import Dataset, Examples
from candax.data.examples import from_counts


def test_sizes_and_counts() -> None:
    train, test = random_examples(0), random_examples(1, points=5)
    dataset = Dataset("random", train, test)
    assert (len(train), len(test), dataset.num_features, dataset.num_classes) == (20, 5, 12, 9)
    counts = dataset.label_counts(train)
    assert counts.dtype == np.float32
    np.testing.assert_array_equal(counts, train.labels.toarray().sum(axis=0))


def test_counts_include_classes_without_examples() -> None:
    examples = Examples(csr_array(np.ones((1, 1), np.float32)), csr_array(np.array([[True, False, False]])))
    assert Dataset("one", examples, examples).label_counts(examples).tolist() == [1, 0, 0]


def test_refuses_what_is_not_of_the_form() -> None:
    features = csr_array(np.eye(3, 4, dtype=np.float32))
    labels = csr_array(np.eye(3, 5, dtype=bool))
    Examples(features, labels)
    Examples(features, labels.astype(np.int8))
    for wrong, got in ((csr_matrix(features), "a csr_matrix float32"), (features.toarray(), "an array float32")):
        with pytest.raises(
            ValueError, match=rf"features to be a csr_array, got {got}.*scipy\.sparse\.csr_array\(features\)"
        ):
            Examples(wrong, labels)
    with pytest.raises(ValueError, match=r"features must be float32; got float64"):
        Examples(features.astype(np.float64), labels)
    with pytest.raises(ValueError, match=r"labels must be bool or int8; got float32"):
        Examples(features, labels.astype(np.float32))
    with pytest.raises(ValueError, match=r"got 3 and 2 rows"):
        Examples(features, csr_array(np.eye(2, 5, dtype=bool)))
    with pytest.raises(ValueError, match="finite"):
        Examples(csr_array(np.full((3, 4), np.nan, dtype=np.float32)), labels)
    stored_zero = csr_array((np.array([True, False]), np.array([0, 1]), np.array([0, 1, 2, 2])), shape=(3, 5))
    with pytest.raises(ValueError, match="stored zeros"):
        Examples(features, stored_zero)
    twice = csr_array((np.ones(2, dtype=bool), np.array([1, 1]), np.array([0, 2, 2, 2])), shape=(3, 5))
    with pytest.raises(ValueError, match="sorted, distinct"):
        Examples(features, twice)
    outside = csr_array(np.eye(3, 5, dtype=bool))
    outside.indices[0] = 7
    with pytest.raises(ValueError, match="indices"):
        Examples(features, outside)


def test_refuses_sets_that_do_not_fit() -> None:
    examples = random_examples(0)
    with pytest.raises(ValueError, match="num_features; got 12 and 3"):
        Dataset("x", examples, random_examples(0, num_features=3))
    with pytest.raises(ValueError, match="num_classes; got 9 and 3"):
        Dataset("x", examples, random_examples(0, num_classes=3))
    with pytest.raises(ValueError, match="feature_names must hold one name per id, 12"):
        Dataset("x", examples, examples, feature_names=("a",))
    with pytest.raises(ValueError, match="class_names must hold one name per id, 9"):
        Dataset("x", examples, examples, class_names=("a",) * 8)


def test_matrices_from_counts_keep_narrow_ids() -> None:
    matrix = from_counts(np.ones(3), np.array([0, 2, 1], dtype=np.int32), np.array([2, 0, 1]), 3)
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
    assert matrix.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
