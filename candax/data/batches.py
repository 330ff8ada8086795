"""Batches of static shape, as a pure function of (seed, epoch, index)."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt64
from scipy.sparse import csr_array

from candax.checks import checked
from candax.data.epochs import EpochBatches, random_bits
from candax.data.examples import Examples
from candax.data.flat import FlatBatch, count_slots, flatten, widest

_DEFAULT_SHARE = 0.995
_DEFAULT_STEP = 8
_MAX_DEFAULT_FEATURES = 256
_MAX_DEFAULT_LABELS = 16
# A branch of the seed's random streams; the order uses 0.
_LABELS = 1


class Batch(NamedTuple):
    """B examples with F slots for features and T slots for labels.

    Attributes:
        feature_ids: Padded with -1; distinct within an example.
        feature_values: Padded with 0.
        labels: Padded with -1; distinct within an example.
    """

    feature_ids: Int32[np.ndarray, "B F"]
    feature_values: Float32[np.ndarray, "B F"]
    labels: Int32[np.ndarray, "B T"]


class Batches(EpochBatches[Batch | FlatBatch]):
    """The training batches of all epochs: ``batches[epoch, index]``.

    An epoch visits the examples in an order of its own and leaves out the last ``N mod batch_size`` of it, so that all
    batches have one shape. An example with more than ``max_features`` features keeps those of largest absolute value
    (of equal ones, those with lower ids). An example with more than ``max_labels`` labels keeps a uniformly random
    subset of ``max_labels``, another one each time: the expectation of a mean over the kept labels is the mean over all
    labels. The other labels stand in ``more_labels`` of a ``FlatBatch``, so that losses do not take them for negatives
    where they are drawn. (A ``Batch`` has no such field: there they count as wrong classes. ``truncated_labels`` says
    what share of the examples that concerns; it is 0 with ``max_labels`` as large as the longest list of labels.)

    Args:
        examples: What to take the batches from.
        batch_size: B.
        seed: A non-negative integer; with epoch and index it determines a batch, on any machine.
        max_features: F; None: the smallest multiple of 8 that 99.5 % of the examples fit into, at most 256, or what
            half of the examples fit into where that is more.
        max_labels: T; None: likewise, at most 16, and at most 15 of 16 classes.
        flat: Whether batches are ``FlatBatch``, whose N slots hold a mean batch and 5 standard deviations more; where a
            batch has more features, the longest examples lose some, in the same way. Quicker on a CPU if examples
            differ in length. Not for class-parallel training, which divides batches by examples.

    Raises:
        ValueError: If there are fewer examples than one batch takes, or a number is out of range.

    Example:
        >>> features = csr_array(np.eye(4, dtype=np.float32))
        >>> examples = Examples(features, features.astype(bool))
        >>> batches = Batches(examples, batch_size=2, seed=0, max_features=1, max_labels=2)
        >>> batches.batches_per_epoch
        2
        >>> bool((batches[7, 1].labels[:, :1] == batches[7, 1].feature_ids).all())
        True
    """

    @checked
    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        seed: int,
        max_features: int | None = None,
        max_labels: int | None = None,
        flat: bool = False,
    ) -> None:
        super().__init__(len(examples), batch_size, seed, "examples")
        self.examples = examples
        # Some long examples are cut, but not most of them, as dense features would be.
        usual = int(np.median(np.diff(examples.features.indptr)))
        most = max(_MAX_DEFAULT_FEATURES, -(-usual // _DEFAULT_STEP) * _DEFAULT_STEP)
        self.max_features = _width("max_features", max_features, examples.features, most)
        # As many slots as classes would look like one-hot labels.
        most = _MAX_DEFAULT_LABELS - (examples.num_classes == _MAX_DEFAULT_LABELS)
        self.max_labels = _width("max_labels", max_labels, examples.labels, most)
        counts = np.minimum(np.diff(examples.features.indptr).astype(np.int64), self.max_features)
        self.num_slots = max(1, count_slots(counts, batch_size)) if flat else None
        surplus = np.maximum(np.diff(examples.labels.indptr).astype(np.int64) - self.max_labels, 0)
        # Few examples have most of the surplus: one such example more than usual must not change a batch's shape.
        self._more_labels = count_slots(surplus, batch_size) + int(surplus.max(initial=0))

    def batch(self, epoch: int, index: int) -> Batch | FlatBatch:
        """The batch at a position that exists."""
        rows = self.rows(epoch, index)

        def at_random(positions: Int64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
            return random_bits(self.seed, epoch, (_LABELS, index), len(positions))

        if self.num_slots is None:
            return _gather(self.examples, rows, self.max_features, self.max_labels, at_random)[0]
        counts = np.diff(self.examples.features.indptr)[rows].astype(np.int64)
        width = widest(counts, self.max_features, self.num_slots)
        batch, more_labels = _gather(self.examples, rows, width, self.max_labels, at_random)
        return flatten(*batch, more_labels, self.num_slots, self._more_labels)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, the data included, as JSON values: equal identities give equal batches."""
        return self.described(
            num_examples=len(self.examples),
            num_features=self.examples.num_features,
            num_classes=self.examples.num_classes,
            examples_digest=self.examples.digest,
            max_features=self.max_features,
            max_labels=self.max_labels,
            num_slots=self.num_slots,
        )

    @property
    def truncated_labels(self) -> float:
        """The share of examples with more than ``max_labels`` labels."""
        return float(np.mean(np.diff(self.examples.labels.indptr) > self.max_labels))


