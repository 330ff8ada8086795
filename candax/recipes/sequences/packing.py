"""Sequences packed into rows of one length, several per row, so that little is padding."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from candax.data.epochs import EpochBatches, keep_last, shuffled
from candax.files import digest_of
from candax.recipes.sequences.files import Questions, Sequences, ranges

# The branch of the random stream that orders users; rows use the branch that all batches do.
_USERS = 1


class PackedBatch(NamedTuple):
    """Items, which sequence of its row each belongs to, the item that follows (-1: none), and its user.

    At places without an item all four are -1; so are ``users`` where their names are not known.
    """

    items: Int32[np.ndarray, "R L"]
    segments: Int32[np.ndarray, "R L"]
    labels: Int32[np.ndarray, "R L"]
    users: Int32[np.ndarray, "R L"]


class Packed(NamedTuple):
    """Where each sequence lies: its row, and its first place there."""

    rows: Int64[np.ndarray, " n"]
    places: Int64[np.ndarray, " n"]


def pack(sizes: Int64[np.ndarray, " n"], length: int) -> Packed:
    """Fills rows one after the other, in the order given; a sequence that does not fit begins a new row.

    Example:
        >>> pack(np.array([3, 2, 4, 1]), 6).rows.tolist()
        [0, 0, 1, 1]
    """
    ends = np.cumsum(sizes)
    rows, places = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    first = row = 0
    while first < len(sizes):
        before = ends[first] - sizes[first]
        stop = int(np.searchsorted(ends, before + length, side="right"))
        rows[first:stop] = row
        places[first:stop] = ends[first:stop] - sizes[first:stop] - before
        first, row = stop, row + 1
    return Packed(rows, places)


def pack_tightly(sizes: Int64[np.ndarray, " n"], length: int) -> Packed:
    """As ``pack``, in any order: the largest first, each where the least room is left.

    Example:
        >>> pack_tightly(np.array([3, 2, 4, 1, 2]), 6).rows.tolist()
        [1, 0, 0, 1, 1]
    """
    rows, places = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    # Rows by the room that is left in them.
    with_room: list[list[int]] = [[] for _ in range(length + 1)]
    number = 0
    for index in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[index])
        room = next((room for room in range(size, length + 1) if with_room[room]), None)
        if room is None:
            row, room = number, length
            number += 1
        else:
            row = with_room[room].pop()
        rows[index], places[index] = row, length - room
        with_room[room - size].append(row)
    return Packed(rows, places)


def fill(
    sequences: Sequences,
    starts: Int64[np.ndarray, " n"],
    ends: Int64[np.ndarray, " n"],
    packed: Packed,
    num_rows: int,
    length: int,
) -> PackedBatch:
    """Puts the items from each start to before its end at their places; labels are the items that follow."""
    sizes = ends - starts
    first = packed.rows * length + packed.places
    to = ranges(first, first + sizes)
    places = ranges(starts, ends)
    parts = np.full((4, num_rows * length), -1, np.int32)
    parts[0, to] = sequences.items[places]
    parts[1, to] = np.repeat(np.arange(len(starts), dtype=np.int32), sizes)
    parts[2, to] = sequences.items[np.minimum(places + 1, len(sequences.items) - 1)]
    if sequences.user_names:
        parts[3, to] = np.repeat(np.searchsorted(sequences.offsets, starts, side="right") - 1, sizes)
    return PackedBatch(*parts.reshape(4, num_rows, length))


def check_trainable(sequences: Sequences) -> None:
    """Raises ValueError where nothing can be learned: no user has two items for training."""
    if not (sequences.training_ends - sequences.offsets[:-1] >= 2).any():
        raise ValueError(f"{sequences.name}: expected a user with two items or more to train on, found none.")


class PackedBatches(EpochBatches[PackedBatch]):
    """Training batches: all users in a new order in each epoch, packed into rows.

    Args:
        sequences: to train on; only the training part of each user is used.
        num_rows: R, rows per batch.
        length: L, places per row. Longer sequences are cut into pieces, from their ends on.
        seed: of the order.

    Raises:
        ValueError: if nothing can be learned: no user has two items for training.
    """

    def __init__(self, sequences: Sequences, num_rows: int, length: int, seed: int) -> None:
        check_trainable(sequences)
        # The last item of a sequence is only a label.
        starts, ends = sequences.offsets[:-1], sequences.training_ends - 1
        pieces = -(-np.maximum(ends - starts, 0) // length)
        back = ranges(np.zeros_like(pieces), pieces) * length
        self._ends = np.repeat(ends, pieces) - back
        self._starts = np.maximum(np.repeat(starts, pieces), self._ends - length)
        # The number of rows is the same in any order: only sizes decide it.
        rows = int(pack_tightly(self._ends - self._starts, length).rows.max()) + 1
        super().__init__(-(-rows // num_rows) * num_rows, num_rows, seed, "rows")
        self.sequences, self.length = sequences, length

    def batch(self, epoch: int, index: int) -> PackedBatch:
        """The batch at a position that exists."""
        rows = self.rows(epoch, index)
        return PackedBatch(*(part[rows] for part in self._filled(epoch)))

    @keep_last
    def _filled(self, epoch: int) -> PackedBatch:
        """All rows of an epoch."""
        order = shuffled(self.seed, epoch, len(self._ends), (_USERS,))
        starts, ends = self._starts[order], self._ends[order]
        packed = pack_tightly(ends - starts, self.length)
        return fill(self.sequences, starts, ends, packed, self.num_items, self.length)

    @property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, as JSON values."""
        digest = digest_of(self.sequences.items, self.sequences.offsets)
        return self.described(sequences=digest, held_out=self.sequences.held_out, length=self.length)


def packed_questions(
    sequences: Sequences, questions: Questions, length: int, num_rows: int
) -> list[tuple[PackedBatch, Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]]:
    """Batches of the latest items of histories, in order, each with rows and places of its histories' last items."""
    starts = np.maximum(questions.starts, questions.ends - length)
    packed = pack(questions.ends - starts, length)
    found = []
    for first in range(0, int(packed.rows[-1]) + 1, num_rows):
        some = (packed.rows >= first) & (packed.rows < first + num_rows)
        here = Packed(packed.rows[some] - first, packed.places[some])
        batch = fill(sequences, starts[some], questions.ends[some], here, num_rows, length)
        last = here.places + questions.ends[some] - starts[some] - 1
        found.append((batch._replace(labels=np.full_like(batch.items, -1)), here.rows, last))
    return found
