"""Recall and nDCG over all items equal scikit-learn's and a loop's, with and without what a user has already."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.metrics import ndcg_score

import candax as cx
from candax.training.metrics import retrieval_metrics

N, NUM, DIM = 23, 50, 5


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    wants = rng.random((N, NUM)) < 0.08
    wants[:, 0] |= ~wants.any(axis=1)
    has = (rng.random((N, NUM)) < 0.2) & ~wants
    return rng.normal(size=(N, DIM)), rng.normal(size=(NUM, DIM)), wants, has


def asked(embeddings, size=10):
    for start in range(0, N, size):
        part = embeddings[start : start + size].astype(np.float32)
        yield np.pad(part, ((0, size - len(part)), (0, 0))), slice(start, start + len(part))


@pytest.mark.parametrize("excluding", [False, True])
def test_metrics_equal_scikit_learn_and_a_loop(problem, excluding):
    embeddings, vectors, wants, has = problem
    logits = embeddings @ vectors.T
    if excluding:
        logits[has] = -1e9
    classes = cx.Classes(jnp.asarray(vectors, jnp.float32), None, None, jnp.int32(NUM))
    metrics = cx.recipes.retrieval.evaluate_retrieval(
        jnp.asarray,
        cx.recipes.retrieval.exact_search(classes, block_size=16),
        asked(embeddings),
        csr_array(wants),
        ks=(1, 4, 10),
        exclude=csr_array(has) if excluding else None,
    )
    for k in (1, 4, 10):
        best = np.argsort(-logits, axis=1)[:, :k]
        recall = [wants[i, best[i]].sum() / wants[i].sum() for i in range(N)]
        assert metrics[f"recall_at_{k}"] == pytest.approx(np.mean(recall))
        assert metrics[f"ndcg_at_{k}"] == pytest.approx(ndcg_score(wants, logits, k=k))
    assert metrics["num_examples"] == N


def test_an_index_that_reads_everything_agrees_with_the_exact_search(problem):
    embeddings, vectors, wants, has = problem
    classes = cx.Classes(jnp.asarray(vectors, jnp.float32), None, None, jnp.int32(NUM))
    index = cx.samplers.ivf_index(num_centers=2, hm_num=NUM, num_kept=NUM)
    state = jax.jit(index.build)(jax.random.key(0), classes)
    searches = cx.recipes.retrieval.exact_search(classes), cx.recipes.retrieval.index_search(index, state, classes)
    first, second = (
        cx.recipes.retrieval.evaluate_retrieval(
            jnp.asarray, search, asked(embeddings), csr_array(wants), ks=(5,), exclude=csr_array(has)
        )
        for search in searches
    )
    assert first == second


@pytest.mark.parametrize("excluding", [False, True])
def test_a_class_that_no_label_can_name_is_a_miss_at_its_rank(excluding):
    found = np.array([[7, 1, 0, 2], [1, 0, 2, 7]])  # of 8 classes; the labels have columns for 3
    wants, has = csr_array(np.eye(3)[[0, 0]]), csr_array(np.eye(3)[[1, 2]])
    metrics = cx.recipes.retrieval.evaluate_retrieval(
        lambda rows: rows,
        lambda rows, k: (np.zeros((len(rows), k)), found[rows, :k]),
        [(np.arange(2), slice(None))],
        wants,
        ks=(1, 2, 3),
        exclude=has if excluding else None,
    )
    recalls = [metrics[f"recall_at_{k}"] for k in (1, 2, 3)]
    assert recalls == ([0, 1, 1] if excluding else [0, 0.5, 1])


def test_examples_without_labels_do_not_count_and_misfits_are_refused(problem):
    labels = csr_array(np.array([[1, 0, 0], [0, 0, 0], [0, 1, 1]]))
    metrics = retrieval_metrics(np.array([[0, 1], [0, 1], [2, -1]]), labels, ks=(1, 2))
    assert (metrics["recall_at_1"], metrics["recall_at_2"], metrics["num_examples"]) == (0.75, 0.75, 2)
    for number in (0, 1):
        none = retrieval_metrics(np.zeros((number, 1), int), csr_array((number, 3)), ks=(1,))
        assert np.isnan(none["recall_at_1"])
    with pytest.raises(ValueError, match=r"k within 1..2"):
        retrieval_metrics(np.array([[0, 1]] * 3), labels, ks=(3,))
    with pytest.raises(ValueError, match="labels of the 2 examples"):
        retrieval_metrics(np.array([[0, 1]] * 2), labels, ks=(1,))
    classes = cx.Classes(jnp.eye(3), None, None, jnp.int32(3))
    search = cx.recipes.retrieval.exact_search(classes)
    with pytest.raises(ValueError, match="at least one batch"):
        cx.recipes.retrieval.evaluate_retrieval(jnp.asarray, search, [], labels, ks=(1,))
    with pytest.raises(ValueError, match="exclude of the shape"):
        cx.recipes.retrieval.evaluate_retrieval(jnp.asarray, search, [], labels, ks=(1,), exclude=csr_array((3, 4)))
