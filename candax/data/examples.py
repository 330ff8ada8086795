"""A data set as sparse matrices: which features and which labels every example has."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float32, Int32
from scipy.sparse import csr_array

from candax.checks import checked
from candax.files import digest_of


@checked
@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """N examples, one row each in a matrix of feature values and a matrix of labels.

    Args:
        features: ``float32 [N, num_features]``, finite, ids sorted and distinct within a row.
        labels: ``bool`` or ``int8 [N, num_classes]``, ids sorted and distinct within a row; every stored entry is true.

    Raises:
        ValueError: If the two disagree in N, or one is not of the form above.

    Example:
        >>> features = csr_array(np.eye(2, 3, dtype=np.float32))
        >>> labels = csr_array(np.array([[1, 0, 1, 0], [0, 0, 0, 1]], dtype=bool))
        >>> examples = Examples(features, labels)
        >>> len(examples), examples.num_features, examples.num_classes
        (2, 3, 4)
    """

    features: csr_array
    labels: csr_array

    def __post_init__(self) -> None:
        """Checks both matrices."""
        _check_matrix("features", self.features, ("float32",))
        _check_matrix("labels", self.labels, ("bool", "int8"))
        if self.features.shape[0] != self.labels.shape[0]:
            raise ValueError(
                f"features and labels must each have one row per example; "
                f"got {self.features.shape[0]} and {self.labels.shape[0]} rows"
            )
        if not np.isfinite(self.features.data).all():
            raise ValueError("feature values must be finite; got nan or infinity: clean the values first")
        if not self.labels.data.all():
            raise ValueError("what is stored in labels must be true; got stored zeros: call eliminate_zeros() first")

    def __len__(self) -> int:
        """The number of examples, N."""
        return int(self.features.shape[0])

    @functools.cached_property
    def digest(self) -> str:
        """A digest of both matrices: equal for equal examples whose ids and labels are of the same types too."""
        return digest_of(*(a for of in (self.features, self.labels) for a in (of.indptr, of.indices, of.data)))

    @property
    def num_features(self) -> int:
        """The number of feature ids."""
        return int(self.features.shape[1])

    @property
    def num_classes(self) -> int:
        """The number of classes, with or without examples."""
        return int(self.labels.shape[1])


@checked
@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set over the same features and classes.

    Args:
        name: What tables and pictures call it.
        train: The examples to learn from.
        test: The examples to measure on.
        feature_names: One name per feature id, or None where they are unknown.
        class_names: One name per class, or None.

    Raises:
        ValueError: If the two sets differ in features or classes, or there is not one name per id.

    Example:
        >>> features = csr_array(np.eye(2, 3, dtype=np.float32))
        >>> labels = csr_array(np.array([[1, 0, 1, 0], [0, 0, 0, 1]], dtype=bool))
        >>> examples = Examples(features, labels)
        >>> dataset = Dataset("tiny", examples, examples)
        >>> dataset.num_classes
        4
        >>> dataset.label_counts(dataset.train)
        array([1., 0., 1., 1.], dtype=float32)
    """

    name: str
    train: Examples
    test: Examples
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Checks that the parts fit together."""
        for what in ("num_features", "num_classes"):
            train, test = getattr(self.train, what), getattr(self.test, what)
            if train != test:
                raise ValueError(f"the training and the test set must agree in {what}; got {train} and {test}")
        for what, names, size in (
            ("feature_names", self.feature_names, self.num_features),
            ("class_names", self.class_names, self.num_classes),
        ):
            if names is not None and len(names) != size:
                raise ValueError(f"{what} must hold one name per id, {size}, or be None; got {len(names)}")

    @property
    def digest(self) -> str:
        """The digests of both sets, equal for equal training and test sets."""
        return f"{self.train.digest} {self.test.digest}"

    @property
    def num_features(self) -> int:
        """The number of feature ids."""
        return self.train.num_features

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self.train.num_classes

    def label_counts(self, examples: Examples) -> Float32[np.ndarray, "num_classes"]:
        """In how many of ``examples`` (its training set, as a rule) each class is a label."""
        return np.bincount(examples.labels.indices, minlength=self.num_classes).astype(np.float32)


def from_counts(data: np.ndarray, ids: Int32[np.ndarray, " entries"], counts: np.ndarray, columns: int) -> csr_array:
    """A sparse matrix from its entries, row by row, and the number of entries in each row; 32-bit ids where they fit.

    Example:
        >>> from_counts(np.ones(3), np.array([0, 2, 1], dtype=np.int32), np.array([2, 1]), 3).toarray()
        array([[1., 0., 1.],
               [0., 1., 0.]])
    """
    indptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=indptr[1:])
    # SciPy keeps ids and offsets of one type: wide offsets would double the ids' memory.
    if indptr[-1] <= np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    return csr_array((data, ids, indptr), shape=(len(counts), columns))


def _check_matrix(name: str, matrix: csr_array, dtypes: tuple[str, ...]) -> None:
    if matrix.dtype.name not in dtypes:
        raise ValueError(f"{name} must be {' or '.join(dtypes)}; got {matrix.dtype.name}: cast it first")
    matrix.check_format(full_check=True)
    if not matrix.has_canonical_format:
        raise ValueError(f"{name} must have sorted, distinct ids in every row; call sum_duplicates() first")
