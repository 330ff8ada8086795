"""Evaluation of a trained program on the test set of a data set."""

import numpy as np
from jaxtyping import Int

from candax.data import Batches, Dataset, Examples, evaluation_batches
from candax.training.evaluation import evaluate
from candax.training.program import Program, TrainState


def evaluate_dataset(
    program: Program,
    state: TrainState,
    dataset: Dataset,
    batches: Batches,
    *,
    rows: Int[np.ndarray, "n"] | None = None,
    batch_size: int = 1024,
) -> dict[str, float]:
    """Exact log-likelihood, P@k, nDCG@k and PSP@k over all classes, on the test set or some rows of it.

    Args:
        program: from ``build``.
        state: a state of that program; it is not donated.
        dataset: the data that the program was trained on.
        batches: the training batches, whose number of feature slots prediction shares.
        rows: of the test set; None: all of them.
        batch_size: examples scored at a time.

    Returns:
        What ``candax.training.evaluate`` returns.
    """
    test = dataset.test
    if rows is not None:
        test = Examples(test.features[rows], test.labels[rows])
    return evaluate(
        lambda batch: program.embed(state, batch),
        program.classes(state),
        evaluation_batches(test, min(batch_size, max(1, len(test))), batches.max_features, max_labels=1),
        test.labels,
        dataset.label_counts(dataset.train),
        len(dataset.train),
    )
