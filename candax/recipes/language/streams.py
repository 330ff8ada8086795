"""Batches of a text, each of which continues the one before: parallel streams, with a window of each per step."""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64

from candax.data.epochs import EpochBatches, check_seed, random_bits
from candax.files import digest_of


class StreamBatch(NamedTuple):
    """A window of each of B streams.

    Attributes:
        words: the words that are read, the first ``context`` of them again; -1 before the start of the text.
        labels: what follows each word after the context; -1 where nothing is predicted.
        fresh: whether a stream begins here.
    """

    words: Int32[np.ndarray, "B context_plus_L"]
    labels: Int32[np.ndarray, "B L"]
    fresh: Bool[np.ndarray, " B"]


class StreamBatches(EpochBatches[StreamBatch]):
    """The training batches of all epochs, ``batches[epoch, index]``: stream b goes on from batch to batch.

    Each epoch cuts the text into ``num_streams`` streams of one length, from a word on that is drawn anew, so that the
    words left over at the ends, less than a window of each stream, are others in each epoch.

    Args:
        ids: of the text.
        num_streams: B.
        length: L, the words of a stream that a step predicts.
        context: words before each window that are read again.
        seed: a non-negative integer; with epoch and index it determines a batch, on any machine.

    Raises:
        ValueError: if the text is shorter than one window of all streams.

    Example:
        >>> batches = StreamBatches(np.arange(13, dtype=np.int32), 2, 3, context=1, seed=0)
        >>> batches.batches_per_epoch, batches[0, 1].words.tolist(), batches[0, 1].labels.tolist()
        (2, [[2, 3, 4, 5], [8, 9, 10, 11]], [[4, 5, 6], [10, 11, 12]])
    """

    def __init__(
        self, ids: Int32[np.ndarray, " N"], num_streams: int, length: int, *, context: int = 0, seed: int
    ) -> None:
        check_seed(seed)
        # Only the positions of the base class are used.
        self.ids, self.num_streams, self.length, self.context, self.seed = ids, num_streams, length, context, seed
        self.batches_per_epoch = (len(ids) - 1) // (num_streams * length)
        if not self.batches_per_epoch:
            raise ValueError(
                f"expected a training part of more than {num_streams * length:,} words, a window of each stream, got "
                f"{len(ids):,}: give more text, or lower --num-streams or --length."
            )

    def batch(self, epoch: int, index: int) -> StreamBatch:
        """The batch at a position that exists."""
        each = self.batches_per_epoch * self.length
        left = len(self.ids) - 1 - self.num_streams * each
        first = int(random_bits(self.seed, epoch, (0,), 1)[0] % np.uint64(left + 1))
        starts = first + each * np.arange(self.num_streams) + index * self.length
        labels = self.ids[1:][starts[:, None] + np.arange(self.length)]
        words = words_at(self.ids[:-1], starts, self.length, self.context)
        return StreamBatch(words, labels, np.full(self.num_streams, index == 0))

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, as JSON values."""
        sizes = {"num_streams": self.num_streams, "length": self.length, "context": self.context}
        return {**sizes, "batches_seed": self.seed, "text_digest": digest_of(self.ids)}


def words_at(
    ids: Int32[np.ndarray, " N"], starts: Int64[np.ndarray, " B"], length: int, context: int
) -> Int32[np.ndarray, "B context_plus_L"]:
    """Windows of a text, with the words before them; -1 where there are none."""
    places = starts[:, None] + np.arange(-context, length)
    inside = (places >= 0) & (places < len(ids))
    return np.where(inside, ids[np.where(inside, places, 0)], np.int32(-1)).astype(np.int32)
