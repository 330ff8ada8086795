"""Questions to a graph, (entity, relation), and the entities that answer them, in both directions; their batches."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from candax.checks import check_positive, checked
from candax.data.epochs import EpochBatches
from candax.data.graphs import Graph
from candax.files import digest_of


class Answers(NamedTuple):
    """Pairs (row, id): entity ``ids[p]`` is a known answer to question ``rows[p]``."""

    rows: Int64[np.ndarray, " P"]
    ids: Int32[np.ndarray, " P"]


class KnownAnswers:
    """All answers that a graph's three parts hold, for filtered ranks: known answers do not count as wrong ones.

    A question is (entity, relation): for relations below ``num_relations`` it asks for the tails of a head, for
    relation + num_relations for the heads of a tail.

    Example:
        >>> from candax.data.graphs import Triple, graph_of
        >>> graph = graph_of("tiny", [Triple("cat", "is", "animal"), Triple("dog", "is", "animal")], test_share=0.0)
        >>> known = KnownAnswers(graph)
        >>> animal = graph.entity_names.index("animal")
        >>> found = known(np.array([animal]), np.array([1]))  # what is an animal?
        >>> sorted(graph.entity_names[i] for i in found.ids)
        ['cat', 'dog']
    """

    @checked
    def __init__(self, graph: Graph) -> None:
        self._kinds = 2 * graph.num_relations
        questions = questions_of(np.concatenate([graph.train, graph.valid, graph.test]), graph.num_relations)
        keys = self._keys(questions[:, 0], questions[:, 1])
        order = np.argsort(keys, kind="stable")
        self._sorted, self._answers = keys[order], questions[order, 2]

    def __call__(self, entities: Int32[np.ndarray, " B"] | Int64[np.ndarray, " B"], relations: np.ndarray) -> Answers:
        """The known answers to a batch of questions."""
        keys = self._keys(entities, relations)
        first = np.searchsorted(self._sorted, keys, side="left")
        sizes = np.searchsorted(self._sorted, keys, side="right") - first
        rows = np.repeat(np.arange(len(keys)), sizes)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return Answers(rows, self._answers[first[rows] + within])

    def _keys(self, entities: np.ndarray, relations: np.ndarray) -> Int64[np.ndarray, " n"]:
        return entities.astype(np.int64) * self._kinds + relations


@checked
def questions_of(triples: Int32[np.ndarray, "N 3"], num_relations: int) -> Int32[np.ndarray, "two_N 3"]:
    """(entity, relation, answer) in both directions: first for tails, then for heads (relation + num_relations).

    Example:
        >>> questions_of(np.array([[7, 0, 9]], np.int32), num_relations=1).tolist()
        [[7, 0, 9], [9, 1, 7]]
    """
    if len(triples) and not 0 <= triples[:, 1].min() <= triples[:, 1].max() < num_relations:
        raise ValueError(
            f"expected relations from 0 to below num_relations = {num_relations}, got {triples[:, 1].min()} to "
            f"{triples[:, 1].max()}."
        )
    back = triples[:, [2, 1, 0]] + np.array([0, num_relations, 0], np.int32)
    return np.concatenate([triples, back])


class QuestionBatch(NamedTuple):
    """B questions: which entity stands to ``entities`` in ``relations``?

    Attributes:
        entities: -1 for fillers.
        relations: a number below num_relations asks for tails, one from there on asks for heads; -1 for fillers.
        labels: the answers; -1 for fillers.
    """

    entities: Int32[np.ndarray, " B"]
    relations: Int32[np.ndarray, " B"]
    labels: Int32[np.ndarray, "B 1"]


class QuestionBatches(EpochBatches[QuestionBatch]):
    """The training batches of all epochs, ``batches[epoch, index]``: every triple is asked in both directions.

    Both questions of a triple stand in the same batch, so that its labels are the heads and the tails of its triples.
    An epoch visits the triples in an order of its own and leaves out the last ones that fill no batch.

    Args:
        graph: the graph whose training triples are asked.
        batch_size: B, an even number: questions about B / 2 triples.
        seed: a non-negative integer; with epoch and index it determines a batch, on any machine.

    Raises:
        ValueError: if there are fewer questions than one batch takes, or a number is odd or out of range.

    Example:
        >>> from candax.data.graphs import Triple, graph_of
        >>> small = graph_of("tiny", [Triple("cat", "is", "animal"), Triple("dog", "is", "animal")], test_share=0.0)
        >>> QuestionBatches(small, batch_size=4, seed=0)[0, 0].labels.shape
        (4, 1)
    """

    @checked
    def __init__(self, graph: Graph, batch_size: int, seed: int) -> None:
        self._questions = questions_of(graph.train, graph.num_relations)
        if batch_size % 2 or not 2 <= batch_size <= len(self._questions):
            raise ValueError(
                f"expected an even batch_size from 2 to {len(self._questions)}, the number of questions: a triple is "
                f"asked in both directions; got {batch_size}."
            )
        super().__init__(len(graph.train), batch_size // 2, seed, "triples")
        self.graph = graph

    def batch(self, epoch: int, index: int) -> QuestionBatch:
        """The batch at a position that exists."""
        triples = self.rows(epoch, index)
        return _batch(self._questions[np.concatenate([triples, triples + self.num_items])])

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, as JSON values: equal identities give equal batches."""
        sizes: dict[str, Any] = {"num_questions": len(self._questions), "num_entities": self.graph.num_entities}
        return self.described(**sizes, questions_digest=digest_of(self._questions))


@checked
def questions_in_order(questions: Int32[np.ndarray, "N 3"], batch_size: int) -> Iterator[QuestionBatch]:
    """All questions in order, the last batch filled up with -1.

    Example:
        >>> [batch.entities.tolist() for batch in questions_in_order(np.array([[5, 0, 6]], np.int32), 2)]
        [[5, -1]]
    """
    check_positive("batch_size", batch_size)
    for start in range(0, len(questions), batch_size):
        part = questions[start : start + batch_size]
        yield _batch(np.pad(part, ((0, batch_size - len(part)), (0, 0)), constant_values=-1))


def _batch(questions: Int32[np.ndarray, "B 3"]) -> QuestionBatch:
    columns = np.ascontiguousarray(questions.T)
    return QuestionBatch(columns[0], columns[1], columns[2][:, None])
