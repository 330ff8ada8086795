"""Baselines without training: the most frequent answers of a relation, and what other relations of a pair imply."""

import numpy as np
from jaxtyping import Float64
from scipy.sparse import csr_array

from candax.data import Graph, QuestionBatch, questions_of


class MostFrequentAnswer:
    """Scores entities by how often they answer a relation in that direction; the same for all who are asked about.

    Args:
        graph: whose training part is counted.

    Example:
        >>> from candax.data import Triple, graph_of
        >>> graph = graph_of("tiny", [Triple("cat", "is", "animal"), Triple("dog", "is", "animal")], test_share=0.0)
        >>> kind = np.zeros(1, np.int32)
        >>> scores = MostFrequentAnswer(graph)(QuestionBatch(kind, kind, kind[:, None]))
        >>> float(scores[0, graph.entity_names.index("animal")])
        2.0
    """

    def __init__(self, graph: Graph) -> None:
        asked = questions_of(graph.train, graph.num_relations)
        shape = (2 * graph.num_relations, graph.num_entities)
        self._counts = csr_array((np.ones(len(asked)), (asked[:, 1], asked[:, 2])), shape=shape)

    def __call__(self, batch: QuestionBatch) -> Float64[np.ndarray, "B num_entities"]:
        """Scores of all entities for each question; the scores of padding mean nothing."""
        return self._counts[np.maximum(batch.relations, 0)].toarray()


class OtherRelations:
    """Scores entities by the other relations in which they stand to the one that is asked about.

    From a training triple ``(x, s, y)``, read in both directions, ``(x, r, y)`` follows for every r with a confidence:
    of the pairs in the relation s, the share that is in r too. An entity's score is the largest of its confidences. So
    it finds symmetric relations, inverse ones and those that imply each other; where nothing is known the most frequent
    answers come first.

    Args:
        graph: whose training part is counted.

    Example:
        >>> from candax.data import Triple, graph_of
        >>> pairs = [("hot", "cold"), ("cold", "hot"), ("big", "small")]
        >>> graph = graph_of("tiny", [Triple(a, "opposite", b) for a, b in pairs], valid_share=0.0, test_share=0.0)
        >>> small, kind = np.array([graph.entity_names.index("small")], np.int32), np.zeros(1, np.int32)
        >>> scores = OtherRelations(graph)(QuestionBatch(small, kind, kind[:, None]))
        >>> graph.entity_names[scores[0].argmax()], round(float(scores[0].max()), 2)
        ('big', 0.67)
    """

    def __init__(self, graph: Graph) -> None:
        asked = questions_of(graph.train, graph.num_relations).astype(np.int64)
        kinds, self._entities = 2 * graph.num_relations, graph.num_entities
        pairs = asked[:, 0] * self._entities + asked[:, 2]
        keys, pair = np.unique(pairs, return_inverse=True)
        stands = csr_array((np.ones(len(asked)), (pair, asked[:, 1])), shape=(len(keys), kinds))
        together = (stands.T @ stands).toarray()
        self._confidence = together / np.maximum(np.diagonal(together)[:, None], 1)
        # Of each entity: in which relation it stands to which others.
        order = np.argsort(asked[:, 0], kind="stable")
        self._asked = asked[order]
        self._starts = np.searchsorted(self._asked[:, 0], np.arange(self._entities + 1))
        self._frequent = MostFrequentAnswer(graph)

    def __call__(self, batch: QuestionBatch) -> Float64[np.ndarray, "B num_entities"]:
        """Scores of all entities for each question; the scores of padding mean nothing."""
        frequent = self._frequent(batch)
        # Below every confidence, which is at least 1 / (number of triples).
        scores = frequent / (1 + frequent.sum(axis=1, keepdims=True)) / (1 + len(self._asked))
        for row, (entity, kind) in enumerate(zip(batch.entities, batch.relations, strict=True)):
            around = self._asked[self._starts[max(entity, 0)] : self._starts[max(entity, 0) + 1]]
            found = np.zeros(self._entities)
            np.maximum.at(found, around[:, 2], self._confidence[around[:, 1], kind])
            scores[row] += found
        return scores
