"""Windows around the words of a text as batches of fixed shape: for skip-gram and for CBOW."""

import functools
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int32, Int64

from candax.checks import checked
from candax.data.epochs import ORDER, EpochBatches, check_seed, keep_last, random_bits, shuffled
from candax.data.words import Words

Direction: TypeAlias = Literal["skipgram", "cbow"]
# Branches of the seed's random streams.
_SHARDS, _KEEP, _WINDOWS, _RUNS = ORDER, 1, 2, 3
# Of how batches follow from all else: a run of another version is not gone on with.
_VERSION = 2
# Batches made at a time.
_GROUP = 16
# How far a window reaches is an int8.
_MOST_WINDOW = 127


class SkipGramBatch(NamedTuple):
    """R runs of L words, and for every place the words around it.

    Attributes:
        words: the words of the runs; -1 stands behind each sentence and pads places without a word.
        labels: the words at the places i - w ... i - 1, i + 1 ... i + w around place i, example by example; -1 where
            the window does not reach, where the sentence ends, and for a word that repeats one of the same window.
    """

    words: Int32[np.ndarray, "R L"]
    labels: Int32[np.ndarray, "B T"]


class CBOWBatch(NamedTuple):
    """R runs of L words; every word is to be predicted from those around it.

    Attributes:
        words: the words of the runs; -1 stands behind each sentence and pads places without a word.
        neighbours: which of the places i - w ... i - 1, i + 1 ... i + w belong to the window of place i.
        labels: the words; -1 for a word with an empty window.
    """

    words: Int32[np.ndarray, "R L"]
    neighbours: Bool[np.ndarray, "R L T"]
    labels: Int32[np.ndarray, "B 1"]


