"""k-means: centres near the directions of many vectors, of length 1 (spherical), or near the vectors themselves."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import KeyArray
from candax.checks import check_positive
from candax.cosines import unit
from candax.samplers.common.thresholds import random_below

# Similarities of a block of points to all centres are held at a time: at most this many numbers.
_SCRATCH = 1 << 22
# k-means++ chooses among this many points per centre.
_START_POINTS = 4
# Half the squared distance of each point while there is no centre yet; float32 still holds the sum of 4 million.
_FAR = 1e30


class Points(NamedTuple):
    """Vectors that need not be in memory together.

    Attributes:
        take: ``ids[n] -> float32[n, width]``: vectors of any length; ids are below ``number``.
        number: how many there are.
        at_most: a static number, at least ``number``.
    """

    take: Callable[[Int[Array, " n"]], Float[Array, "n width"]]
    number: Int[Array, ""]
    at_most: int


def nearest(
    centers: Float[Array, "centers width"], vectors: Float[Array, "n width"], *, spherical: bool = True
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """The centre of largest inner product with each vector (the first of equal ones), and that product.

    Not ``spherical``: the nearest centre, and the product less half the squared length of the centre.
    """
    similar = vectors @ centers.T
    if not spherical:
        similar -= 0.5 * jnp.sum(centers * centers, axis=1)
    best = jnp.max(similar, axis=1)
    # Two plain reductions: several times quicker than argmax on a CPU.
    number = jnp.arange(centers.shape[0], dtype=jnp.int32)
    which = jnp.min(jnp.where(similar == best[:, None], number, centers.shape[0] - 1), axis=1)
    return which, best


def rows_at_once(num_centers: int) -> int:
    """How many vectors are compared with all centres at a time."""
    return max(128, _SCRATCH // num_centers)


def kmeans(
    key: KeyArray,
    points: Points,
    num_centers: int,
    *,
    num_iterations: int = 10,
    points_per_center: int = 64,
    start: Literal["k-means++", "sampled"] | Float[Array, "centers width"] = "k-means++",
    spherical: bool = True,
) -> Float[Array, "centers width"]:
    """Centres c of length 1 that make sum_i max_c v_i . c large, for the normalised points v_i.

    Each iteration assigns points to their nearest centre and moves every centre to the direction of the sum of its
    points; a centre without points starts again at a random one. An iteration sees all points; if there are more than
    ``points_per_center * num_centers``, it sees that many random ones, drawn anew. Points are taken by blocks: at most
    4 million similarities are held at a time. Deterministic: the same key gives the same centres.

    Not ``spherical``: points as they are, and centres that make sum_i min_c |v_i - c|^2 small: each moves to the mean
    of its points.

    Args:
        key: for the start, the random points and new starts.
        points: at least one.
        num_centers: how many centres.
        num_iterations: of assigning and moving.
        points_per_center: bounds the points of an iteration.
        start: "k-means++": each next centre is the best of a few points, drawn in proportion to their squared distances
            to the centres before it (num_centers passes over 4 * num_centers random points); "sampled": random points;
            or an array of centres.
        spherical: True: compare directions; False: distances.

    Returns:
        float32 centres.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> vectors = jnp.array([[5.0, 0.1], [1.0, 0.0], [0.0, 3.0], [0.1, 9.0]])
        >>> points = Points(lambda ids: vectors[ids], jnp.int32(4), 4)
        >>> jnp.sort(jnp.round(kmeans(jax.random.key(0), points, 2), 1), axis=0).tolist()
        [[0.0, 0.0], [1.0, 1.0]]

    Source: Dhillon and Modha, Concept Decompositions for Large Sparse Text Data Using Clustering (2001); the start:
        Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding (2007).
    """
    check_positive("num_centers", num_centers)
    check_positive("num_iterations", num_iterations)
    check_positive("points_per_center", points_per_center)
    if isinstance(start, str) and start not in ("k-means++", "sampled"):
        raise ValueError(f'expected start "k-means++", "sampled" or an array of centres, got {start!r}.')
    key_start, key_iterate = jax.random.split(key)
    take = points.take
    points = points._replace(take=lambda ids: unit(take(ids)) if spherical else take(ids).astype(jnp.float32))
    if not isinstance(start, str):
        centers = start
    elif start == "sampled":
        centers = _random_points(key_start, points, num_centers)
    else:
        centers = _plus_plus(key_start, points, num_centers, spherical)
    wanted = points_per_center * num_centers
    number = min(wanted, points.at_most)
    block = min(rows_at_once(num_centers), number)
    in_order = number == points.at_most

    def iterate(i: Array, centers: Float[Array, "centers width"]) -> Float[Array, "centers width"]:
        key_points, key_new = jax.random.split(jax.random.fold_in(key_iterate, i))

        def add_block(j: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            place = j * block + jnp.arange(block, dtype=jnp.int32)
            some = (place < number) & (place < points.number) if in_order else place < number
            if in_order:
                ids = jnp.where(some, place, 0)
            else:
                drawn = random_below(jax.random.fold_in(key_points, j), (block,), points.number)
                ids = drawn.astype(jnp.int32)
            vectors = points.take(ids)
            which, _ = nearest(centers, vectors, spherical=spherical)
            # A product instead of a scatter: sums in a fixed order give the same centres on every device and run.
            member = jax.nn.one_hot(jnp.where(some, which, num_centers), num_centers, dtype=jnp.float32)
            return sums[0] + member.T @ vectors, sums[1] + jnp.sum(member, axis=0)

        empty = (jnp.zeros_like(centers), jnp.zeros(num_centers))
        sums, members = jax.lax.fori_loop(0, -(-number // block), add_block, empty)
        anew = _random_points(key_new, points, num_centers)
        if not spherical:
            usable = (members > 0) & jnp.all(jnp.isfinite(sums), axis=1)
            return jnp.where(usable[:, None], sums / jnp.maximum(members, 1.0)[:, None], anew)
        # Written so that a centre with NaN starts again too.
        usable = (members > 0) & (jnp.max(jnp.abs(sums), axis=1) > 0)
        return jnp.where(usable[:, None], unit(jnp.where(usable[:, None], sums, 1.0)), anew)

    return jax.lax.fori_loop(0, num_iterations, iterate, centers)


def _random_points(key: KeyArray, points: Points, number: int) -> Float[Array, "number width"]:
    return points.take(random_below(key, (number,), points.number).astype(jnp.int32))


def _plus_plus(key: KeyArray, points: Points, num_centers: int, spherical: bool) -> Float[Array, "centers width"]:
    key_points, key_choose = jax.random.split(key)
    number = _START_POINTS * num_centers
    if number < points.at_most:
        vectors, real = _random_points(key_points, points, number), jnp.ones(number, bool)
    else:
        real = jnp.arange(points.at_most) < points.number
        vectors = points.take(jnp.where(real, jnp.arange(points.at_most, dtype=jnp.int32), 0))
    # Half the squared lengths.
    half = None if spherical else 0.5 * jnp.sum(vectors * vectors, axis=1)
    trials = 2 + int(math.log(num_centers))
    uniform = jax.random.uniform(key_choose, (num_centers, trials))

    def choose(i: Array, chosen: tuple[Array, Array]) -> tuple[Array, Array]:
        centers, distance = chosen
        total = jnp.cumsum(distance)
        place = jnp.searchsorted(total, uniform[i] * total[-1], side="right")
        at = jnp.minimum(place, vectors.shape[0] - 1)
        tried = vectors[at]
        # Distances to the nearest centre, as |v - c|^2 / 2; |v|^2 / 2 + |c|^2 / 2 is 1 for vectors of length 1.
        lengths = 1 if half is None else half[:, None] + half[at]
        distances = jnp.minimum(distance[:, None], jnp.maximum(lengths - vectors @ tried.T, 0.0))
        best = jnp.argmin(jnp.sum(distances, axis=0))
        return centers.at[i].set(tried[best]), distances[:, best]

    begin = (jnp.zeros((num_centers, vectors.shape[1])), jnp.where(real, 1.0 if half is None else _FAR, 0.0))
    centers, _ = jax.lax.fori_loop(0, num_centers, choose, begin)
    return centers
