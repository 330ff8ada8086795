"""Evaluation of a trained model on the test set of a data set."""

from functools import partial

import numpy as np
from jaxtyping import Int

from candax.data import Batches, Dataset, Examples, evaluation_batches
from candax.models.classifier import Classifier
from candax.training.evaluation import embed, evaluate


def evaluate_dataset(
    model: Classifier,
    dataset: Dataset,
    batches: Batches,
    *,
    rows: Int[np.ndarray, "n"] | None = None,
    batch_size: int = 1024,
) -> dict[str, float]:
    """Exact log-likelihood, P@k, nDCG@k and PSP@k over all classes, on the test set or some rows of it.

    Args:
        model: an encoder of the data set's examples and a head.
        dataset: the data that the model was trained on.
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
        partial(embed, model),
        model.head.classes(),
        evaluation_batches(test, min(batch_size, max(1, len(test))), batches.max_features, max_labels=1),
        test.labels,
        dataset.label_counts(dataset.train),
        len(dataset.train),
    )
