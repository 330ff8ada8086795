"""Features whose inner products are positive kernels, and sums of features over many vectors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from candax.base import KeyArray, pytree

_EXACT = jax.lax.Precision.HIGHEST

# Exponents of random features are clipped to this far below the largest one and this far above it.
_BELOW, _ABOVE = -40.0, 10.0


@pytree
class RandomFeatures:
    """Directions, and for each the largest exponent among the classes when the index was built."""

    directions: Float[Array, "rank features"]
    largest: Float[Array, " features"]


class Features(NamedTuple):
    """A kernel k(h, x) = (features of h) . (features of x), above 0 for all h and x of length ``rank``.

    Attributes:
        number: ``(rank) -> int``: how many features there are.
        init: ``(key, rank, largest) -> tables``: ``largest(exponents)`` is the maximum over all classes of what
            ``exponents(x[n, rank])`` returns.
        of_query: ``(tables, h[B, rank]) -> [B, features]``: features of h, up to a positive factor for each example.
        summed: ``(tables, x[n, m, rank], real[n, m]) -> [n, features]``: summed over those of the m that are real.
        weights: ``(tables, f[G, features], x[G, n, rank]) -> [G, n]``: f . (features of x).
    """

    number: Callable[[int], int]
    init: Callable[[KeyArray, int, Callable[[Callable[[Array], Array]], Array]], Any]
    of_query: Callable[[Any, Float[Array, "B rank"]], Float[Array, "B features"]]
    summed: Callable[[Any, Float[Array, "n m rank"], Bool[Array, "n m"]], Float[Array, "n features"]]
    weights: Callable[[Any, Float[Array, "G features"], Float[Array, "G n rank"]], Float[Array, "G n"]]


def quadratic(alpha: float) -> Features:
    """k(h, x) = alpha (h . x)^2 + 1: a one, and the upper half of x x^T; for h times alpha, doubled off its diagonal.

    Example:
        >>> import jax.numpy as jnp
        >>> features = quadratic(2.0)
        >>> f = features.of_query((), jnp.array([[1.0, 2.0]]))
        >>> x = jnp.array([[[3.0, 1.0], [0.0, 0.0]]])
        >>> features.weights((), f, x).tolist(), float(jnp.sum(f * features.summed((), x, jnp.ones((1, 2), bool))))
        ([[51.0, 1.0]], 52.0)
    """

    def pairs(rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows, columns = np.triu_indices(rank)
        return rows, columns, np.where(rows == columns, 1.0, 2.0).astype(np.float32)

    def of_query(tables: Any, h: Float[Array, "B rank"]) -> Float[Array, "B features"]:
        rows, columns, twice = pairs(h.shape[1])
        return jnp.concatenate([alpha * twice * h[:, rows] * h[:, columns], jnp.ones((h.shape[0], 1))], axis=1)

    def summed(tables: Any, x: Float[Array, "n m rank"], real: Bool[Array, "n m"]) -> Float[Array, "n features"]:
        rows, columns, _ = pairs(x.shape[2])
        x = jnp.where(real[..., None], x, 0.0)
        moments = jnp.einsum("nmr,nmq->nrq", x, x, precision=_EXACT)[:, rows, columns]
        return jnp.concatenate([moments, jnp.sum(real, axis=1, keepdims=True, dtype=jnp.float32)], axis=1)

    def weights(tables: Any, f: Float[Array, "G features"], x: Float[Array, "G n rank"]) -> Float[Array, "G n"]:
        rank = x.shape[2]
        rows, columns, twice = pairs(rank)
        place = np.zeros((rank, rank), np.int32)
        place[rows, columns] = place[columns, rows] = np.arange(len(rows))
        form = (f[:, :-1] / twice)[:, place]
        squared = jnp.sum(jnp.einsum("gnr,grq->gnq", x, form, precision=_EXACT) * x, axis=2)
        return jnp.maximum(squared, 0.0) + f[:, -1:]

    return Features(lambda rank: rank * (rank + 1) // 2 + 1, lambda key, rank, largest: (), of_query, summed, weights)


def positive(num_features: int) -> Features:
    """k(h, x) near exp(h . x): features exp(+-v . x - |x|^2 / 2) in random directions v, always above 0.

    Source: Choromanski et al., Rethinking Attention with Performers (2021), lemma 1, the "hyperbolic" form.
    """

    def exponents(directions: Float[Array, "rank features"], x: Float[Array, "*n rank"]) -> Float[Array, "*n features"]:
        return x @ directions - 0.5 * jnp.sum(x * x, axis=-1, keepdims=True)

    def init(key: KeyArray, rank: int, largest: Callable[[Callable[[Array], Array]], Array]) -> RandomFeatures:
        half = jax.random.normal(key, (rank, -(-num_features // 2)))
        directions = jnp.concatenate([half, -half], axis=1)[:, :num_features]
        return RandomFeatures(directions, largest(lambda x: exponents(directions, x)))

    def of_query(tables: RandomFeatures, h: Float[Array, "B rank"]) -> Float[Array, "B features"]:
        # The length of h would be a common factor of all features, so it is left out.
        exponent = h @ tables.directions + tables.largest
        return jnp.exp(jnp.maximum(exponent - jnp.max(exponent, axis=1, keepdims=True), _BELOW))

    def of_class(tables: RandomFeatures, x: Float[Array, "*n rank"]) -> Float[Array, "*n features"]:
        return jnp.exp(jnp.clip(exponents(tables.directions, x) - tables.largest, _BELOW, _ABOVE))

    def summed(
        tables: RandomFeatures, x: Float[Array, "n m rank"], real: Bool[Array, "n m"]
    ) -> Float[Array, "n features"]:
        return jnp.sum(jnp.where(real[..., None], of_class(tables, jnp.where(real[..., None], x, 0.0)), 0.0), axis=1)

    def weights(
        tables: RandomFeatures, f: Float[Array, "G features"], x: Float[Array, "G n rank"]
    ) -> Float[Array, "G n"]:
        return jnp.einsum("gnf,gf->gn", of_class(tables, x), f, precision=_EXACT)

    return Features(lambda rank: num_features, init, of_query, summed, weights)
