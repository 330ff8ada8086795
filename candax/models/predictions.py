"""Predictions as a loss sees them: flat, checked, and where they do not count without labels and weights."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from candax.rows.lookups import integer_ids, report_ids

# From this many labels per prediction on, equal ones are found by sorting them instead of comparing all pairs.
_SORT_FROM = 64
# From this many classes on, labels whose last axis has an entry for each class are taken for one-hot arrays.
_ONE_HOT_FROM = 10

REDUCTIONS = ("mean", "sum", "none")


class Predictions(NamedTuple):
    """B predictions of any shape, flattened.

    Attributes:
        embeddings: zeros where a prediction does not count.
        labels: -1 pads, distinct within a prediction, all -1 where it does not count.
        weights: 0 where a prediction does not count.
        invalid: a label is out of range, so that the loss must be NaN.
        shape: of the predictions before.
        more_labels: pairs (prediction, class) of true classes that have no slot in ``labels``; both -1 in padding.
    """

    embeddings: Float[Array, "B dim"]
    labels: Int[Array, "B T"]
    weights: Float[Array, " B"]
    invalid: Bool[Array, " B"]
    shape: tuple[int, ...]
    more_labels: Int[Array, "M 2"] | None = None

    @property
    def num_labels(self) -> Int[Array, " B"] | None:
        """How many true classes each prediction has; None where none has more than ``labels`` has slots."""
        if self.more_labels is None:
            return None
        examples, ids = self.more_labels.T
        rows = jnp.where(ids >= 0, examples, self.labels.shape[0])
        return jnp.sum(self.labels >= 0, axis=1).at[rows].add(1, mode="drop")

    @property
    def counted(self) -> Bool[Array, " B"]:
        """Those that count: not masked, and with a label."""
        return (self.labels >= 0).any(axis=1) | self.invalid

    def reduce(self, losses: Float[Array, " B"], reduction: str) -> Array:
        """Losses as one number, or in the predictions' shape: with their weights, NaN where a label is out of range."""
        losses = jnp.where(self.invalid, jnp.nan, losses)
        weighted = jnp.where(self.counted, losses, 0) * self.weights
        if reduction == "none":
            return weighted.reshape(self.shape)
        total, weight = jnp.sum(weighted), jnp.sum(self.weights)
        return total if reduction == "sum" else total / jnp.where(weight > 0, weight, 1)


def predictions(
    embeddings: Any,
    labels: Any,
    *,
    num_classes: int | None,
    num_valid: Any,
    where: Any = None,
    weights: Any = None,
    are_distinct: bool = False,
    more_labels: Any = None,
) -> Predictions:
    """Checks and flattens what a loss is given, see ``cx.sampled_loss``; ValueError where types or shapes do not fit.

    ``num_classes`` are the rows of the output layer, and ``num_valid`` of them are classes. As many labels per
    prediction are taken for a one-hot array; with None, any number are ids. Labels that ``are_distinct`` within each
    prediction already keep their places.
    """
    embeddings, labels = jnp.asarray(embeddings), integer_ids(labels, "labels")
    if not jnp.issubdtype(embeddings.dtype, jnp.floating) or embeddings.ndim < 1:
        raise ValueError(
            f"expected floating-point embeddings [..., dim], got {embeddings.dtype}{list(embeddings.shape)}. Give what "
            "the model computes, not token ids."
        )
    shape = embeddings.shape[:-1]
    if labels.shape[: len(shape)] != shape or labels.ndim - len(shape) not in (0, 1):
        raise ValueError(
            f"expected labels of shape {list(shape)}, or {[*shape, 'T']} for T true classes per prediction, beside "
            f"embeddings of shape {list(embeddings.shape)}; got {list(labels.shape)}."
        )
    of_classes = num_classes is not None and num_classes >= _ONE_HOT_FROM
    if of_classes and labels.ndim > len(shape) and labels.shape[-1] == num_classes:
        raise ValueError(
            f"expected labels to be class ids, got an array of shape {list(labels.shape)} whose last axis is as long "
            "as there are classes. One-hot labels become ids by jnp.argmax(labels, axis=-1); ids of that many labels "
            "get one more column, of -1."
        )
    if labels.ndim > len(shape) and not labels.shape[-1]:
        raise ValueError(
            f"expected one place or more for labels, got {list(labels.shape)}: -1 says that there is no label."
        )
    labels = labels.reshape(-1, labels.shape[-1] if labels.ndim > len(shape) else 1)
    embeddings = embeddings.reshape(labels.shape[0], embeddings.shape[-1])
    mask = _flat_mask(where, shape)
    labels = jnp.where(mask[:, None], labels, -1)
    report_ids("labels", labels, num_valid)
    invalid = (labels < -1) | (labels >= num_valid)
    counts = (labels != -1).any(axis=1)
    invalid_examples = invalid.any(axis=1)
    if more_labels is not None and len(more_labels) == 0:
        more_labels = None
    if more_labels is not None:
        more_labels, invalid_examples = _check_more_labels(more_labels, num_valid, invalid_examples, mask)
    flat_weights = jnp.where(counts, _flat_weights(weights, shape, counts), 0)
    return Predictions(
        # Zeros before anything is computed of them: what stands there, NaN included, reaches no gradient.
        jnp.where(counts[:, None], embeddings, 0),
        jnp.where(invalid, -1, labels) if are_distinct else distinct(jnp.where(invalid, -1, labels)),
        flat_weights,
        invalid_examples,
        shape,
        more_labels,
    )


