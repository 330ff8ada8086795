"""SimHash: the sign of a random projection."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from candax.alike import made_once
from candax.base import KeyArray
from candax.samplers.lsh.codes import HashFamily


def simhash_collision(x: Float[Array, "*g Q dim"], y: Float[Array, "*g n dim"]) -> Float[Array, "*g Q n"]:
    """Log collision probability of SimHash, log(1 - angle(x, y) / pi), for all pairs.

    The bit of a zero vector is always 1, so it collides with another vector with probability 1/2, and always with
    another zero vector. In float32, angles below about 4e-4 cannot be told from 0.

    Args:
        x: vectors.
        y: vectors, with the same leading axes.

    Returns:
        float32; -inf for opposite vectors.

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 2.0]])
        >>> [round(float(p), 3) for p in jnp.exp(simhash_collision(x, y))[0]]
        [1.0, 0.5]

    Source: Charikar, Similarity Estimation Techniques from Rounding Algorithms (2002), section 3.
    """

    def direction(v: Float[Array, "*g n dim"]) -> tuple[Float[Array, "*g n dim"], Bool[Array, "*g n"]]:
        v = v.astype(jnp.float32)
        # Scaled first: squares of tiny or huge coordinates would leave float32.
        largest = jnp.max(jnp.abs(v), axis=-1, keepdims=True)
        some = largest > 0
        v = jnp.where(some, v / jnp.where(some, largest, 1.0), 0.0)
        return v / jnp.where(some, jnp.linalg.norm(v, axis=-1, keepdims=True), 1.0), some[..., 0]

    (u, some_u), (v, some_v) = direction(x), direction(y)
    cosine = jnp.matmul(u, jnp.swapaxes(v, -1, -2), precision=jax.lax.Precision.HIGHEST)
    # Rounding must not make equal or opposite vectors a little less so: K and L magnify it.
    cosine = jnp.where(jnp.abs(cosine) > 1 - 4e-7, jnp.sign(cosine), cosine)
    neither = ~some_u[..., :, None] & ~some_v[..., None, :]
    return jnp.log1p(-jnp.arccos(jnp.where(neither, 1.0, cosine)) / jnp.pi)


@made_once
def simhash() -> HashFamily:
    """The sign of a random projection, one bit per function: 1 where g . x >= 0, g standard normal.

    Two vectors collide with probability 1 - angle / pi, so length plays no part: classes are found by direction, and
    the biases of the output layer are not seen. K functions give 2^K buckets.

    Returns:
        A ``HashFamily``; its parameters are dim * K * L numbers.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> family = simhash()
        >>> parameters = family.init(jax.random.key(0), 3, 5)
        >>> x = jnp.array([[0.3, -1.0, 2.0]])
        >>> bool(jnp.all(family.values(parameters, x) == family.values(parameters, 7 * x)))
        True

    Source: Charikar, Similarity Estimation Techniques from Rounding Algorithms (2002), section 3.
    """

    def init(key: KeyArray, dim: int, num_functions: int) -> Float[Array, "dim functions"]:
        return jax.random.normal(key, (dim, num_functions))

    def values(
        parameters: Float[Array, "dim functions"], vectors: Float[Array, "n dim"]
    ) -> UInt32[Array, "n functions"]:
        # Full precision, so that a vector has the same bits in a large batch and in a small one.
        projected = jnp.matmul(vectors.astype(jnp.float32), parameters, precision=jax.lax.Precision.HIGHEST)
        return (projected >= 0).astype(jnp.uint32)

    return HashFamily(
        init,
        values,
        simhash_collision,
        num_bits=1,
        scratch=lambda dim, functions: 2 * functions,
        exact=True,
        always_collides=True,
        made_by=("simhash",),
    )
