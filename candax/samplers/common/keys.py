"""What an index compares: class vectors and embeddings as the head scores them, or extended by bias and length."""

from typing import Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from candax.base import Classes
from candax.cosines import as_scored

Near: TypeAlias = Literal["vector", "logit"]

# Biases that the median is taken of.
_SOME = 4096
# A bias is far below the others if its distance from the median is so many times that of the largest one, and so many
# times the longest vector.
_FAR = 8.0


def longest_key(classes: Classes, near: Near) -> Float[Array, ""] | None:
    """M = max of sqrt(|w|^2 + b^2) over the valid classes whose bias is not far below the others.

    A bias of -1e9 or -inf says that a class is never to be predicted. With M = 1e9 all others would be in one place.
    None where keys are the vectors: near by vector, or logits that are cosines, for which near by logit is the same.
    """
    if near == "vector" or classes.normalized:
        return None
    vectors = classes.vectors
    squared = jnp.einsum("cd,cd->c", vectors, vectors, preferred_element_type=jnp.float32)
    counted = jnp.arange(classes.num_classes) < classes.num_valid
    if classes.biases is not None:
        biases = classes.biases.astype(jnp.float32)
        known = jnp.where(counted & (biases > -jnp.inf), biases, jnp.nan)
        middle = jnp.nanmedian(known[:: max(1, classes.num_classes // _SOME)])
        usual = jnp.maximum(jnp.nanmax(known) - middle, jnp.sqrt(jnp.max(jnp.where(counted, squared, 0.0))))
        counted &= ~(biases < middle - _FAR * usual)
        squared += biases * biases
    return jnp.sqrt(jnp.max(jnp.where(counted, squared, 0.0)))


def class_keys(
    vectors: Float[Array, "*n dim"], biases: Float[Array, "*n"] | None, longest: Float[Array, ""] | None
) -> Float[Array, "*n width"]:
    """The vectors w, or with M = ``longest``: (w, b, sqrt(M^2 - |w|^2 - b^2)), all of length M.

    The angle between these and ``query_keys`` falls as the logit e . w + b rises. Biases below -M count as -M.

    Args:
        vectors: as the head scores them.
        biases: None stands for zeros; unused without ``longest``.
        longest: None: keys are the vectors.

    Returns:
        float32.

    Example:
        >>> import jax.numpy as jnp
        >>> class_keys(jnp.array([[3.0, 0.0]]), jnp.array([0.0]), jnp.float32(5)).tolist()
        [[3.0, 0.0, 0.0, 4.0]]

    Source: Neyshabur and Srebro, On Symmetric and Asymmetric LSHs for Inner Product Search (2015).
    """
    vectors = vectors.astype(jnp.float32)
    if longest is None:
        return vectors
    biases = jnp.zeros(vectors.shape[:-1]) if biases is None else jnp.maximum(biases.astype(jnp.float32), -longest)
    squared = jnp.sum(vectors * vectors, axis=-1) + biases * biases
    rest = jnp.sqrt(jnp.maximum(longest * longest - squared, 0.0))
    return jnp.concatenate([vectors, biases[..., None], rest[..., None]], axis=-1)


def query_keys(embeddings: Float[Array, "*n dim"], classes: Classes, extended: bool) -> Float[Array, "*n width"]:
    """The embeddings e as the head scores them, or (e, 1, 0); float32."""
    embeddings = as_scored(embeddings.astype(jnp.float32), classes.normalized)
    if not extended:
        return embeddings
    ones = jnp.ones((*embeddings.shape[:-1], 1))
    return jnp.concatenate([embeddings, ones, 0 * ones], axis=-1)
