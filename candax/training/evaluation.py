"""Exact evaluation over all classes: log-likelihood and ranking metrics of a whole test set."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Integer
from scipy.sparse import csr_array

from candax.base import Classes
from candax.blocks import DEFAULT_BLOCK_SIZE, Transform, accumulator_dtype, streaming_evaluate
from candax.checks import checked
from candax.cosines import as_scored
from candax.data import Batches, Dataset, Examples, evaluation_batches
from candax.models.classifier import Classifier
from candax.models.output_layer import evaluate_sharded, mesh_of
from candax.training.metrics import KS, inverse_propensities, nonzero_pattern, ranking_metrics
from candax.training.trainer import Graph

_SMALLEST_BUCKET = 256

_evaluate_batch = jax.jit(streaming_evaluate, static_argnums=2, static_argnames=("block_size", "transform"))


@checked
def embed(model: nnx.Module, batch: Any) -> Array:
    """``model(batch)`` in evaluation mode, compiled once per structure of the model; the model itself is not changed.

    Args:
        model: any module.
        batch: what it is called with.

    Returns:
        Embeddings.

    Example:
        >>> import candax as cx
        >>> embed(cx.Embed(10, 4, rngs=nnx.Rngs(0)), jnp.arange(3)).shape
        (3, 4)
    """
    graph, arrays = nnx.split(model)
    return _embed(Graph(graph), arrays, batch)


@partial(jax.jit, static_argnums=0)
def _embed(graph: Graph, arrays: Any, batch: Any) -> Array:
    model = nnx.merge(graph.graph, arrays)
    model.eval()
    return model(batch)


@checked
def evaluate(
    embed_fn: Callable[[Any], Float[Array, "B dim"]],
    classes: Classes,
    batches: Iterable[tuple[Any, slice | Integer[np.ndarray, " n"]]],
    labels_csr: csr_array,
    label_counts: Integer[np.ndarray, " num_labels"] | Float[np.ndarray, " num_labels"],
    num_train: int,
    *,
    k: int = 5,
    block_size: int = DEFAULT_BLOCK_SIZE,
    propensity_a: float = 0.55,
    propensity_b: float = 1.5,
    transform: Transform | None = None,
) -> dict[str, float]:
    """Exact log-likelihood, P@k, nDCG@k and PSP@k, in one pass over the classes for each batch.

    log_likelihood = mean over examples of (1 / |Y|) sum_{y in Y} log p(y | x), with
    log p(y | x) = o_y - log sum_{c < num_valid} exp(o_c) and o_c = transform(embedding . vectors_c + biases_c). Its
    negative is the mean of ``full_softmax``, of those transformed logits. Examples without labels are excluded from
    every number. With a normalised head, o_c is the cosine, without a scale: the ranking metrics are valid, but the
    log-likelihood says little.

    Args:
        embed_fn: the encoder, from the first item of a batch to embeddings. It should be jitted already.
        classes: the output layer; where its rows are sharded over devices, each device ranks its own.
        batches: pairs of what ``embed_fn`` takes and the rows of ``labels_csr`` that belong to it: a slice, or an array
            of row numbers. A batch may have more embeddings than rows, the rest being filler at its end. Rows that are
            in no batch are not evaluated.
        labels_csr: ``[N, num_labels]``, nonzero at the true classes, ``num_labels <= num_valid``.
        label_counts: how many training examples have each label, for the propensities of PSP@k.
        num_train: the number of training examples, also for the propensities.
        k: how many classes to rank; metrics are reported at 1, 3 and 5, as far as these are at most k.
        block_size: the most classes scored at a time.
        propensity_a: A of ``inverse_propensities``.
        propensity_b: B of ``inverse_propensities``.
        transform: of each logit, as in ``cx.Head``; None: none.

    Returns:
        ``log_likelihood``, ``p_at_1``, ``p_at_3``, ``p_at_5``, the same for ``ndcg`` and ``psp``, as fractions, and
        ``num_examples``, the number of evaluated examples that have labels.

    Raises:
        ValueError: if there are labels beyond the valid classes, label counts do not match, a batch has fewer
            embeddings than rows, or there is no batch.

    Example:
        >>> classes = Classes(jnp.eye(8), None, None, jnp.array(8))
        >>> batches = [(np.eye(8, dtype=np.float32)[:4], slice(0, 4)), (np.eye(8, dtype=np.float32)[4:], slice(4, 8))]
        >>> metrics = evaluate(jnp.asarray, classes, batches, csr_array(np.eye(8)), np.ones(8), 8)
        >>> metrics["p_at_1"], round(metrics["log_likelihood"], 4)  # 1 - log(e + 7)
        (1.0, -1.274)
    """
    num_valid, over = int(classes.num_valid), mesh_of(classes)
    if labels_csr.shape[1] > num_valid:
        raise ValueError(
            f"expected labels below {num_valid}, the number of valid classes, got labels_csr with "
            f"{labels_csr.shape[1]} columns. Train and test sets must share one label space."
        )
    if len(label_counts) != labels_csr.shape[1]:
        raise ValueError(f"expected one count for each of {labels_csr.shape[1]} labels, got {len(label_counts)}.")
    inverse = inverse_propensities(label_counts, num_train, a=propensity_a, b=propensity_b)
    labels_csr = nonzero_pattern(labels_csr)
    all_top_ids, all_rows, log_likelihoods = [], [], []
    for inputs, which in batches:
        rows = np.arange(labels_csr.shape[0])[which]
        embeddings = embed_fn(inputs)
        if embeddings.shape[0] < len(rows):
            raise ValueError(f"expected an embedding for each of {len(rows)} rows, got {embeddings.shape[0]}.")
        if over is None:
            scores, ids, log_normalizer = _evaluate_batch(
                embeddings, classes, k, block_size=block_size, transform=transform
            )
        else:
            scores, ids, log_normalizer = evaluate_sharded(
                embeddings, classes, mesh=over[0], axis=over[1], k=k, block_size=block_size, transform=transform
            )
        truth = labels_csr[rows]
        true_logits = _true_logits(embeddings, classes, truth, transform)
        n = len(rows)
        # A class without a column is nobody's label: a miss, as is a slot without a class.
        judged = (np.asarray(scores) > -np.inf) & (np.asarray(ids) < labels_csr.shape[1])
        all_top_ids.append(np.where(judged, ids, -1)[:n])
        all_rows.append(rows)
        log_likelihoods.append(_mean_per_row(true_logits, truth) - np.asarray(log_normalizer, np.float64)[:n])

    if not all_rows:
        raise ValueError("expected at least one batch to evaluate, got none.")
    labels = labels_csr[np.concatenate(all_rows)]
    labelled = np.diff(labels.indptr) > 0
    metrics = ranking_metrics(np.concatenate(all_top_ids), labels, inverse, ks=tuple(x for x in KS if x <= k))
    log_likelihood = np.concatenate(log_likelihoods)[labelled]
    return {"log_likelihood": float(log_likelihood.mean()) if labelled.any() else float("nan"), **metrics}


@checked
def evaluate_dataset(
    model: Classifier,
    dataset: Dataset,
    batches: Batches,
    *,
    rows: Int[np.ndarray, " n"] | None = None,
    batch_size: int = 1024,
) -> dict[str, float]:
    """Exact log-likelihood, P@k, nDCG@k and PSP@k over all classes, on the test set or some rows of it.

    Args:
        model: an encoder of the data set's examples and a head.
        dataset: the data that the model was trained on.
        batches: the training batches, whose number of feature slots is used here too.
        rows: which rows of the test set; None: all of them.
        batch_size: examples scored at a time.

    Returns:
        What ``candax.training.evaluate`` returns.
    """
    test = dataset.test
    if rows is not None:
        test = Examples(test.features[rows], test.labels[rows])
    return evaluate(
        partial(embed, model),
        model.head.whole(),
        evaluation_batches(test, min(batch_size, max(1, len(test))), batches.max_features, max_labels=1),
        test.labels,
        dataset.label_counts(dataset.train),
        len(dataset.train),
        transform=model.head.transform,
    )


@partial(jax.jit, static_argnames="transform")
def _pair_logits(
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    rows: Int[Array, " P"],
    ids: Int[Array, " P"],
    transform: Transform | None,
) -> Float[Array, " P"]:
    dtype = accumulator_dtype(embeddings, classes)
    vectors = as_scored(classes.vectors[ids], classes.normalized).astype(dtype)
    logits = jnp.sum(as_scored(embeddings[rows], classes.normalized).astype(dtype) * vectors, axis=1)
    logits = logits if classes.biases is None else logits + classes.biases[ids]
    return logits if transform is None else transform(logits)


def _true_logits(
    embeddings: Array, classes: Classes, truth: csr_array, transform: Transform | None
) -> Float[np.ndarray, " nnz"]:
    """The logit of every (example, label) pair; the pairs are filled up to a power of two, for few compilations."""
    size = max(1 << max(truth.nnz - 1, 0).bit_length(), _SMALLEST_BUCKET)
    pairs = np.zeros((2, size), np.int32)
    pairs[0, : truth.nnz] = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr))
    pairs[1, : truth.nnz] = truth.indices
    return np.asarray(_pair_logits(embeddings, classes, *pairs, transform), np.float64)[: truth.nnz]


def _mean_per_row(values: Float[np.ndarray, " nnz"], truth: csr_array) -> Float[np.ndarray, " n"]:
    """Mean of the values of each row of ``truth``; 0 for an empty row."""
    counts = np.diff(truth.indptr)
    sums = np.bincount(np.repeat(np.arange(len(counts)), counts), values, minlength=len(counts))
    return sums / np.maximum(counts, 1)
