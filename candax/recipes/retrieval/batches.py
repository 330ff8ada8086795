"""Packed rows with the user of each place, for towers that know something about users."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from candax.recipes.sequences.files import Questions, Sequences
from candax.recipes.sequences.packing import PackedBatch, PackedBatches


class TowerBatch(NamedTuple):
    """A ``PackedBatch``, and the user of each place; -1 where there is none."""

    items: Int32[np.ndarray, "R L"]
    segments: Int32[np.ndarray, "R L"]
    labels: Int32[np.ndarray, "R L"]
    users: Int32[np.ndarray, "R L"]


def with_users(batch: PackedBatch, users: Int64[np.ndarray, " n"]) -> TowerBatch:
    """A batch with the user of each of its segments."""
    found = np.where(batch.segments >= 0, users[np.maximum(batch.segments, 0)], -1)
    return TowerBatch(*batch, found.astype(np.int32))


def users_of(sequences: Sequences, starts: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The users in whose items places are."""
    return np.searchsorted(sequences.offsets, starts, side="right") - 1


class TowerBatches(PackedBatches):
    """``PackedBatches`` with users."""

    def batch(self, epoch: int, index: int) -> TowerBatch:  # type: ignore[override]  # one part more
        """The batch at a position that exists."""
        starts = self.starts_of(epoch)
        return with_users(super().batch(epoch, index), users_of(self.sequences, starts))


def users_asked(sequences: Sequences, questions: Questions) -> Int64[np.ndarray, " n"]:
    """The user of each question."""
    return users_of(sequences, questions.starts)