class WindowBatches(EpochBatches[SkipGramBatch | CBOWBatch]):
    """The training batches of all epochs over a text: ``batches[epoch, index]``.

    Frequent words are dropped at random: each occurrence of a word that makes up the share f of the text is kept with
    the probability ``min(1, sqrt(t / f) + t / f)``. The words kept are cut into runs of ``run_length``, and a batch
    takes runs from different places. Windows reach 1 to w words to either side, drawn for each place; they end with the
    sentence and with the run (at a length of 256 that costs .9 % of the pairs, different ones every epoch). The text is
    worked through in shards, large pieces that fit into memory, in another order every epoch; the last words of each
    shard, which fill no batch, are left out.

    Args:
        text: see ``Words``.
        batch_size: B, places per batch; a multiple of ``run_length``.
        seed: a non-negative integer; with epoch and index it determines a batch, on any machine.
        direction: "skipgram" for ``SkipGramBatch``, "cbow" for ``CBOWBatch``.
        window: w, the most words to either side.
        subsample: t, in the probability above; 0: no words are dropped.
        run_length: L.
        shard_size: words of the text that are in memory at a time.

    Raises:
        ValueError: if the text is too short for one batch, or a number is out of range.

    Example:
        >>> from candax.data.words import words_of
        >>> text = words_of("tiny", [["a", "b", "c"]] * 4, min_count=1)
        >>> batches = WindowBatches(text, batch_size=8, seed=0, window=1, subsample=0, run_length=8)
        >>> batches.batches_per_epoch
        2
        >>> batches[0, 0].labels.shape
        (8, 2)

    Source: Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality (2013); the
        probability is that of word2vec's code, which differs from section 2.3.
    """

    @checked
    def __init__(
        self,
        text: Words,
        batch_size: int,
        seed: int,
        *,
        direction: Direction = "skipgram",
        window: int = 5,
        subsample: float = 1e-3,
        run_length: int = 256,
        shard_size: int = 1 << 21,
    ) -> None:
        if not 1 <= window <= _MOST_WINDOW or run_length < 2 or batch_size < run_length or batch_size % run_length:
            raise ValueError(
                f"expected a window from 1 to {_MOST_WINDOW}, run_length >= 2 and a batch_size that is a multiple of "
                f"run_length, got {window}, {run_length} and {batch_size}."
            )
        check_seed(seed)
        if not 0 <= subsample < float("inf") or shard_size < 1:
            raise ValueError(f"expected subsample >= 0 and shard_size >= 1: {subsample}, {shard_size}.")
        self.text, self.batch_size, self.seed, self.direction = text, batch_size, seed, direction
        self.window, self.subsample, self.run_length, self.shard_size = window, subsample, run_length, shard_size
        # Batches are numbered shard by shard, so only the access by position comes from the base class.
        self._batches_of_shard = self._count_batches()
        self.batches_per_epoch = int(self._batches_of_shard.sum())
        if self.batches_per_epoch == 0:
            raise ValueError(
                f"{text.name}: expected a text of which {batch_size} words, one batch, are left after frequent ones "
                f"are dropped; it has {text.total} words. Give more text, or a smaller batch_size."
            )

    def batch(self, epoch: int, index: int) -> SkipGramBatch | CBOWBatch:
        """The batch at a position that exists."""
        order, ends = self._shards(epoch)
        nth = int(np.searchsorted(ends, index, side="right"))
        shard = int(order[nth])
        within = index - int(ends[nth] - self._batches_of_shard[shard])
        # Several batches at a time: for a single one, NumPy's calls would cost more than the work they do.
        first = within // _GROUP * _GROUP
        words, neighbours, labels = self._group(epoch, shard, first)[within - first]
        if self.direction == "cbow":
            return CBOWBatch(words, neighbours, labels.reshape(-1, 1))
        return SkipGramBatch(words, labels.reshape(self.batch_size, 2 * self.window))

    @functools.cached_property
    def keep_probability(self) -> Float64[np.ndarray, " num_words"]:
        """For each word, the probability that an occurrence of it is kept."""
        if self.subsample == 0:
            return np.ones(self.text.num_words)
        ratio = self.subsample / (self.text.counts / self.text.total)
        return np.minimum(1.0, np.sqrt(ratio) + ratio)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, as JSON values: equal identities give equal batches."""
        return self.described(
            text_digest=self.text.digest,
            num_words=self.text.num_words,
            direction=self.direction,
            window=self.window,
            subsample=self.subsample,
            run_length=self.run_length,
            shard_size=self.shard_size,
            windows=_VERSION,
        )

    def _count_batches(self) -> Int64[np.ndarray, " shards"]:
        """Batches of each shard: as many as its kept words fill in every epoch, but for one epoch in millions."""
        keep = np.append(self.keep_probability, 1.0)  # the end of a sentence, -1, is kept
        numbers = []
        for start in range(0, len(self.text.ids), self.shard_size):
            kept = keep[self.text.ids[start : start + self.shard_size]]
            surely = kept.sum() - 5 * np.sqrt((kept * (1 - kept)).sum())
            numbers.append(max(0, int(surely)) // self.batch_size)
        return np.asarray(numbers, np.int64)

    @keep_last
    def _shards(self, epoch: int) -> tuple[Int64[np.ndarray, " shards"], Int64[np.ndarray, " shards"]]:
        """The shards in the order of an epoch, and the number of its batches up to the end of each shard."""
        order = shuffled(self.seed, epoch, len(self._batches_of_shard), (_SHARDS,))
        return order, np.cumsum(self._batches_of_shard[order])

    @keep_last
    def _group(self, epoch: int, shard: int, first: int) -> list[tuple[np.ndarray, ...]]:
        """For each of some batches of a shard, from ``first`` on: words, which neighbours are in windows, labels."""
        runs, reaches = self._shard(epoch, shard)
        stop = min(first + _GROUP, int(self._batches_of_shard[shard]))
        rows = slice(*(place * self.batch_size // self.run_length for place in (first, stop)))
        words = runs[rows]
        neighbours, inside = _neighbours(words, reaches[rows], self.window)
        if self.direction == "cbow":
            labels = np.where(inside.any(axis=2), words, np.int32(-1))
        else:
            labels = np.where(inside, neighbours, np.int32(-1))
            _drop_repeated(labels, words, self.window)
        return list(zip(*(np.split(part, stop - first) for part in (words, inside, labels)), strict=True))

    @keep_last
    def _shard(self, epoch: int, shard: int) -> tuple[Int32[np.ndarray, "n L"], Int8[np.ndarray, "n L"]]:
        """The runs of a shard in their order in this epoch, and how far the window of each place reaches."""
        ids = np.asarray(self.text.ids[shard * self.shard_size : (shard + 1) * self.shard_size])
        size = int(self._batches_of_shard[shard]) * self.batch_size
        keep = np.append(_as_threshold(self.keep_probability), np.uint32(2**32 - 1))
        bits = random_bits(self.seed, epoch, (_KEEP, shard), (len(ids) + 1) // 2).view(np.uint32)[: len(ids)]
        kept = ids[bits <= keep[ids]]
        # Another start every epoch, so that runs are not cut at the same places.
        bits = random_bits(self.seed, epoch, (_RUNS, shard), 1 + size // self.run_length)
        start = int(bits[0] % np.uint64(max(1, min(len(kept) - size + 1, self.run_length))))
        kept = np.pad(kept[start : start + size], (0, max(0, size - len(kept[start:]))), constant_values=-1)
        order = np.argsort(bits[1:], kind="stable")
        runs = kept.reshape(-1, self.run_length)[order]
        drawn = random_bits(self.seed, epoch, (_WINDOWS, shard), -(-size // 4)).view(np.uint16)[:size]
        # A product: remainders of few bits would favour small numbers.
        reach = 1 + (drawn.astype(np.uint32) * np.uint32(self.window) >> np.uint32(16))
        return runs, reach.astype(np.int8).reshape(runs.shape)


def _as_threshold(probability: Float64[np.ndarray, " n"]) -> np.ndarray:
    """The largest of the random 32-bit integers for which a word is kept."""
    return np.clip(np.round(probability * 2.0**32) - 1, 0, 2.0**32 - 1).astype(np.uint32)


def _neighbours(
    words: Int32[np.ndarray, "R L"], reach: Int8[np.ndarray, "R L"], window: int
) -> tuple[Int32[np.ndarray, "R L T"], Bool[np.ndarray, "R L T"]]:
    """The words around every place, and which of them belong to its window: only words of the same sentence."""
    padded = np.pad(words, ((0, 0), (window, window)), constant_values=-1)
    # [R, L, 2 w + 1] without a copy.
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * window + 1, axis=1)
    neighbours = np.concatenate([around[..., :window], around[..., window + 1 :]], axis=2)
    inside = np.empty(neighbours.shape, bool)
    before = after = words >= 0
    for distance in range(1, window + 1):
        # The window goes on as long as no end of a sentence stands between.
        reached = reach >= distance
        before = before & (neighbours[..., window - distance] >= 0)
        after = after & (neighbours[..., window + distance - 1] >= 0)
        inside[..., window - distance] = before & reached
        inside[..., window + distance - 1] = after & reached
    return neighbours, inside


def _drop_repeated(labels: Int32[np.ndarray, "R L T"], words: Int32[np.ndarray, "R L"], window: int) -> None:
    """Sets to -1, in place, every label that repeats an earlier one of the same window, so that labels are distinct.

    Equal words at a distance of up to 2 w are few, so they are found first, and then the windows that hold both.
    """
    length = words.shape[1]
    offsets = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    slot_of = np.full(2 * window + 1, -1)
    slot_of[offsets + window] = np.arange(2 * window)
    for distance in range(1, 2 * window + 1):
        run, first = np.nonzero((words[:, :-distance] == words[:, distance:]) & (words[:, distance:] >= 0))
        # Centres whose window may hold both: first - centre >= -w and first + distance - centre <= w.
        centre = first[:, None] + distance - window + np.arange(2 * window - distance + 1)
        inside = (centre >= 0) & (centre < length) & (centre != first[:, None]) & (centre != first[:, None] + distance)
        pair, column = np.nonzero(inside)
        at, where = run[pair], centre[pair, column]
        one, other = slot_of[first[pair] - where + window], slot_of[first[pair] + distance - where + window]
        both = labels[at, where, one] >= 0
        labels[at[both], where[both], other[both]] = -1