def _check_more_labels(
    more_labels: Any, num_valid: Any, invalid: Bool[Array, " B"], mask: Bool[Array, " B"]
) -> tuple[Int[Array, "M 2"], Bool[Array, " B"]]:
    """The pairs, -1 in place of padding and of those out of range, and which predictions are invalid by such a pair.

    Those of predictions that are masked are padding, whatever they hold.
    Where the prediction is out of range, it cannot be said which one was meant, and all are invalid.
    """
    pairs = integer_ids(more_labels, "more_labels")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(
            f"expected more_labels [M, 2], a prediction and a true class in each row, got {list(pairs.shape)}."
        )
    examples, ids = pairs.T
    if len(mask):  # JAX looks nothing up in an empty array
        counts = mask.at[examples].get(mode="fill", fill_value=True, wrap_negative_indices=False)
        ids = jnp.where(counts, ids, -1)
    report_ids("more_labels", ids, num_valid)
    padding = (examples == -1) | (ids == -1)
    elsewhere = ~padding & ((examples < 0) | (examples >= len(invalid)))
    wrong = ~padding & ((ids < 0) | (ids >= num_valid))
    rows = jnp.where(wrong & ~elsewhere, examples, len(invalid))
    invalid = invalid.at[rows].max(wrong, mode="drop") | (elsewhere.any() & mask)
    return jnp.where((padding | elsewhere | wrong)[:, None], -1, pairs), invalid


def distinct(labels: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Labels in which each class stands once per prediction: further ones are -1. Their order may change.

    Example:
        >>> import jax.numpy as jnp
        >>> distinct(jnp.array([[4, 7, 4, -1]])).tolist()
        [[4, 7, -1, -1]]
    """
    number = labels.shape[1]
    if number < 2:
        return labels
    if number < _SORT_FROM:
        earlier = jnp.arange(number)[:, None] > jnp.arange(number)
        again = jnp.any((labels[:, :, None] == labels[:, None, :]) & earlier, axis=2)
        return jnp.where(again, -1, labels)
    in_order = jnp.sort(labels, axis=1)
    again = jnp.pad(in_order[:, 1:] == in_order[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(again, -1, in_order)


def check_reduction(reduction: str) -> None:
    """Raises ValueError unless a reduction is one of ``REDUCTIONS``."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"expected reduction to be one of {', '.join(map(repr, REDUCTIONS))}, got {reduction!r}.")


def _flat_mask(where: Any, shape: tuple[int, ...]) -> Bool[Array, " B"]:
    if where is None:
        return jnp.ones(math.prod(shape), bool)
    mask = jnp.asarray(where)
    if mask.dtype != jnp.bool_ or mask.shape != shape:
        raise ValueError(
            f"expected where to be bool{list(shape)}, one entry per prediction, got {mask.dtype}{list(mask.shape)}. "
            "A mask of numbers becomes one of booleans by mask > 0; numbers that weigh predictions go to weights=."
        )
    return mask.reshape(-1)


def _flat_weights(weights: Any, shape: tuple[int, ...], counts: Bool[Array, " B"]) -> Float[Array, " B"]:
    if weights is None:
        return jnp.ones(math.prod(shape), jnp.float32)
    if isinstance(weights, np.ndarray) and weights.dtype.kind == "f" and np.any(weights < 0):
        raise ValueError(f"expected weights >= 0, got {np.nanmin(weights):g}.")
    given = jnp.asarray(weights)
    if not jnp.issubdtype(given.dtype, jnp.floating) or given.shape != shape:
        raise ValueError(
            f"expected weights to be float{list(shape)}, one per prediction, got {given.dtype}{list(given.shape)}. "
            "A mask goes to where=."
        )
    return jnp.where(counts, given.reshape(-1).astype(jnp.float32), 0)
