"""Baselines without training: the most popular items, the last item's successors, neighbours with and without order."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Int64
from scipy.sparse import csr_array

from candax.recipes.sequences.files import Questions, Sequences, ranges


def successors(sequences: Sequences, *, reach: int | None = None, normalised: bool = False) -> csr_array:
    """How often one item follows another in the training part; a pair at distance g counts 1 / g.

    Args:
        sequences: to count in.
        reach: the largest distance; None: that of the longest sequence, at most 50.
        normalised: divide by the square roots of how often both items occur: a cosine.

    Returns:
        ``[num_items, num_items]``: a row for each item before, a column for each one after.
    """
    starts, ends = sequences.offsets[:-1], sequences.training_ends
    longest = int(min((ends - starts).max(initial=1) - 1, 50 if reach is None else reach))
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for gap in range(1, longest + 1):
        at = ranges(starts, np.maximum(ends - gap, starts))
        parts.append((sequences.items[at], sequences.items[at + gap], np.full(len(at), 1 / gap, np.float32)))
    shape = (sequences.num_items, sequences.num_items)
    # Where no sequence has two items there is no pair.
    none = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    before, after, weights = (np.concatenate(part) for part in zip(none, *parts, strict=True))
    counted = csr_array((weights, (before, after)), shape=shape)
    if normalised:
        root = 1 / np.sqrt(np.maximum(sequences.counts(), 1)).astype(np.float32)
        rows = np.repeat(np.arange(sequences.num_items), np.diff(counted.indptr))
        counted.data = counted.data * root[rows] * root[counted.indices]
    return counted


def history_weights(sequences: Sequences, questions: Questions, *, recency: float, length: int = 50) -> csr_array:
    """The items of each history with the weight ``recency ** age``: the last has age 0; recency 0 keeps only it.

    Returns:
        ``[len(questions), num_items]``.
    """
    length = length if recency > 0 else 1
    starts = np.maximum(questions.starts, questions.ends - length)
    places = ranges(starts, questions.ends)
    sizes = questions.ends - starts
    rows = np.repeat(np.arange(len(questions)), sizes)
    ages = np.repeat(questions.ends - 1, sizes) - places
    weights = recency ** ages.astype(np.float32) if recency > 0 else np.ones(len(ages), np.float32)
    return csr_array((weights, (rows, sequences.items[places])), shape=(len(questions), sequences.num_items))


class Neighbours:
    """Scores items by how often and how closely they followed the items of the history, without any training.

    ``score(c) = sum_i recency^age_i sum_g n_g(i, c) / g / sqrt(n(i) n(c))``, n_g(i, c) being how often c stands g
    places after i.

    Source: the sequential nearest neighbours of Ludewig and Jannach, Evaluation of Session-based Recommendation
        Algorithms (2018), in its simplest form, by items.
    """

    def __init__(
        self, sequences: Sequences, *, recency: float = 0.8, reach: int | None = None, normalised: bool = True
    ) -> None:
        self.sequences, self.recency = sequences, recency
        self.table = successors(sequences, reach=reach, normalised=normalised)

    def __call__(self, questions: Questions) -> Float32[np.ndarray, "n num_items"]:
        """A score for each question and item, 0 or more."""
        weights = history_weights(self.sequences, questions, recency=self.recency)
        return np.asarray((weights @ self.table).todense(), np.float32)


class ItemNeighbours:
    """Scores items by how many users they share with the items of the history: a sum of cosines.

    ``score(c) = sum_i n(i, c) / sqrt(n(i) n(c))``, n(i, c) being how many users have both and n(i) how many have i, in
    the training part; i runs over the history.

    Source: Sarwar et al., Item-based Collaborative Filtering Recommendation Algorithms (2001).
    """

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences
        starts, ends = sequences.offsets[:-1], sequences.training_ends
        users = np.repeat(np.arange(len(starts)), ends - starts)
        shape = (len(starts), sequences.num_items)
        items = sequences.items[ranges(starts, ends)]
        had = csr_array((np.ones(len(items), np.float32), (users, items)), shape=shape)
        had.sum_duplicates()
        had.data[:] = 1.0
        had.data /= np.sqrt(np.maximum(had.sum(axis=0), 1))[had.indices].astype(np.float32)
        table = csr_array(had.T @ had)
        table.setdiag(0.0)
        self.table = table

    def __call__(self, questions: Questions) -> Float32[np.ndarray, "n num_items"]:
        """A score for each question and item, 0 or more."""
        longest = int((questions.ends - questions.starts).max(initial=1))
        weights = history_weights(self.sequences, questions, recency=1.0, length=longest)
        return np.asarray((weights @ self.table).todense(), np.float32)


def most_popular(sequences: Sequences) -> Callable[[Questions], Float32[np.ndarray, "n num_items"]]:
    """Scores items by how often they occur in training, for every question alike."""
    counts = sequences.counts().astype(np.float32)
    return lambda questions: np.broadcast_to(counts, (len(questions), len(counts)))


def most_frequent_successor(sequences: Sequences) -> Callable[[Questions], Float32[np.ndarray, "n num_items"]]:
    """Scores items by how often they directly followed the last item of the history; popularity breaks ties."""
    following = Neighbours(sequences, recency=0.0, reach=1, normalised=False)
    popular = most_popular(sequences)
    share = 0.5 / max(float(sequences.counts().max()), 1.0)
    return lambda questions: following(questions) + share * popular(questions)


def seen_pairs(sequences: Sequences, questions: Questions) -> tuple[Int64[np.ndarray, " p"], Int64[np.ndarray, " p"]]:
    """Each question with each item of its history, once."""
    rows = np.repeat(np.arange(len(questions)), questions.ends - questions.starts)
    items = sequences.items[ranges(questions.starts, questions.ends)].astype(np.int64)
    pairs = np.unique(rows * sequences.num_items + items)
    return pairs // sequences.num_items, pairs % sequences.num_items
