"""Batches of questions to a graph: (entity, relation) and the entity that answers, in both directions."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from candax.checks import check_positive, checked
from candax.data.epochs import EpochBatches
from candax.data.graphs import Graph, questions_of
from candax.files import digest_of


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
