"""Full softmax, and any loss over all classes: the references that sampled losses are measured against."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Integer

from candax.alike import made_once
from candax.base import Classes, Loss, SampledLogits, labels_mask
from candax.blocks import Block, accumulator_dtype, block_logits, streaming_log_normalizer, walk
from candax.checks import check_positive, checked
from candax.cosines import as_scored, widened
from candax.runs import starts_of_runs


@checked
def full_softmax(
    embeddings: Float[Array, "B dim"], labels: Integer[Array, "B T"], classes: Classes, *, block_size: int | None = None
) -> Float[Array, " B"]:
    """Cross-entropy against all classes, each true class with target 1 / |Y|.

    With o_c = embeddings . vectors_c + biases_c (of a normalised head: the cosine, without a scale) and Y the labels
    of an example,

        loss = log sum_{c < num_valid} exp(o_c) - (1 / |Y|) sum_{y in Y} o_y,

    and 0 for an example without labels. The plain form keeps a ``[B, num_classes]`` array for the backward pass and
    holds two for a moment. The block form never holds one: its backward pass computes every block's logits again (four
    products of that size instead of three), which small blocks win back by staying in the processor's cache. Value and
    gradient at 256 x 200,000 classes x 128 on two CPU cores: plain 0.20 s with 410 MB of scratch, blocks of 8192
    0.20 s with 17 MB, blocks of 1024 or 32,768 0.27 s; differentiating ``logsumexp`` 0.36 s. Measure both where the
    plain form fits.

    Args:
        embeddings: one row per example.
        labels: int32 ids of the true classes, distinct within an example, padded with -1.
        classes: the output layer. Rows from ``num_valid`` on are ignored, whatever they hold. Narrow vectors (bfloat16)
            are multiplied with float32 accumulation; the plain form makes a float32 copy of them.
        block_size: the most classes scored at a time (8192 is a good choice), or None for the plain form.

    Returns:
        One loss per example, float32 (or wider, if the inputs are); NaN for a label that is out of range.
        Differentiable (reverse mode, once) with respect to ``embeddings``, ``classes.vectors`` and ``classes.biases``.

    Raises:
        ValueError: if ``block_size`` is not positive, or the arrays do not fit each other.

    Example:
        >>> classes = Classes(jnp.eye(4), None, None, jnp.array(4))
        >>> losses = full_softmax(jnp.zeros((2, 4)), jnp.array([[1, 3], [-1, -1]]), classes)
        >>> [round(float(loss), 4) for loss in losses]  # log 4, and nothing to predict
        [1.3863, 0.0]
    """
    _check_widths(embeddings, labels, classes)
    dtype = accumulator_dtype(embeddings, classes)
    embeddings, vectors = (as_scored(rows, classes.normalized) for rows in (embeddings, classes.vectors))
    labels = labels.astype(jnp.int32)
    embeddings = _without_unlabelled(embeddings, labels)
    loss = _full_softmax(block_size, dtype, embeddings, vectors, classes.biases, classes.num_valid, labels)
    return jnp.where(((labels < -1) | (labels >= classes.num_valid)).any(axis=1), jnp.nan, loss)


@checked
@made_once
def over_all_classes(loss: Loss, *, num_classes: int | None = None) -> Callable[..., Float[Array, " B"]]:
    """Makes of a loss on ``SampledLogits`` the loss that it approximates: every class is a candidate, of count 1.

    ``losses.over_all_classes(losses.with_margin(losses.arcface, losses.subset_softmax))`` is the full softmax with
    ArcFace; over ``subset_softmax`` (or ``css``) alone it is ``full_softmax`` by another way, slower and with several
    ``[B, num_classes]`` arrays in memory. For ``cx.Head`` with ``sampler=None``.

    Args:
        loss: any loss on ``SampledLogits``.
        num_classes: valid classes, for losses that use their number (``ranking``) and tables with padding rows; None:
            as many as the head has that it is given to, and as rows where it is called by itself.

    Returns:
        ``(embeddings, labels, classes) -> losses`` as ``full_softmax``: labels int32[B, T], and NaN for one that is
        out of range.

    Example:
        >>> classes = Classes(jnp.eye(4), None, None, jnp.array(4))
        >>> from candax import losses
        >>> full = losses.over_all_classes(losses.css)
        >>> [round(float(loss), 4) for loss in full(jnp.zeros((2, 4)), jnp.array([[1, 3], [-1, -1]]), classes)]
        [1.3863, 0.0]
    """
    check_positive("num_classes", num_classes, optional=True)
    return partial(_over_all_classes, loss, num_classes)


def of_number(loss: Callable[..., Any], num_classes: int) -> Callable[..., Any]:
    """A loss over all classes that is told their number, if it was made without it."""
    if isinstance(loss, partial) and loss.func is _over_all_classes and loss.args[1] is None:
        return partial(_over_all_classes, loss.args[0], num_classes)
    return loss


def scores_all_classes(loss: Callable[..., Any]) -> bool:
    """Whether a loss takes (embeddings, labels, classes) and no candidates."""
    return getattr(loss, "func", loss) in (full_softmax, _over_all_classes)


def _over_all_classes(
    loss: Loss,
    num_classes: int | None,
    embeddings: Float[Array, "..."],  # of shapes that are checked in words
    labels: Int[Array, "..."],
    classes: Classes,
    more_labels: Int[Array, "M 2"] | None = None,
) -> Float[Array, " B"]:
    _check_widths(embeddings, labels, classes)
    embeddings = _without_unlabelled(embeddings, labels)
    logits = all_classes_as_candidates(embeddings, labels, classes, num_classes=num_classes)
    if more_labels is not None:
        logits = _with_more_labels(logits, more_labels)
    return jnp.where(((labels < -1) | (labels >= classes.num_valid)).any(axis=1), jnp.nan, loss(logits))


def _check_widths(embeddings: Array, labels: Array, classes: Classes) -> None:
    """Raises ValueError for arrays whose axes do not fit each other."""
    width = classes.vectors.shape[1]
    if embeddings.ndim != 2 or embeddings.shape[1] != width or labels.ndim != 2 or len(labels) != len(embeddings):
        raise ValueError(
            f"expected embeddings [B, {width}], as wide as class vectors, and labels [B, T], -1 where there is none; "
            f"got {list(embeddings.shape)} and {list(labels.shape)}. One label per example is labels[:, None]."
        )


def _without_unlabelled(embeddings: Float[Array, "B dim"], labels: Int[Array, "B T"]) -> Float[Array, "B dim"]:
    """Zeros where there is no label: what stands there, NaN included, reaches no gradient."""
    return jnp.where(labels_mask(labels).any(axis=1)[:, None], embeddings, 0)


def _with_more_labels(logits: SampledLogits, more_labels: Int[Array, "M 2"]) -> SampledLogits:
    """With pairs of an example and one of its further labels; -1 pads."""
    examples, ids = more_labels.T
    rows = jnp.where((ids >= 0) & (examples >= 0), examples, len(logits.hits))  # pads lie beyond the batch
    return dataclasses.replace(
        logits,
        more_hits=jnp.zeros_like(logits.hits).at[rows, ids].set(True, mode="drop"),
        num_labels=jnp.sum(logits.true_mask, axis=1).at[rows].add(1, mode="drop"),
    )


def all_classes_as_candidates(
    embeddings: Float[Array, "B dim"], labels: Int[Array, "B T"], classes: Classes, *, num_classes: int | None = None
) -> SampledLogits:
    """What a loss sees when every class is a candidate, of expected count 1.

    Args:
        embeddings: one row per example.
        labels: ids of the true classes among those rows, padded with -1.
        classes: the output layer, or one device's shard of it.
        num_classes: valid classes, over all devices; None: as many as rows.

    Returns:
        ``SampledLogits`` with as many slots as rows, those of padding rows masked.
    """
    embeddings, vectors = (as_scored(rows, classes.normalized) for rows in (embeddings, classes.vectors))
    valid = jnp.arange(classes.num_classes) < classes.num_valid
    # What padding rows hold, NaN included, reaches no product: its gradient would be NaN.
    vectors = jnp.where(valid[:, None], vectors, 0)
    logits = jnp.matmul(embeddings, vectors.T, preferred_element_type=accumulator_dtype(embeddings, classes))
    if classes.biases is not None:
        logits += widened(jnp.where(valid, classes.biases, 0))[None]
    mask = labels_mask(labels)
    examples = jnp.arange(labels.shape[0])[:, None]
    hits = jnp.zeros(logits.shape, bool).at[examples, jnp.where(mask, labels, logits.shape[1])].set(True, mode="drop")
    return SampledLogits(
        true=jnp.take_along_axis(logits, jnp.maximum(labels, 0), axis=1),
        true_log_expected_count=jnp.zeros(labels.shape),
        true_mask=mask,
        sampled=logits,
        sampled_log_expected_count=jnp.zeros(logits.shape),
        sampled_mask=jnp.broadcast_to(valid, logits.shape),
        hits=hits,
        num_classes=classes.num_classes if num_classes is None else num_classes,
    )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _full_softmax(
    block_size: int | None,
    dtype: Any,
    embeddings: Array,
    vectors: Array,
    biases: Array | None,
    num_valid: Array,
    labels: Array,
) -> Array:
    return _forward(block_size, dtype, embeddings, vectors, biases, num_valid, labels)[0]


def _forward(
    block_size: int | None,
    dtype: Any,
    embeddings: Array,
    vectors: Array,
    biases: Array | None,
    num_valid: Array,
    labels: Array,
) -> tuple[Array, tuple[Any, ...]]:
    kept: tuple[Array, Array] | Array
    if block_size is None:
        logits = jnp.matmul(embeddings, vectors.T, preferred_element_type=dtype)
        logits = logits if biases is None else logits + widened(biases)[None]
        logits = jnp.where(jnp.arange(vectors.shape[0])[None] < num_valid, logits, -jnp.inf)
        largest = logits.max(axis=1)
        # Kept unnormalised: the division by their sum moves to [B] and [B, dim] arrays, so that the backward pass is
        # nothing but two products (measured: 0.55 of the time of differentiating logsumexp).
        exponentials = jnp.exp(logits - jnp.where(largest == -jnp.inf, 0, largest)[:, None])
        total = exponentials.sum(axis=1)
        log_normalizer = largest + jnp.log(total)
        kept = exponentials, total
    else:
        classes = Classes(vectors, biases, None, num_valid)
        log_normalizer = kept = streaming_log_normalizer(embeddings, classes, block_size=block_size)
    mean_true = jnp.sum(_target(labels, dtype) * _true_logits(dtype, embeddings, vectors, biases, labels), axis=1)
    loss = jnp.where(labels_mask(labels).any(axis=1), log_normalizer - mean_true, 0)
    return loss, (embeddings, vectors, biases, num_valid, labels, kept)


def _backward(
    block_size: int | None, dtype: Any, residuals: tuple[Any, ...], gradient: Array
) -> tuple[Array, Array, Array | None, None, None]:
    embeddings, vectors, biases, num_valid, labels, kept = residuals
    gradient = jnp.where(labels_mask(labels).any(axis=1), gradient, 0)
    if block_size is None:
        exponentials, total = kept
        scale = gradient / jnp.where(total > 0, total, 1)
        d_embeddings = scale[:, None] * _times_rows(exponentials, vectors, num_valid)
        d_vectors = jnp.matmul(exponentials.T, scale[:, None] * widened(embeddings), preferred_element_type=dtype)
        d_biases = scale @ exponentials
    else:
        classes = Classes(vectors, biases, None, num_valid)
        d_embeddings, d_vectors, d_biases = _block_gradients(block_size, dtype, embeddings, classes, kept, gradient)

    rows = jnp.where(labels_mask(labels), labels, vectors.shape[0])  # fillers lie beyond the table: dropped
    share = gradient[:, None] * _target(labels, dtype)
    d_embeddings -= jnp.einsum("bt,btd->bd", share, vectors[jnp.maximum(labels, 0)], preferred_element_type=dtype)
    d_true = (share[:, :, None] * widened(embeddings)[:, None, :]).reshape(rows.size, -1)
    d_vectors = _add_rows(d_vectors, rows.reshape(-1), -d_true.astype(dtype)).astype(vectors.dtype)
    if biases is None:
        return d_embeddings.astype(embeddings.dtype), d_vectors, None, None, None
    d_biases = _add_rows(d_biases, rows.reshape(-1), -share.reshape(-1)).astype(biases.dtype)
    return d_embeddings.astype(embeddings.dtype), d_vectors, d_biases, None, None


_full_softmax.defvjp(_forward, _backward)


def _add_rows(table: Float[Array, "C ..."], rows: Int[Array, " n"], terms: Float[Array, "n ..."]) -> Array:
    """Adds terms to rows of a table, all of a row's before they are rounded to the type of the table.

    A bfloat16 table that took them one by one would stop growing where a term is 1 / 256 of the sum.
    """
    if table.dtype != terms.dtype:
        order = jnp.argsort(rows)
        rows = rows[order]
        place = jnp.cumsum(starts_of_runs(rows), dtype=jnp.int32) - 1
        terms = jnp.zeros_like(terms).at[place].add(terms[order])
        rows = jnp.full_like(rows, table.shape[0]).at[place].set(rows)
    return table.at[rows].add(terms.astype(table.dtype), mode="drop")


def _target(labels: Int[Array, "B T"], dtype: Any) -> Float[Array, "B T"]:
    """1 / |Y| at the true classes, 0 at the padding."""
    mask = labels_mask(labels)
    return mask.astype(dtype) / jnp.maximum(mask.sum(axis=1, keepdims=True), 1).astype(dtype)


def _true_logits(dtype: Any, embeddings: Array, vectors: Array, biases: Array | None, labels: Array) -> Array:
    rows = jnp.maximum(labels, 0)
    logits = jnp.einsum("bd,btd->bt", embeddings, vectors[rows], preferred_element_type=dtype)
    return logits if biases is None else logits + widened(biases[rows])


def _times_rows(weights: Array, vectors: Array, num_valid: Array) -> Array:
    """``weights @ vectors`` where padding rows, of weight 0, may hold NaN; without padding rows no copy is made."""
    valid = (jnp.arange(vectors.shape[0]) < num_valid)[:, None]

    def product(vectors: Array) -> Array:
        return jnp.matmul(weights, vectors, preferred_element_type=weights.dtype)

    return lax.cond(
        num_valid >= vectors.shape[0], lambda: product(vectors), lambda: product(jnp.where(valid, vectors, 0))
    )


def _block_gradients(
    block_size: int, dtype: Any, embeddings: Array, classes: Classes, log_normalizer: Array, gradient: Array
) -> tuple[Array, Array, Array]:
    """Gradients of ``sum(gradient * log_normalizer)`` with respect to embeddings, vectors and biases."""
    scaled = gradient[:, None] * widened(embeddings)

    def visit(carry: tuple[Array, Array, Array], block: Block) -> tuple[Array, Array, Array]:
        d_embeddings, d_vectors, d_biases = carry
        probabilities = jnp.exp(block_logits(embeddings, block) - log_normalizer[:, None])
        probabilities = jnp.where(block.valid[None], probabilities, 0)
        # Rows that the last block shares with the one before are written twice, with the same values, but count once
        # in the embeddings' gradient.
        fresh_rows = jnp.where(block.fresh[:, None], block.vectors, 0)
        d_embeddings += jnp.matmul(probabilities, fresh_rows, preferred_element_type=dtype)
        rows = jnp.matmul(probabilities.T, scaled, preferred_element_type=dtype).astype(d_vectors.dtype)
        return (
            d_embeddings,
            lax.dynamic_update_slice_in_dim(d_vectors, rows, block.start, 0),
            lax.dynamic_update_slice_in_dim(d_biases, gradient @ probabilities, block.start, 0),
        )

    d_embeddings, d_vectors, d_biases = walk(
        classes,
        dtype,
        visit,
        (
            jnp.zeros(embeddings.shape, dtype),
            jnp.zeros_like(classes.vectors),
            jnp.zeros(classes.num_classes, dtype),
        ),
        block_size=block_size,
    )
    return gradient[:, None] * d_embeddings, d_vectors, d_biases
