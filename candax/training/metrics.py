"""Ranking metrics of the Extreme Classification Repository: P@k, nDCG@k and PSP@k.

Definitions: Bhatia et al., "The Extreme Classification Repository" (http://manikvarma.org/downloads/XC/XMLRepository.html);
propensities: Jain, Prabhu and Varma (2016), "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking &
Other Missing Label Applications". Everything is float64 on the host, without loops over examples.
"""

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.sparse import csr_array

KS = (1, 3, 5)


def ranking_metrics(
    top_ids: Integer[np.ndarray, "N K"],
    labels: csr_array,
    inverse_propensity: Float[np.ndarray, " num_classes"],
    *,
    ks: tuple[int, ...] = KS,
) -> dict[str, float]:
    """P@k, nDCG@k and PSP@k of ranked predictions.

    With y_r in {0, 1} saying whether the class at rank r is one of the example's labels Y, and p its propensity:

        P@k    = mean of (1 / k) sum_{r <= k} y_r
        nDCG@k = mean of [sum_{r <= k} y_r / log2(r + 1)] / [sum_{r <= min(k, |Y|)} 1 / log2(r + 1)]
        PSP@k  = sum over examples of [sum_{r <= k} y_r / p_r]
                 / sum over examples of [the min(k, |Y|) largest 1 / p_y, y in Y, added up]

    P@k divides by k also where an example has fewer than k labels, so that 1 may be out of reach; nDCG@k and PSP@k
    compare with the best attainable ranking. Examples without labels are excluded.

    Args:
        top_ids: predicted classes in falling order of score, distinct within an example; a negative id is a miss.
        labels: ``[N, num_classes]``, nonzero at the true classes.
        inverse_propensity: 1 / p of every class, see ``inverse_propensities``.
        ks: which k to report, each at most K.

    Returns:
        ``p_at_k``, ``ndcg_at_k`` and ``psp_at_k`` for every k, as fractions (not per cent), and ``num_examples``, the
        number of examples with labels. All metrics are NaN if there is none.

    Raises:
        ValueError: if shapes disagree, a k is not in 1..K, or a predicted class is none of labels' columns.

    Example:
        >>> labels = csr_array(np.array([[1, 0, 0, 1], [0, 1, 0, 0]]))
        >>> metrics = ranking_metrics(np.array([[0, 1, 3], [2, 1, 0]]), labels, np.ones(4), ks=(1, 3))
        >>> {name: round(value, 4) for name, value in metrics.items() if name.startswith("p_")}
        {'p_at_1': 0.5, 'p_at_3': 0.5}
    """
    if labels.shape != (len(top_ids), len(inverse_propensity)):
        raise ValueError(
            f"expected labels of shape (examples of top_ids, classes of inverse_propensity) = "
            f"{(len(top_ids), len(inverse_propensity))}, got {labels.shape}."
        )
    labels, num_labels, hits = _judged(top_ids, labels, ks)
    labelled = num_labels > 0
    num_examples = float(labelled.sum())
    weights = np.where(hits, inverse_propensity[np.maximum(top_ids, 0)], 0.0)
    metrics: dict[str, float] = {}
    for k in ks:
        metrics[f"p_at_{k}"] = _ratio(hits[:, :k].sum() / k, num_examples)
    for k in ks:
        metrics[f"ndcg_at_{k}"] = _ratio(_ndcg(hits, num_labels, k)[labelled].sum(), num_examples)
    weight, rank = _ranked_weights(labels, inverse_propensity)
    for k in ks:
        metrics[f"psp_at_{k}"] = _ratio(weights[:, :k].sum(), float(weight[rank < k].sum()))
    metrics["num_examples"] = num_examples
    return metrics


def retrieval_metrics(
    top_ids: Integer[np.ndarray, "N K"], labels: csr_array, *, ks: tuple[int, ...] = (10, 100)
) -> dict[str, float]:
    """Recall@k and nDCG@k of ranked predictions.

    With y_r in {0, 1} saying whether the class at rank r is one of the example's labels Y:

        recall@k = mean of sum_{r <= k} y_r / |Y|
        nDCG@k   = as in ``ranking_metrics``

    With one label per example, recall@k is the share of examples whose label is among the first k (the hit rate).
    Examples without labels are excluded.

    Args:
        top_ids: predicted classes in falling order of score, distinct within an example; a negative id is a miss.
        labels: ``[N, num_classes]``, nonzero at the true classes.
        ks: which k to report, each at most K.

    Returns:
        ``recall_at_k`` and ``ndcg_at_k`` for every k, as fractions, and ``num_examples``, the number of examples with
        labels. All metrics are NaN if there is none.

    Raises:
        ValueError: if shapes disagree, a k is not in 1..K, or a predicted class is none of labels' columns.

    Example:
        >>> labels = csr_array(np.array([[1, 0, 0, 1], [0, 1, 0, 0]]))
        >>> retrieval_metrics(np.array([[0, 1], [2, 0]]), labels, ks=(2,))["recall_at_2"]
        0.25
    """
    if labels.shape[0] != len(top_ids):
        raise ValueError(f"expected labels of the {len(top_ids)} examples of top_ids, got {labels.shape[0]}.")
    labels, num_labels, hits = _judged(top_ids, labels, ks)
    labelled = num_labels > 0
    num_examples = float(labelled.sum())
    metrics: dict[str, float] = {}
    for k in ks:
        shares = hits[labelled, :k].sum(axis=1) / num_labels[labelled]
        metrics[f"recall_at_{k}"] = _ratio(shares.sum(), num_examples)
    for k in ks:
        metrics[f"ndcg_at_{k}"] = _ratio(_ndcg(hits, num_labels, k)[labelled].sum(), num_examples)
    metrics["num_examples"] = num_examples
    return metrics


def inverse_propensities(
    label_counts: Integer[np.ndarray, " num_classes"] | Float[np.ndarray, " num_classes"],
    num_train: int,
    *,
    a: float = 0.55,
    b: float = 1.5,
) -> Float[np.ndarray, " num_classes"]:
    """1 / p_l = 1 + C (N_l + B)^-A with C = (log N - 1) (B + 1)^A: the weight of a label in PSP@k.

    Args:
        label_counts: N_l, how many training examples have each label.
        num_train: N, the number of training examples.
        a: A. The repository uses .55, but .5 for Wikipedia and .6 for Amazon data sets.
        b: B. The repository uses 1.5, but .4 for Wikipedia and 2.6 for Amazon data sets.

    Returns:
        float64, above 1 and falling in N_l.

    Raises:
        ValueError: if there are fewer than 3 training examples: C would not be positive; with B = 0, for a label that
            none of them has: p_l would be 0.

    Example:
        >>> inverse_propensities(np.array([0, 10, 1000]), 1000).round(3).tolist()
        [8.824, 3.552, 1.219]

    Source: the propensity model of Jain, Prabhu and Varma (2016), as the repository states it.
    """
    if a < 0 or b < 0:
        raise ValueError(f"expected propensities with a >= 0 and b >= 0, got {a} and {b}.")
    if num_train < 3:
        raise ValueError(f"expected num_train >= 3 training examples, where log N > 1, got {num_train}.")
    if a > 0 and b == 0 and not np.all(label_counts):
        raise ValueError("expected b > 0 where no training example has some label, got 0: its propensity would be 0.")
    c = (np.log(num_train) - 1) * (b + 1) ** a
    return 1 + c * (np.asarray(label_counts, np.float64) + b) ** -a


def nonzero_pattern(labels: csr_array) -> csr_array:
    """A copy with True at the nonzero entries, each stored once, in the order of rows and columns.

    Example:
        >>> stored = csr_array((np.array([1.0, 0.0]), np.array([2, 0]), np.array([0, 2])), shape=(1, 3))
        >>> nonzero_pattern(stored).indices.tolist()
        [2]
    """
    labels = labels.astype(bool, copy=True)
    labels.sum_duplicates()
    labels.eliminate_zeros()
    return labels


def among(ids: Integer[np.ndarray, "N K"], pattern: csr_array) -> Bool[np.ndarray, "N K"]:
    """Whether each id is in its row of a pattern; False for ids without a column.

    Example:
        >>> among(np.array([[2, 0], [-1, 3]]), nonzero_pattern(csr_array(np.eye(2, 3)))).tolist()
        [[False, True], [False, False]]
    """
    found = (ids >= 0) & (ids < pattern.shape[1])
    if found.any():  # SciPy indexes by empty arrays in another form
        rows, ranks = np.nonzero(found)
        found[rows, ranks] = pattern[rows, ids[rows, ranks]]
    return found


def _judged(
    top_ids: Integer[np.ndarray, "N K"], labels: csr_array, ks: tuple[int, ...]
) -> tuple[csr_array, Integer[np.ndarray, " N"], Bool[np.ndarray, "N K"]]:
    """The labels, how many each example has, and which predictions are labels."""
    if not all(1 <= k <= top_ids.shape[1] for k in ks):
        raise ValueError(f"expected every k within 1..{top_ids.shape[1]}, the number of ranked classes, got {ks}.")
    if top_ids.dtype.kind not in "iu" or top_ids.max(initial=-1) >= labels.shape[1]:
        got = f"{top_ids.max()}" if top_ids.dtype.kind in "iu" else f"{top_ids.dtype}"
        raise ValueError(f"expected integer top_ids below {labels.shape[1]}, the number of classes, got {got}.")
    labels = nonzero_pattern(labels)
    return labels, np.diff(labels.indptr), among(top_ids, labels)


def _ndcg(hits: Bool[np.ndarray, "N K"], num_labels: Integer[np.ndarray, " N"], k: int) -> Float[np.ndarray, " N"]:
    """nDCG@k of every example; 0 without labels."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    best = np.cumsum(discounts)[np.clip(num_labels, 1, k) - 1]
    return hits[:, :k] @ discounts / best


def _ranked_weights(
    labels: csr_array, weights: Float[np.ndarray, " num_classes"]
) -> tuple[Float[np.ndarray, " nnz"], Integer[np.ndarray, " nnz"]]:
    """The weights of all labels, example by example in falling order, and their ranks within the example from 0 on."""
    counts = np.diff(labels.indptr)
    rows = np.repeat(np.arange(labels.shape[0]), counts)
    weight = weights[labels.indices]
    order = np.lexsort((-weight, rows))
    return weight[order], np.arange(labels.nnz) - np.repeat(labels.indptr[:-1], counts)


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator) / denominator if denominator else float("nan")
