"""Metrics of face recognition, on identities that were not trained on: verification of pairs, rank-1 identification."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from sklearn.metrics import roc_curve
from sklearn.model_selection import StratifiedKFold

from candax.base import Classes
from candax.blocks import DEFAULT_BLOCK_SIZE, streaming_top_k
from candax.checks import checked

# The number of probes that are compared with all distractors at a time.
_PROBES = 1024


class Verification(NamedTuple):
    """Accuracy over the folds: its mean and standard deviation."""

    mean: float
    std: float


@checked
def cosines(left: Float[np.ndarray, "N dim"], right: Float[np.ndarray, "N dim"]) -> Float[np.ndarray, " N"]:
    """The cosine of each pair of rows; 0 where one of them is zero.

    Example:
        >>> cosines(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 0.0]])).tolist()
        [0.96, 0.0]
    """
    length = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.einsum("nd,nd->n", left, right) / np.where(length > 0, length, 1)


@checked
def verification(
    similarity: Float[np.ndarray, " N"], same: Bool[np.ndarray, " N"], *, num_folds: int = 10
) -> Verification:
    """How often a threshold on the similarity tells pairs of one identity from pairs of two.

    The pairs are cut into folds with equal shares of both kinds, in their order. For every fold, the threshold that is
    most accurate on the other folds is taken (the highest of several; a pair counts as same from the threshold on), and
    its accuracy on the fold is measured.

    Args:
        similarity: of each pair, higher for more alike.
        same: whether each pair is of one identity.
        num_folds: the number of folds.

    Returns:
        ``Verification(mean, std)`` over the folds.

    Raises:
        ValueError: if there are fewer than 2 folds, or fewer pairs of either kind than folds.

    Example:
        >>> similarity = np.array([0.9, 0.1, 0.8, 0.2, 0.7, 0.75])
        >>> same = np.array([True, False] * 3)
        >>> round(verification(similarity, same, num_folds=3).mean, 3)
        0.667

    Source: the protocol of Huang et al., Labeled Faces in the Wild (2007).
    """
    fewest = min(int(same.sum()), int((~same).sum()))
    if not 2 <= num_folds <= fewest:
        raise ValueError(
            f"expected 2 <= num_folds <= {fewest}, the number of pairs of the rarer kind (same or different), got "
            f"{num_folds}."
        )
    accuracies = []
    for others, fold in StratifiedKFold(num_folds).split(similarity, same):
        wrong, right, thresholds = roc_curve(same[others], similarity[others], drop_intermediate=False)
        positives = same[others].sum()
        number_right = right * positives + (1 - wrong) * (len(others) - positives)
        # Rates are quotients: equal numbers may differ by rounding.
        best = thresholds[np.argmax(np.round(number_right))]
        accuracies.append(np.mean((similarity[fold] >= best) == same[fold]))
    return Verification(float(np.mean(accuracies)), float(np.std(accuracies)))


@checked
def rank_1(
    probes: Float[np.ndarray, "N dim"],
    mates: Float[np.ndarray, "N dim"],
    distractors: Float[np.ndarray, "M dim"],
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> float:
    """The share of probes nearer to their mate, another sample of the same identity, than to every distractor.

    Nearer means a larger cosine; a distractor that is just as near counts against the probe.

    Args:
        probes: embeddings, of any length other than 0.
        mates: for each probe, the embedding of another sample of its identity.
        distractors: embeddings of other identities.
        block_size: the most distractors compared at a time.

    Returns:
        The share, from 0 to 1.

    Example:
        >>> probes, mates = np.eye(2, dtype=np.float32), np.array([[2, 1], [1, 1]], np.float32)
        >>> rank_1(probes, mates, np.array([[1, 2]], np.float32))
        0.5

    Source: identification in Kemelmacher-Shlizerman et al., The MegaFace Benchmark (2016), at rank 1.
    """
    if not len(probes):
        raise ValueError("expected probes, got none: there is nothing of which to give a share.")
    if not len(distractors):
        raise ValueError("expected distractors, got none: without them every probe is identified.")
    gallery = Classes(jnp.asarray(distractors), None, None, jnp.int32(len(distractors)), normalized=True)
    found = 0
    for start in range(0, len(probes), _PROBES):
        some, others = probes[start : start + _PROBES], mates[start : start + _PROBES]
        unit = some / np.linalg.norm(some, axis=1, keepdims=True)
        _, nearest = streaming_top_k(jnp.asarray(unit), gallery, 1, block_size=block_size)
        # By one formula for both, so that equal embeddings are exact ties: a model that gives only one finds nobody.
        found += int(np.sum(cosines(some, others) > cosines(some, distractors[np.asarray(nearest)[:, 0]])))
    return found / len(probes)
