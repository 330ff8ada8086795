"""Word vectors without training: pointwise mutual information of words that stand near each other, and its SVD."""

import numpy as np
from jaxtyping import Int32
from scipy.sparse import coo_array, csr_array

from candax.checks import checked
from candax.data import Words, WordVectors

# More words and places would take longer than word2vec does.
_WORDS, _PLACES, _BLOCK = 50_000, 20_000_000, 4_000_000
_SMOOTHING = 0.75


@checked
def ppmi_vectors(text: Words, *, dim: int = 100, window: int = 5) -> WordVectors:
    """Vectors whose inner products come closest to the positive pointwise mutual information of two words.

    ``max(0, log(P(w, c) / (P(w) q(c))))`` with q proportional to ``P(c) ** 0.75``, of pairs at a distance d of at
    most ``window`` that count ``1 - (d - 1) / window``, as often as word2vec looks at them; then ``U sqrt(S)`` of its
    singular value decomposition. Of the 50,000 most frequent words and the first 20 million places of a text.

    Args:
        text: see ``Words``.
        dim: coordinates of a vector.
        window: the most words to either side.

    Returns:
        The vectors, the most frequent words first.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import candax as cx
        >>> text = cx.data.words_of("tiny", [["red", "tea"], ["green", "tea"], ["old", "car"]] * 9, min_count=1)
        >>> ppmi_vectors(text, dim=3).vectors.shape
        (5, 3)

    Source: Levy, Goldberg and Dagan, Improving Distributional Similarity with Lessons Learned from Word Embeddings
        (2015), sections 2 and 3.
    """
    from sklearn.utils.extmath import randomized_svd

    if dim < 1 or window < 1:
        raise ValueError(f"expected dim >= 1 and window >= 1, got {dim} and {window}.")
    number = min(text.num_words, _WORDS)
    pairs = _pairs(np.asarray(text.ids[:_PLACES]), number, window)
    of_word, beside = pairs.sum(axis=1), pairs.sum(axis=0) ** _SMOOTHING
    entries = pairs.tocoo()
    expected = of_word[entries.coords[0]] * beside[entries.coords[1]] / beside.sum()
    entries.data = np.maximum(np.log(entries.data / expected), 0).astype(np.float32)
    left, sizes, _ = randomized_svd(entries.tocsr(), min(dim, number - 1), n_iter=2, random_state=0)
    return WordVectors(text.words[:number], (left * np.sqrt(sizes)).astype(np.float32))


def _pairs(ids: Int32[np.ndarray, " N"], number: int, window: int) -> csr_array:
    """How often words stand near each other; in one sentence, which -1 ends."""
    found = csr_array((number, number), dtype=np.float64)
    for first in range(0, len(ids), _BLOCK):
        block = ids[first : first + _BLOCK]
        ends = np.cumsum(block < 0)
        for distance in range(1, window + 1):
            one, other = block[:-distance], block[distance:]
            near = (
                (ends[:-distance] == ends[distance:])
                & (np.maximum(one, other) < number)
                & (np.minimum(one, other) >= 0)
            )
            weights = np.full(int(near.sum()), 1 - (distance - 1) / window)
            found = csr_array(found + coo_array((weights, (one[near], other[near])), found.shape))
    return csr_array(found + found.T)
