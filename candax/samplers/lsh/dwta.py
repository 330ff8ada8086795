"""Densified winner-take-all: which of a few random coordinates is the largest."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from candax.alike import made_once
from candax.base import KeyArray
from candax.checks import checked
from candax.samplers.lsh.codes import HashFamily, mix

# An empty bin asks at most this many others. If one bin in 100 is filled, all asked are empty with probability 2e-6.
_ATTEMPTS = 1280


class Bins(NamedTuple):
    """The coordinates of each function, in rising order, and a salt for the bins that empty ones borrow from."""

    coordinates: Int[Array, "functions bin"]
    salt: UInt32[Array, ""]


def dwta_collision(x: Float[Array, "*g Q dim"], y: Float[Array, "*g n dim"], bin_size: int) -> Float[Array, "*g Q n"]:
    """Log collision probability of winner-take-all for all pairs of dense vectors, log sum_i C(R_i, m-1) / C(dim, m).

    R_i = #{j: x_j < x_i and y_j < y_i}: coordinate i wins the bin in both vectors if the others of the bin are among
    these. Of equal coordinates the one of lower index counts as larger, as it does for the codes. Costs O(dim^2) per
    pair, as ``dim`` matrix products.

    Args:
        x: vectors.
        y: vectors, with the same leading axes.
        bin_size: m.

    Returns:
        float32; -inf where no coordinate can win in both.

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[1.0, 3.0, 2.0]])
        >>> round(float(jnp.exp(dwta_collision(x, y, bin_size=2))[0, 0]), 4)  # two of the three pairs keep their order
        0.6667

    Source: derived from Yagnik et al., The Power of Comparative Reasoning (2011), section 3.
    """
    dim = x.shape[-1]
    j = jnp.arange(dim)

    def less(v: Float[Array, "*g n dim"], i: Array) -> Float[Array, "*g n dim"]:
        vi = jax.lax.dynamic_slice_in_dim(v, i, 1, axis=-1)
        return ((v < vi) | ((v == vi) & (j > i))).astype(jnp.float32)

    def add(i: Array, total: Float[Array, "*g Q n"]) -> Float[Array, "*g Q n"]:
        below = jnp.matmul(less(x, i), jnp.swapaxes(less(y, i), -1, -2), precision=jax.lax.Precision.HIGHEST)
        # C(R, m-1) / C(dim, m) as a product of ratios of like size: it neither overflows nor loses digits.
        wins = jnp.full(below.shape, bin_size / dim, jnp.float32)
        for k in range(bin_size - 1):
            wins = wins * jnp.maximum(below - k, 0.0) / (dim - 1 - k)
        return total + wins

    start = jnp.zeros((*x.shape[:-1], y.shape[-2]), jnp.float32)
    return jnp.log(jnp.minimum(jax.lax.fori_loop(0, dim, add, start), 1.0))


def _independent(key: KeyArray, dim: int, num_functions: int, bin_size: int) -> Int[Array, "functions bin"]:
    return jax.lax.top_k(jax.random.bits(key, (num_functions, dim)), bin_size)[1]


def _cut(key: KeyArray, dim: int, num_functions: int, bin_size: int) -> Int[Array, "functions bin"]:
    """As many permutations as needed, each cut into dim // bin_size disjoint bins."""
    bins = dim // bin_size
    permutations = _independent(key, dim, -(-num_functions // bins), dim)
    return permutations[:, : bins * bin_size].reshape(-1, bin_size)[:num_functions]


@checked
@made_once
def dwta(
    bin_size: int = 8, *, permutations: Literal["independent", "one"] = "independent", sparse: bool = False
) -> HashFamily:
    """Winner-take-all: a bin of m random coordinates, the value is the place of the largest (log2 m bits).

    Values depend on the order of the coordinates alone: no strictly increasing map of them changes a value. K functions
    give m^K buckets. Of equal coordinates the one of lower index wins.

    With ``sparse=True`` zeros are absent: the largest is taken among the nonzero coordinates of the bin, and a bin
    without any borrows the value of another bin, found by a hash of its own number (densification); the zero vector has
    all values 0. Nonzero coordinates may be negative; an increasing map must also keep zeros to change no value.

    Args:
        bin_size: m, a power of two of at least 2 and at most ``dim``.
        permutations: "independent": every function draws its own bin, and functions are independent given the vectors.
            "one": a permutation is cut into dim // m disjoint bins, and a new one drawn only when it is used up.
            The parameters are cheaper to draw and each function alone collides as before, but functions of the same
            permutation share no coordinate and so depend on each other: 1 - (1 - p^K)^L is then approximate.
        sparse: whether zeros are absent. The collision probability is then that of dense vectors, an approximation.

    Returns:
        A ``HashFamily``; its parameters are m * K * L numbers. It is ``exact`` if "independent" and not ``sparse``.

    Raises:
        ValueError: for a bin size that is no power of two; in ``init`` for one that exceeds ``dim``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> family = dwta(bin_size=4)
        >>> parameters = family.init(jax.random.key(0), 16, 5)
        >>> x = jnp.arange(16.0)[None]
        >>> bool(jnp.all(family.values(parameters, x) == family.values(parameters, jnp.exp(x))))
        True

    Source: Chen and Shrivastava, Densified Winner Take All (WTA) Hashing for Sparse Datasets (2018).
    """
    if bin_size < 2 or bin_size & (bin_size - 1):
        raise ValueError(f"expected bin_size to be a power of two >= 2, got {bin_size!r}.")

    def init(key: KeyArray, dim: int, num_functions: int) -> Bins:
        if bin_size > dim:
            raise ValueError(
                f"expected bin_size <= dim, got bins of {bin_size} of {dim} coordinates. Use smaller bins."
            )
        key_bins, key_salt = jax.random.split(key)
        draw = _independent if permutations == "independent" else _cut
        # In rising order, so that the first of the largest is the one of lower index in every bin.
        coordinates = jnp.sort(draw(key_bins, dim, num_functions, bin_size), axis=1).astype(jnp.int32)
        return Bins(coordinates, jax.random.bits(key_salt, (), jnp.uint32))

    def values(parameters: Bins, vectors: Float[Array, "n dim"]) -> UInt32[Array, "n functions"]:
        in_bins = vectors[:, parameters.coordinates]
        if not sparse:
            return jnp.argmax(in_bins, axis=-1).astype(jnp.uint32)
        there = in_bins != 0
        largest = jnp.argmax(jnp.where(there, in_bins, -jnp.inf), axis=-1).astype(jnp.uint32)
        return _borrow(largest, jnp.any(there, axis=-1), parameters.salt)

    return HashFamily(
        init,
        values,
        lambda x, y: dwta_collision(x, y, bin_size),
        num_bits=bin_size.bit_length() - 1,
        scratch=lambda dim, functions: functions * bin_size,
        exact=permutations == "independent" and not sparse,
        always_collides=False,
        made_by=("dwta", ("bin_size", bin_size), ("permutations", permutations), ("sparse", sparse)),
    )


def _borrow(
    values: UInt32[Array, "n functions"], filled: Bool[Array, "n functions"], salt: UInt32[Array, ""]
) -> UInt32[Array, "n functions"]:
    """Empty bins take the value of the first filled one among those that a hash of (bin, attempt) names."""
    functions = values.shape[1]
    bins = jnp.arange(functions, dtype=jnp.uint32)
    lends = jnp.any(filled, axis=1, keepdims=True)

    def missing(carry: tuple[Array, Any, Any]) -> Bool[Array, ""]:
        attempt, _, done = carry
        return (attempt < _ATTEMPTS) & ~jnp.all(done | ~lends)

    def ask(carry: tuple[Array, Any, Any]) -> tuple[Array, Any, Any]:
        attempt, found, done = carry
        lender = (mix(mix(bins ^ salt) + attempt) % jnp.uint32(functions)).astype(jnp.int32)
        found = jnp.where(done, found, values[:, lender])
        return attempt + 1, found, done | filled[:, lender]

    start = (jnp.uint32(0), jnp.where(filled, values, 0), filled)
    _, found, done = jax.lax.while_loop(missing, ask, start)
    return jnp.where(done, found, 0)
