"""Small problems for the tests of diagnostics."""

import jax.numpy as jnp
import numpy as np

import candax as cx


def problem(num_classes=40, dim=4, batch=6, num_labels=1, biases=True, padding=0):
    """Class vectors, embeddings and labels; rows beyond num_classes are padding, of NaN."""
    rng = np.random.default_rng(0)
    vectors = np.full((num_classes + padding, dim), np.nan, np.float32)
    vectors[:num_classes] = rng.normal(size=(num_classes, dim))
    of_class = np.concatenate([rng.normal(size=num_classes), np.full(padding, np.nan)]).astype(np.float32)
    embeddings = rng.normal(size=(batch, dim)).astype(np.float32)
    labels = np.stack([rng.permutation(num_classes)[:num_labels] for _ in range(batch)]).astype(np.int32)
    if num_labels > 1:
        labels[::2, -1] = -1
    classes = cx.Classes(jnp.asarray(vectors), jnp.asarray(of_class) if biases else None, None, jnp.int32(num_classes))
    return classes, embeddings, labels
