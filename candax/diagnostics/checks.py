"""Checks of the arguments of a diagnosis, on the host."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from candax.base import Classes
from candax.diagnostics.methods import Method
from candax.losses.full import scores_all_classes


def check_data(classes: Classes, embeddings: Array | np.ndarray, labels: Array | np.ndarray) -> None:
    """Raises ValueError unless shapes match, labels are class ids, distinct and not missing, and numbers finite."""
    num_valid = int(classes.num_valid)
    if classes.vectors.ndim != 2 or embeddings.ndim != 2 or labels.ndim != 2:
        raise ValueError(
            "expected class vectors [num_classes, dim], embeddings [B, dim] and labels [B, T], got shapes "
            f"{classes.vectors.shape}, {embeddings.shape} and {labels.shape}."
        )
    if embeddings.shape[1] != classes.vectors.shape[1]:
        raise ValueError(
            f"expected embeddings of as many coordinates as class vectors, {classes.vectors.shape[1]}, got "
            f"{embeddings.shape[1]}."
        )
    if len(embeddings) != len(labels) or not len(labels):
        raise ValueError(f"expected one row of labels for each embedding, got {len(labels)} and {len(embeddings)}.")
    for name, length in (("biases", classes.biases), ("counts", classes.counts)):
        if length is not None and length.shape != classes.vectors.shape[:1]:
            raise ValueError(f"expected {name} of shape {classes.vectors.shape[:1]}, got {length.shape}.")
    if not 1 <= num_valid <= classes.num_classes:
        raise ValueError(f"expected num_valid from 1 to {classes.num_classes}, the class vectors, got {num_valid}.")
    valid = slice(num_valid)
    for name, values in (
        ("embeddings", embeddings),
        ("class vectors", classes.vectors[valid]),
        ("class biases", None if classes.biases is None else classes.biases[valid]),
    ):
        if values is not None and not bool(jnp.isfinite(values).all()):
            raise ValueError(f"expected finite {name}, got nan or infinity. Has training diverged?")
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise ValueError(f"expected integer labels, got {labels.dtype}.")
    if labels.size and (labels.min() < -1 or labels.max() >= num_valid):
        raise ValueError(
            f"expected labels from 0 to {num_valid - 1}, or -1 for padding, got {labels.min()} to {labels.max()}."
        )
    missing = np.flatnonzero(~(labels >= 0).any(axis=1))
    if len(missing):
        raise ValueError(f"expected a label for every example, got none for example {missing[0]}. Leave it out.")
    by_id = np.sort(labels, axis=1)
    repeated = np.flatnonzero(((by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)).any(axis=1))
    if len(repeated):
        raise ValueError(f"expected distinct labels, got one twice in example {repeated[0]}: {labels[repeated[0]]}.")


def check_settings(
    methods: Sequence[Method], num_sampled: Sequence[int], num_draws: int, top_k: int, num_valid: int
) -> None:
    """Raises ValueError for numbers out of range, and for methods or numbers of samples given twice."""
    if not methods or not num_sampled:
        raise ValueError(
            f"expected a method and a number of samples, got {len(methods)} methods, {len(num_sampled)} numbers."
        )
    for method in methods:
        if scores_all_classes(method.loss):
            raise ValueError(
                f"expected losses over sampled logits, got {method.name!r}, whose loss scores all classes: the exact "
                "softmax is what estimates are compared with."
            )
    names = [method.name for method in methods]
    for what, values in (("methods", names), ("numbers of samples", list(num_sampled))):
        if len(set(values)) < len(values):
            raise ValueError(f"expected distinct {what}, got {values}.")
    if min(num_sampled) < 1:
        raise ValueError(f"expected numbers of samples of 1 or more, got {list(num_sampled)}.")
    if num_draws < 4 or num_draws % 2:
        raise ValueError(f"expected an even num_draws of 4 or more (two halves, variances in each), got {num_draws}.")
    if not 1 <= top_k <= num_valid:
        raise ValueError(f"expected top_k from 1 to {num_valid}, the number of classes, got {top_k}.")
