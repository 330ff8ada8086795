"""Item nearest neighbours over whole histories, without order and without training."""

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from candax.recipes.sequences.files import Questions, Sequences, ranges
from candax.recipes.sequences.neighbours import history_weights


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
