"""Batches of questions to a graph: (entity, relation) and the entity that answers, in both directions."""

import functools
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from candax.data.batches import random_bits
from candax.data.graphs import Graph, questions_of
from candax.data.positions import check_position


class QuestionBatch(NamedTuple):
    """B questions: which entity stands to ``entities`` in ``relations``?

    Attributes:
        entities: -1 for fillers.
        relations: below num_relations: tails are asked for; from there on: heads. -1 for fillers.
        labels: the answers; -1 for fillers.
    """

    entities: Int32[np.ndarray, "B"]
    relations: Int32[np.ndarray, "B"]
    labels: Int32[np.ndarray, "B 1"]


class QuestionBatches:
    """The training batches of all epochs, ``batches[epoch, index]``: every triple is asked in both directions.

    An epoch visits the questions in an order of its own and leaves out the last ones that fill no batch.

    Args:
        graph: whose training part is asked.
        batch_size: B.
        seed: a non-negative integer; with epoch and index it determines a batch, on any machine.

    Raises:
        ValueError: if there are fewer questions than one batch takes, or a number is out of range.

    Example:
        >>> from candax.data.graphs import Triple, graph_of
        >>> small = graph_of("tiny", [Triple("cat", "is", "animal"), Triple("dog", "is", "animal")], test_share=0.0)
        >>> QuestionBatches(small, batch_size=4, seed=0)[0, 0].labels.shape
        (4, 1)
    """

    def __init__(self, graph: Graph, batch_size: int, seed: int) -> None:
        self._questions = questions_of(graph.train, graph.num_relations)
        if not 1 <= batch_size <= len(self._questions):
            raise ValueError(
                f"expected a batch_size from 1 to {len(self._questions)}, the number of questions; got {batch_size}: "
                "the last, partial batch of an epoch is dropped, so there would be none"
            )
        if seed < 0:
            raise ValueError(f"expected a seed of 0 or more; got {seed}")
        self.graph, self.batch_size, self.seed = graph, batch_size, seed
        self.batches_per_epoch = len(self._questions) // batch_size
        self._last_order: tuple[int, Int64[np.ndarray, n]] | None = None

    def __getitem__(self, position: tuple[int, int]) -> QuestionBatch:
        """The batch at ``(epoch, index)``, for any epoch from 0 and ``0 <= index < batches_per_epoch``."""
        epoch, index = check_position(position, self.batches_per_epoch)
        if self._last_order is None or self._last_order[0] != epoch:
            bits = random_bits(self.seed, epoch, (0,), len(self._questions))
            self._last_order = epoch, np.argsort(bits, kind="stable")
        rows = self._last_order[1][index * self.batch_size : (index + 1) * self.batch_size]
        return _batch(self._questions[rows])

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, as JSON values: equal identities give equal batches."""
        return {
            "num_questions": len(self._questions),
            "num_entities": self.graph.num_entities,
            "questions_digest": hashlib.blake2b(np.ascontiguousarray(self._questions).data, digest_size=16).hexdigest(),
            "batch_size": self.batch_size,
            "batches_seed": self.seed,
        }


def questions_in_order(questions: Int32[np.ndarray, "N 3"], batch_size: int) -> Iterator[QuestionBatch]:
    """All questions in order, the last batch filled up with -1.

    Example:
        >>> [batch.entities.tolist() for batch in questions_in_order(np.array([[5, 0, 6]], np.int32), 2)]
        [[5, -1]]
    """
    for start in range(0, len(questions), batch_size):
        part = questions[start : start + batch_size]
        yield _batch(np.pad(part, ((0, batch_size - len(part)), (0, 0)), constant_values=-1))


def _batch(questions: Int32[np.ndarray, "B 3"]) -> QuestionBatch:
    columns = np.ascontiguousarray(questions.T)
    return QuestionBatch(columns[0], columns[1], columns[2][:, None])
