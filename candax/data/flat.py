"""Batches whose features stand one behind the other, without a padded row for every example."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

_MULTIPLE = 256
_DEVIATIONS = 5.0


class FlatBatch(NamedTuple):
    """B examples with T slots for labels each, and N slots for the features of all of them.

    Where examples differ in length, N is much less than B times the slots of a padded ``Batch``, and an encoder and its
    optimizer take less time.

    Attributes:
        feature_ids: Example by example; padded with -1 at the end; distinct within an example.
        feature_values: Padded with 0.
        feature_examples: The example that each slot belongs to, in rising order.
        labels: Padded with -1; distinct within an example.
        more_labels: Pairs of an example and one of its labels that has no slot; padded with -1. Losses do not take
            these labels for negatives.
    """

    feature_ids: Int32[np.ndarray, " N"]
    feature_values: Float32[np.ndarray, " N"]
    feature_examples: Int32[np.ndarray, " N"]
    labels: Int32[np.ndarray, "B T"]
    more_labels: Int32[np.ndarray, "M 2"]


def count_slots(counts: Int64[np.ndarray, " examples"], batch_size: int) -> int:
    """Slots for the entries of a batch: their mean number and 5 standard deviations more, at most what can occur.

    Example:
        >>> count_slots(np.array([1, 3, 2, 2]), 1000)
        2304
    """
    expected = batch_size * float(np.mean(counts))
    room = expected + _DEVIATIONS * float(np.std(counts)) * batch_size**0.5
    return min(-(-int(np.ceil(room)) // _MULTIPLE) * _MULTIPLE, batch_size * int(np.max(counts, initial=0)))


def widest(counts: Int64[np.ndarray, " B"], most: int, num_slots: int) -> int:
    """The most features an example may have, at most ``most``, so that the features of a batch fit into its slots.

    Raises:
        ValueError: If there is no room for one feature of every example.

    Example:
        >>> widest(np.array([1, 9, 5]), 8, 12)
        6
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(counts, middle).sum() <= num_slots else (low, middle - 1)
    if low == 0:
        raise ValueError(f"expected slots for at least one feature of each of {len(counts)} examples, got {num_slots}")
    return low


def flatten(
    feature_ids: Int32[np.ndarray, "B F"],
    feature_values: Float32[np.ndarray, "B F"],
    labels: Int32[np.ndarray, "B T"],
    more_labels: Int32[np.ndarray, "n 2"],
    num_slots: int,
    room: int,
) -> FlatBatch:
    """The same examples, their features one behind the other in ``num_slots`` slots.

    ``more_labels`` are pairs of an example and a label without a slot. The ``room`` for them is doubled until they
    fit, so that none is lost and there are few different shapes.

    Example:
        >>> ids = np.array([[7, -1], [3, 9]], np.int32)
        >>> none = np.zeros((0, 2), np.int32)
        >>> flatten(ids, np.ones((2, 2), np.float32), np.zeros((2, 1), np.int32), none, 4, 0).feature_ids
        array([ 7,  3,  9, -1], dtype=int32)
    """
    real = feature_ids >= 0
    examples = np.nonzero(real)[0].astype(np.int32)
    missing = (0, num_slots - len(examples))
    while room < len(more_labels):
        room = max(1, 2 * room)
    return FlatBatch(
        np.pad(feature_ids[real], missing, constant_values=-1),
        np.pad(feature_values[real], missing),
        np.pad(examples, missing, constant_values=len(labels) - 1),
        labels,
        np.pad(more_labels, ((0, room - len(more_labels)), (0, 0)), constant_values=-1),
    )
