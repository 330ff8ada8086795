"""Converts the ``X`` and ``Y`` of scikit-learn's users to the sparse matrices of ``candax.data.Examples``."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

# Exponents of 2 between which the largest value of a row may lie for its squares to be added up in float32.
_LEAST_EXPONENT, _MOST_EXPONENT = -32, 32


def features_of(X: Any, dtype: Any = np.float32) -> csr_array:
    """Features with ids of 32 bits, sorted and distinct within a row."""
    found = csr_array(X, dtype=dtype)
    if found.has_canonical_format and found.indices.dtype == np.int32:
        return found
    found = found.copy()
    found.sum_duplicates()
    if found.nnz <= np.iinfo(np.int32).max:
        found.indices, found.indptr = found.indices.astype(np.int32), found.indptr.astype(np.int32)
    return found


def in_range(features: csr_array) -> csr_array:
    """Features in float32, of rows that are scaled to length 1 later: those of very large or small values are scaled.

    By a power of two, which changes no digit, so that the largest value is from 1/2 to 1 and its square has neither
    overflow nor underflow. Other rows, and rows of zeros, stay as they are.
    """
    counts = np.diff(features.indptr)
    full = np.flatnonzero(counts)
    largest = np.zeros(len(counts), features.dtype)
    if len(full):
        largest[full] = np.maximum.reduceat(np.abs(features.data), features.indptr[full])
    exponents = np.frexp(largest)[1]
    exponents[(exponents >= _LEAST_EXPONENT) & (exponents <= _MOST_EXPONENT)] = 0
    if not exponents.any():
        return features.astype(np.float32, copy=False)
    values = np.ldexp(features.data, -np.repeat(exponents, counts)).astype(np.float32)
    return csr_array((values, features.indices, features.indptr), shape=features.shape)


def is_indicator(y: Any) -> bool:
    """Whether examples have several labels: a sparse matrix, or a dense one of several columns.

    Raises:
        ValueError: for lists of different lengths.
    """
    if issparse(y):
        return True
    try:
        shape = np.shape(np.asarray(y))
    except ValueError as error:
        raise ValueError(
            "expected y as an indicator, or one label for each example, got lists of different lengths: use sklearn."
            "preprocessing.MultiLabelBinarizer(sparse_output=True).fit_transform(y)."
        ) from error
    return len(shape) == 2 and shape[1] != 1


def indicator_of(y: Any, num_examples: int) -> csr_array:
    """Labels of examples that have several.

    Raises:
        ValueError: unless there is a row of zeros and ones for each example.
    """
    found = check_array(y, accept_sparse="csr", dtype=None)
    if found.dtype.kind not in "biuf":
        raise ValueError(f"expected y of several columns to be an indicator of zeros and ones, got {found.dtype}.")
    labels = csr_array(found)
    if labels.shape[0] != num_examples:
        raise ValueError(f"expected a row of y for each of {num_examples} examples, got {labels.shape[0]}.")
    if not np.isin(labels.data, (0, 1)).all():
        raise ValueError("expected y of several columns to be an indicator of zeros and ones, got other numbers.")
    labels = features_of(labels).astype(bool)
    labels.eliminate_zeros()
    return labels


def classes_of(y: Any) -> tuple[np.ndarray, csr_array]:
    """The distinct values of labels, and the labels as a matrix; each example has one label.

    Raises:
        ValueError: for values that cannot be classes, such as fractions.
    """
    try:
        check_classification_targets(y)
        classes, ids = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    except TypeError as error:  # of values that have no order
        raise ValueError(f"expected labels that are all texts or all numbers, got others: {error}.") from error
    labels = csr_array((np.ones(len(ids), bool), ids, np.arange(len(ids) + 1)), shape=(len(ids), len(classes)))
    return classes, labels
