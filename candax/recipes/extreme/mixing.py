"""Probabilities of several models, and the shares of neighbours, as one ranking."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse import csr_array

from candax import losses
from candax.data import Dataset
from candax.models import Classifier
from candax.recipes.extreme.baselines import measure_ranking
from candax.recipes.extreme.embedding import embedded
from candax.training.metrics import KS

_MOST_EXAMPLES, _SCORES_AT_A_TIME = 1024, 1 << 25


def measure_mixture(
    models: Sequence[Classifier],
    dataset: Dataset,
    *,
    loss: Any,
    shares: csr_array | None = None,
    weight: float = 0.0,
) -> dict[str, float]:
    """Ranking metrics by ``mean_m p_m(c | x) + weight share(c | x)``.

    Args:
        models: of the same data.
        dataset: the models are measured on its test set.
        loss: that the models were trained with: after ``one_vs_all`` p is the sigmoid, after others the softmax.
        shares: of ``neighbour_shares``.
        weight: of the shares.

    Returns:
        What ``ranking_metrics`` returns.
    """
    size = max(1, min(_MOST_EXAMPLES, len(dataset.test), _SCORES_AT_A_TIME // dataset.num_classes))
    found = []
    for at in range(0, len(dataset.test), size):
        rows = slice(at, at + size)
        features = dataset.test.features[rows]
        each = [_probabilities(model.head(embedded(model, features)), loss) for model in models]
        scores = np.mean(each, axis=0)
        if shares is not None:
            scores = scores + weight * shares[rows].toarray()
        best = np.asarray(jax.lax.top_k(scores, min(max(KS), dataset.num_classes))[1])
        found.append(np.pad(best, ((0, 0), (0, max(KS) - best.shape[1])), constant_values=-1))
    return measure_ranking(dataset, np.concatenate(found))


def _probabilities(logits: Float[Array, "B num_classes"], loss: Any) -> Float[np.ndarray, "B num_classes"]:
    return np.asarray(jax.nn.sigmoid(logits) if loss is losses.one_vs_all else jax.nn.softmax(logits))