@checked
def evaluation_batches(
    examples: Examples, batch_size: int, max_features: int, max_labels: int | None = None
) -> Iterator[tuple[Batch, slice]]:
    """All examples in order, the last batch padded with empty rows.

    Args:
        examples: What to take the batches from.
        batch_size: B.
        max_features: F, as in training; surplus features are dropped in the same way.
        max_labels: T; None: the largest number of labels of any example, so that none is dropped. That can be
            thousands. With a smaller T the lowest ids are kept: take the labels from the data set in that case.

    Returns:
        Pairs of a batch and the slice of ``examples`` it holds; ``examples.labels[slice]`` are all its labels.

    Raises:
        ValueError: If ``batch_size``, ``max_features`` or ``max_labels`` is not positive.

    Example:
        >>> features = csr_array(np.eye(3, dtype=np.float32))
        >>> for part, rows in evaluation_batches(Examples(features, features.astype(bool)), 2, 1):
        ...     print(rows, part.labels.ravel())
        slice(0, 2, None) [0 1]
        slice(2, 3, None) [ 2 -1]
    """
    if max_labels is None:
        max_labels = max(1, int(np.diff(examples.labels.indptr).max(initial=0)))
    for name, number in (("batch_size", batch_size), ("max_features", max_features), ("max_labels", max_labels)):
        if number < 1:
            raise ValueError(f"expected {name} of 1 or more; got {number}")
    return _in_order(examples, batch_size, max_features, max_labels)


def _in_order(examples: Examples, batch_size: int, max_features: int, max_labels: int) -> Iterator[tuple[Batch, slice]]:
    for start in range(0, len(examples), batch_size):
        stop = min(start + batch_size, len(examples))
        part, _ = _gather(examples, np.arange(start, stop), max_features, max_labels, lambda positions: positions)
        missing = ((0, batch_size - (stop - start)), (0, 0))
        yield (
            Batch(
                np.pad(part.feature_ids, missing, constant_values=-1),
                np.pad(part.feature_values, missing),
                np.pad(part.labels, missing, constant_values=-1),
            ),
            slice(start, stop),
        )


def _gather(
    examples: Examples,
    rows: Int64[np.ndarray, " B"],
    max_features: int,
    max_labels: int,
    label_rank: Callable[[Int64[np.ndarray, " n"]], np.ndarray],
) -> tuple[Batch, Int32[np.ndarray, "n 2"]]:
    """The batch, and pairs of an example and a label that was left out."""
    features, labels = examples.features[rows], examples.labels[rows]
    kept = _kept(features, max_features, lambda places: -np.abs(features.data[places]))
    kept_labels = _kept(labels, max_labels, label_rank)
    batch = Batch(
        _padded(features, features.indices, kept, max_features, np.int32(-1)),
        _padded(features, features.data, kept, max_features, np.float32(0)),
        _padded(labels, labels.indices, kept_labels, max_labels, np.int32(-1)),
    )
    owners = np.repeat(np.arange(len(rows)), np.diff(labels.indptr))
    return batch, np.stack([owners, labels.indices], axis=1)[~kept_labels].astype(np.int32)


def _kept(
    matrix: csr_array, width: int, rank: Callable[[Int64[np.ndarray, " n"]], np.ndarray]
) -> Bool[np.ndarray, " entries"]:
    """Which entries are among the ``width`` of lowest rank in their row; only rows with more are ranked."""
    counts = np.diff(matrix.indptr)
    kept = np.ones(matrix.nnz, bool)
    places = np.flatnonzero(np.repeat(counts > width, counts))
    if len(places):
        owners = np.repeat(np.arange(len(counts)), counts)[places]
        # Sorting is stable, so equals stay in storage order.
        by_rank = places[np.lexsort((rank(places), owners))]
        kept[by_rank[places - matrix.indptr[owners] >= width]] = False
    return kept


def _padded(
    matrix: csr_array, values: np.ndarray, kept: Bool[np.ndarray, " entries"], width: int, padding: np.generic
) -> np.ndarray:
    """The values of the entries that are kept, row by row, with padding up to ``width``."""
    padded = np.full((matrix.shape[0], width), padding)
    padded[np.arange(width) < np.diff(matrix.indptr)[:, None]] = values[kept]
    return padded


def _width(name: str, asked: int | None, matrix: csr_array, most: int) -> int:
    if asked is not None:
        if asked < 1:
            raise ValueError(f"expected {name} of 1 or more, or None to choose it from the data; got {asked}")
        return asked
    enough = np.quantile(np.diff(matrix.indptr), _DEFAULT_SHARE, method="inverted_cdf")
    return min(most, max(1, -(-int(enough) // _DEFAULT_STEP)) * _DEFAULT_STEP)
