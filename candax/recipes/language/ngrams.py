"""Baselines by counting: words by their frequency, and by what came before, with Kneser-Ney smoothing."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64


def unigram_perplexity(train: Int32[np.ndarray, " N"], asked: Int32[np.ndarray, " M"], num_words: int) -> float:
    """Perplexity if the probability of a word goes by its occurrences in training and one more.

    Example:
        >>> round(unigram_perplexity(np.zeros(2, np.int32), np.zeros(1, np.int32), 2), 3)  # 4 / 3
        1.333
    """
    counts = np.bincount(train, minlength=num_words) + 1.0
    return math.exp(-float(np.mean(np.log(counts / counts.sum())[asked])))


class _Level(NamedTuple):
    """Counts of n-grams; contexts are numbered by their rank among those of the level."""

    contexts: Int64[np.ndarray, " num_contexts"]
    totals: Float64[np.ndarray, " num_contexts"]
    kinds: Float64[np.ndarray, " num_contexts"]
    keys: Int64[np.ndarray, " num_keys"]
    counts: Float64[np.ndarray, " num_keys"]
    discount: float


class KneserNey:
    """Interpolated Kneser-Ney over n-grams up to an order.

    ``p(w | h) = max(c(h w) - D, 0) / c(h) + D n(h) / c(h) p(w | h')``, where n(h) counts the words that follow h and h'
    is h without its first word. At lower orders c(h w) counts the different words before ``h w``, not its occurrences.
    D = n_1 / (n_1 + 2 n_2) of each order, where n_1 and n_2 n-grams have a count of 1 and of 2; below the shortest
    order all words are equally likely.

    Args:
        train: ids of the words of a text.
        num_words: classes.
        order: n, at least 1.

    Example:
        >>> model = KneserNey(np.array([0, 1, 0, 1, 2, 0], np.int32), 3, order=2)
        >>> round(sum(float(model.probabilities(np.array([0, w]))[1]) for w in range(3)), 6)
        1.0

    Source: Kneser and Ney (1995); the interpolated form: Chen and Goodman, An Empirical Study of Smoothing Techniques
        for Language Modeling (1999), section 2.8.
    """

    def __init__(self, train: Int32[np.ndarray, " N"], num_words: int, *, order: int = 3) -> None:
        self.num_words, self.order = num_words, order
        ids = train.astype(np.int64)
        # The context of an n-gram is the number of its first n - 1 words among those of training: with the last word
        # it fits into 64 bits, however long it is.
        contexts, grams = np.zeros(len(ids), np.int64), list[np.ndarray]()
        self._known: list[np.ndarray] = []
        for number in range(order):
            grams.append(contexts * num_words + ids[number:])
            self._known.append(np.unique(grams[-1]))
            contexts = np.searchsorted(self._known[-1], grams[-1])[:-1]
        self._levels: list[_Level] = []
        for number, keys in enumerate(grams):
            # Occurrences at the highest order; below, how many different n-grams with one word more end in it.
            if number + 1 < order:
                keys = keys[1:][np.unique(grams[number + 1], return_index=True)[1]]
            self._levels.append(self._level(*np.unique(keys, return_counts=True)))

    def _level(self, keys: np.ndarray, occurrences: np.ndarray) -> _Level:
        counts = occurrences.astype(np.float64)
        once, twice = (float((counts == times).sum()) for times in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else 0.5
        contexts, place = np.unique(keys // self.num_words, return_inverse=True)
        totals, kinds = np.bincount(place, weights=counts), np.bincount(place).astype(np.float64)
        return _Level(contexts, totals, kinds, keys, counts, discount)

    def probabilities(self, ids: Int32[np.ndarray, " M"] | Int64[np.ndarray, " M"]) -> Float64[np.ndarray, " M"]:
        """Probabilities of each word of a text after those before it, of which the first words have fewer."""
        ids = ids.astype(np.int64)
        found = np.full(len(ids), 1.0 / self.num_words)
        contexts = np.zeros(len(ids), np.int64)
        for level, known in zip(self._levels, self._known, strict=True):
            keys = np.where(contexts >= 0, contexts * self.num_words + ids, -1)
            place, seen = _find(level.contexts, contexts)
            totals, kinds = level.totals[place], level.kinds[place]
            at, there = _find(level.keys, keys)
            above = np.where(there, np.maximum(level.counts[at] - level.discount, 0), 0)
            better = (above + level.discount * kinds * found) / totals
            found = np.where(seen, better, found)
            at, there = _find(known, keys)
            contexts = np.concatenate([[-1], np.where(there, at, -1)[:-1]])
        return found

    def perplexity(self, ids: Int32[np.ndarray, " M"]) -> float:
        """The perplexity over all words of a text."""
        return math.exp(-float(np.mean(np.log(self.probabilities(ids)))))


def _find(keys: Int64[np.ndarray, " n"], wanted: Int64[np.ndarray, " m"]) -> tuple[np.ndarray, np.ndarray]:
    """Places of the wanted keys among sorted ones, and whether each is really there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted
