"""Ranking metrics: cases worked by hand, and the definitions spelled out example by example on random data."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_array

from candax.training.metrics import inverse_propensities, nonzero_pattern, ranking_metrics


def test_worked_by_hand():
    """Three examples with 2, 1 and 4 labels, and one without."""
    labels = csr_array(
        np.array(
            [
                [1, 0, 1, 0, 0, 0],
                [0, 1, 0, 0, 0, 0],
                [1, 1, 0, 1, 1, 0],
                [0, 0, 0, 0, 0, 0],
            ]
        )
    )
    top_ids = np.array([[0, 1, 2], [0, 5, 1], [5, 3, 0], [0, 1, 2]])
    inverse_propensity = np.array([1.0, 2.0, 4.0, 3.0, 5.0, 7.0])
    metrics = ranking_metrics(top_ids, labels, inverse_propensity, ks=(1, 3))
    assert metrics["num_examples"] == 3
    # Hits by rank: 1 0 1, 0 0 1, 0 1 1.
    assert metrics["p_at_1"] == pytest.approx(1 / 3)
    assert metrics["p_at_3"] == pytest.approx((2 / 3 + 1 / 3 + 2 / 3) / 3)
    # Discounts 1, 1 / log2(3) = 0.6309298, 1/2.
    assert metrics["ndcg_at_1"] == pytest.approx(1 / 3)
    assert metrics["ndcg_at_3"] == pytest.approx((1.5 / 1.6309298 + 0.5 / 1 + 1.1309298 / 2.1309298) / 3, rel=1e-6)
    # Weights of hits: 1 0 4, 0 0 2, 0 3 1. Best attainable: 4 then 1; 2; 5, 3, 2 (then 1).
    assert metrics["psp_at_1"] == pytest.approx(1 / (4 + 2 + 5))
    assert metrics["psp_at_3"] == pytest.approx((5 + 2 + 4) / (5 + 2 + 10))


def test_perfect_ranking():
    """P@k stays below 1 where there are fewer than k labels; nDCG@k and PSP@k are 1."""
    labels = csr_array(np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]))
    top_ids = np.array([[1, 0, 2, 3, 4], [3, 0, 1, 2, 4]])
    metrics = ranking_metrics(top_ids, labels, np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert [metrics[f"p_at_{k}"] for k in (1, 3, 5)] == pytest.approx([1, 0.5, 0.3])
    assert [metrics[f"ndcg_at_{k}"] for k in (1, 3, 5)] == pytest.approx([1, 1, 1])
    assert [metrics[f"psp_at_{k}"] for k in (1, 3, 5)] == pytest.approx([1, 1, 1])


def definitions(top_ids, labels, inverse_propensity, k):
    """The repository's formulas, one example and one rank at a time."""
    precision, ndcg, psp, psp_best = [], [], 0.0, 0.0
    for predicted, row in zip(top_ids, labels, strict=True):
        true = set(np.flatnonzero(row).tolist())
        if not true:
            continue
        hits = [int(c) in true for c in predicted[:k]]
        precision.append(sum(hits) / k)
        dcg = sum(hit / math.log2(rank + 2) for rank, hit in enumerate(hits))
        ndcg.append(dcg / sum(1 / math.log2(rank + 2) for rank in range(min(k, len(true)))))
        psp += sum(inverse_propensity[c] for c, hit in zip(predicted, hits, strict=False) if hit)
        psp_best += sum(sorted((inverse_propensity[c] for c in true), reverse=True)[:k])
    return np.mean(precision), np.mean(ndcg), psp / psp_best


@pytest.mark.parametrize("seed", range(3))
def test_equals_definitions_on_random_data(seed):
    rng = np.random.default_rng(seed)
    n, num_classes = 60, 25
    dense = rng.random((n, num_classes)) < 0.15
    dense[7] = False
    top_ids = np.stack([rng.permutation(num_classes)[:5] for _ in range(n)])
    top_ids[3, 4] = -1
    dense[3, -1] = True  # a negative id must not wrap around to it
    inverse = inverse_propensities(dense.sum(axis=0), n)
    metrics = ranking_metrics(top_ids, csr_array(dense), inverse)
    assert metrics["num_examples"] == (dense.sum(axis=1) > 0).sum()
    for k in (1, 3, 5):
        expected = definitions(top_ids, dense, inverse, k)
        actual = [metrics[f"{name}_at_{k}"] for name in ("p", "ndcg", "psp")]
        assert actual == pytest.approx(expected, rel=1e-12)


def test_labels_may_be_stored_in_any_way():
    """Unsorted columns, entries stored twice, stored zeros and weights other than 1 change nothing."""
    messy = csr_array((np.array([2.0, 0.5, 0.5, 0.0]), np.array([3, 1, 1, 0]), np.array([0, 4])), shape=(1, 5))
    clean = csr_array(np.array([[0, 1, 0, 1, 0]]))
    top_ids = np.array([[0, 3, 1]])
    inverse = np.arange(1.0, 6.0)
    assert ranking_metrics(top_ids, messy, inverse, ks=(1, 3)) == ranking_metrics(top_ids, clean, inverse, ks=(1, 3))
    assert messy.nnz == 4  # the caller's matrix is left alone
    assert nonzero_pattern(messy).indices.tolist() == [1, 3]


def test_propensities_by_hand():
    """N = e^2 makes C = (B + 1)^A; then 1 / p = 1 + ((B + 1) / (N_l + B))^A."""
    counts = np.array([0, 1, 6])
    actual = inverse_propensities(counts, 7, a=0.5, b=1.0)
    c = (math.log(7) - 1) * math.sqrt(2)
    np.testing.assert_allclose(actual, [1 + c, 1 + c / math.sqrt(2), 1 + c / math.sqrt(7)], rtol=1e-14)
    assert actual.dtype == np.float64
    np.testing.assert_allclose(inverse_propensities(np.array([1]), 1000), [math.log(1000)])  # N_l = 1: C (B+1)^-A


def test_no_example_with_labels():
    metrics = ranking_metrics(np.zeros((2, 5), int), csr_array((2, 4)), np.ones(4))
    assert metrics.pop("num_examples") == 0
    assert all(math.isnan(value) for value in metrics.values())


def test_wrong_arguments_are_refused():
    labels = csr_array(np.eye(3))
    top_ids = np.zeros((3, 2), int)
    with pytest.raises(ValueError, match="labels of shape"):
        ranking_metrics(top_ids, labels, np.ones(4), ks=(1,))
    with pytest.raises(ValueError, match="every k within"):
        ranking_metrics(top_ids, labels, np.ones(3))
    with pytest.raises(ValueError, match=r"integer top_ids below 3, .* got 3"):
        ranking_metrics(top_ids + 3, labels, np.ones(3), ks=(1,))
    with pytest.raises(ValueError, match="num_train"):
        inverse_propensities(np.ones(3), 2)
    with pytest.raises(ValueError, match="expected b > 0"):
        inverse_propensities(np.array([0, 1]), 9, b=0.0)
    assert np.isfinite(inverse_propensities(np.array([2, 1]), 9, b=0.0)).all()
